import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

import java.util.Set;

/**
 * Writes down what a consumer gets from every queue of some topics, from the first offset to the end, and what a query
 * finds for each message's first key. Options: namesrv truth topics group.
 */
public final class Reader {
    private final Truth truth;
    private final DefaultMQPullConsumer consumer;

    private Reader(Options options) throws Exception {
        truth = new Truth(options.text("truth"));
        consumer = new DefaultMQPullConsumer(options.text("group", "reader"));
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.start();
    }

    public static void main(String[] words) throws Exception {
        Options options = new Options(words);
        Reader reader = new Reader(options);
        for (String topic : options.text("topics").split(",")) {
            for (MessageQueue queue : reader.queues(topic)) {
                reader.pull(queue);
            }
        }
        reader.truth.say("read");
        Runtime.getRuntime().halt(0);
    }

    /** A broker says that it runs before the name server knows its topics. */
    private Set<MessageQueue> queues(String topic) throws Exception {
        for (int attempt = 0; ; attempt++) {
            try {
                return consumer.fetchSubscribeMessageQueues(topic);
            } catch (Exception notYet) {
                if (attempt == 150) {
                    throw notYet;
                }
                Thread.sleep(200);
            }
        }
    }

    private void pull(MessageQueue queue) throws Exception {
        long next = consumer.minOffset(queue);
        long end = consumer.maxOffset(queue);
        truth.say("queue", "topic", queue.getTopic(), "queue_id", queue.getQueueId(), "first", next, "end", end);
        while (next < end) {
            PullResult result = consumer.pull(queue, "*", next, 32);
            if (result.getPullStatus() == PullStatus.FOUND) {
                for (MessageExt message : result.getMsgFoundList()) {
                    found(message);
                }
            }
            if (result.getNextBeginOffset() <= next) {
                throw new IllegalStateException(queue + " stands still at " + next + ": " + result.getPullStatus());
            }
            next = result.getNextBeginOffset();
        }
    }

    private void found(MessageExt message) throws Exception {
        truth.say("pulled", "topic", message.getTopic(), "queue_id", message.getQueueId(), "queue_offset",
            message.getQueueOffset(), "commitlog_offset", message.getCommitLogOffset(), "key",
            String.valueOf(message.getKeys()), "tag", String.valueOf(message.getTags()), "body_len",
            message.getBody().length, "body_crc", Truth.crc(message.getBody()), "asked", asked(message));
    }

    /** How many messages a query by the first key finds. */
    private int asked(MessageExt message) throws Exception {
        if (message.getKeys() == null || message.getKeys().isEmpty()) {
            return -1;
        }
        String key = message.getKeys().split(" ")[0];
        try {
            return consumer.queryMessage(message.getTopic(), key, 32, 0, Long.MAX_VALUE).getMessageList().size();
        } catch (MQClientException nothing) {
            return 0;
        }
    }
}
