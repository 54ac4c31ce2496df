import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

import java.util.List;

/** A push consumer that refuses some messages, so that the broker delays, retries and in the end buries them. */
final class Consumer {
    private final Options options;
    private final Truth truth;
    private final Watch watch;
    private final String group;
    private DefaultMQPushConsumer consumer;

    Consumer(Options options, Truth truth, Watch watch) {
        this.options = options;
        this.truth = truth;
        this.watch = watch;
        this.group = options.text("consumer");
    }

    void start() throws Exception {
        consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(1000);
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.setMaxReconsumeTimes(options.number("retries", 2));
        for (String topic : options.text("topics", "OrderTopic,PayTopic").split(",")) {
            consumer.subscribe(topic, "*");
        }
        consumer.registerMessageListener(new MessageListenerConcurrently() {
            @Override
            public ConsumeConcurrentlyStatus consumeMessage(List<MessageExt> all, ConsumeConcurrentlyContext context) {
                return take(all.get(0), context);
            }
        });
        consumer.start();
    }

    private ConsumeConcurrentlyStatus take(MessageExt message, ConsumeConcurrentlyContext context) {
        String key = message.getKeys().split(" ")[0];
        int times = message.getReconsumeTimes();
        Taste taste = Taste.of(options, key);
        boolean accepted = taste.accepts(times);
        boolean dead = taste.dies(times);
        context.setDelayLevelWhenNextConsume(taste.delayLevel());
        ConsumeConcurrentlyStatus answer =
            accepted ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        truth.say("consumed", "key", key, "topic", message.getTopic(), "group", group, "times", times,
            "answer", answer.name(), "dead", dead, "commitlog_offset", message.getCommitLogOffset());
        if (accepted || dead) {
            watch.done("consume " + key);
        }
        return answer;
    }
}
