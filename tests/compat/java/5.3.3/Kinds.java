import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;

/**
 * Sends plain messages of which a broker keeps more than a ConsumeQueue. Options: namesrv broker truth topic count
 * queues batch (messages of one send) attributes (a topic's, as +queue.type:BatchCQ) lmq (queues that get each message
 * as well: %LMQ%a,%LMQ%b) sql (a filter that a consumer subscribes with before the first message is sent) transactions
 * (so many more: of three one is rolled back, two are committed) delay (of those, in milliseconds) later (how long every
 * other plain message waits, in milliseconds) seed (0: the same bodies, tags and decisions each time).
 */
public final class Kinds {
    private final Options options;
    private final int seed;
    private final Truth truth;
    private final DefaultMQProducer producer = new DefaultMQProducer("kinds");

    private Kinds(Options options) throws Exception {
        this.options = options;
        this.seed = options.number("seed", 0);
        this.truth = new Truth(options.text("truth"));
    }

    public static void main(String[] words) throws Exception {
        try {
            Kinds run = new Kinds(new Options(words));
            run.start();
            run.createTopic();
            run.subscribe();
            run.send();
            run.sendTransactions();
        } catch (Exception failure) {
            failure.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        Runtime.getRuntime().halt(0);
    }

    private void start() throws Exception {
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setSendMsgTimeout(10_000);
        producer.start();
        for (int attempt = 0; ; attempt++) {
            try {
                producer.fetchPublishMessageQueues("TBW102");
                return;
            } catch (Exception notYet) {
                if (attempt == 150) {
                    throw notYet;
                }
                Thread.sleep(200);
            }
        }
    }

    private void createTopic() throws Exception {
        TopicConfig config = new TopicConfig(options.text("topic"));
        config.setReadQueueNums(options.number("queues", 2));
        config.setWriteQueueNums(options.number("queues", 2));
        Map<String, String> attributes = new HashMap<>();
        for (String pair : options.text("attributes", "").split(",")) {
            if (!pair.isEmpty()) {
                attributes.put(pair.split(":")[0], pair.split(":")[1]);
            }
        }
        config.setAttributes(attributes);
        producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl()
            .createTopic(options.text("broker"), "TBW102", config, 10_000);
        Thread.sleep(1000);
    }

    /** The broker computes a bitmap for each message from the filters that it knows when it dispatches the message. */
    private void subscribe() throws Exception {
        if (options.text("sql", "").isEmpty()) {
            return;
        }
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("sql_group");
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.subscribe(options.text("topic"), MessageSelector.bySql(options.text("sql")));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> truth.say("filtered", "key", message.getKeys()));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Thread.sleep(3000);
    }

    private void send() throws Exception {
        String topic = options.text("topic");
        for (int number = 0; number < options.number("count", 20); number++) {
            MessageQueue queue = new MessageQueue(topic, "broker-a", number % options.number("queues", 2));
            List<Message> messages = new ArrayList<>();
            for (int part = 0; part < options.number("batch", 1); part++) {
                Message message = message(topic, topic + "-" + number + "." + part, number);
                if (number % 2 == 1 && options.number("later", 0) > 0) {
                    message.setDelayTimeMs(options.number("later", 0) + number * 1000);
                }
                messages.add(message);
            }
            SendResult sent = messages.size() == 1 ? producer.send(messages.get(0), queue) : producer.send(messages, queue);
            for (Message message : messages) {
                truth.say("plain", "key", message.getKeys(), "status", sent.getSendStatus().toString());
            }
        }
        Thread.sleep(1000);
    }

    private void sendTransactions() throws Exception {
        int count = options.number("transactions", 0);
        if (count == 0) {
            return;
        }
        TransactionMQProducer sender = new TransactionMQProducer("kinds_transactions");
        sender.setNamesrvAddr(options.text("namesrv"));
        sender.setSendMsgTimeout(10_000);
        sender.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object number) {
                return decision((Integer) number);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                truth.say("check", "key", message.getKeys());
                return decision(Integer.parseInt(message.getProperty("number")));
            }
        });
        sender.start();
        for (int number = 0; number < count; number++) {
            Message message = message(options.text("topic"), options.text("topic") + "-transaction-" + number, number);
            if (options.number("delay", 0) > 0) {
                message.setDelayTimeMs(options.number("delay", 0));
            }
            sender.sendMessageInTransaction(message, number);
            truth.say("half", "key", message.getKeys(), "local", decision(number).toString());
        }
        Thread.sleep(8000);
    }

    private LocalTransactionState decision(int number) {
        boolean rolledBack = seed == 0 ? number % 3 == 2 : random(number).nextInt(3) == 2;
        return rolledBack ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.COMMIT_MESSAGE;
    }

    private Random random(int number) {
        return new Random(seed * 1_000_003L + number);
    }

    private Message message(String topic, String key, int number) {
        byte[] body = ("body of " + key).getBytes();
        String tag = "Tag" + number % 3;
        if (seed != 0) {
            Random random = random(number);
            body = new byte[1 + random.nextInt(3000)];
            random.nextBytes(body);
            tag = random.nextBoolean() ? Integer.toString(random.nextInt(), 36) : tag;
        }
        Message message = new Message(topic, tag, key, body);
        message.putUserProperty("number", String.valueOf(number));
        if (!options.text("lmq", "").isEmpty()) {
            MessageAccessor.putProperty(message, "INNER_MULTI_DISPATCH", options.text("lmq"));
        }
        return message;
    }
}
