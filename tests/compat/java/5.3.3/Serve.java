import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Writes down what a broker serves from single queues, those that no name server knows included. Options: namesrv truth
 * via (a topic of this broker that is known) queues (TOPIC:ID,...).
 */
public final class Serve {
    private Serve() {
    }

    public static void main(String[] words) throws Exception {
        Options options = new Options(words);
        Truth truth = new Truth(options.text("truth"));
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("serve");
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.start();
        // The client learns the broker's address with the first topic that the name server knows.
        for (int attempt = 0; ; attempt++) {
            try {
                consumer.minOffset(new MessageQueue(options.text("via"), "broker-a", 0));
                break;
            } catch (Exception notYet) {
                if (attempt == 150) {
                    notYet.printStackTrace();
                    Runtime.getRuntime().halt(1);
                }
                Thread.sleep(200);
            }
        }
        try {
            serve(options, truth, consumer);
        } catch (Exception failure) {
            failure.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        Runtime.getRuntime().halt(0);
    }

    private static void serve(Options options, Truth truth, DefaultMQPullConsumer consumer) throws Exception {
        for (String name : options.text("queues").split(",")) {
            int cut = name.lastIndexOf(':');
            MessageQueue queue = new MessageQueue(name.substring(0, cut), "broker-a", Integer.parseInt(name.substring(cut + 1)));
            long next = consumer.minOffset(queue);
            long end = consumer.maxOffset(queue);
            truth.say("served", "queue", name, "first", next, "end", end);
            while (next < end) {
                PullResult result = consumer.pull(queue, "*", next, 32);
                if (result.getPullStatus() == PullStatus.FOUND) {
                    for (MessageExt message : result.getMsgFoundList()) {
                        truth.say("pulled", "queue", name, "at", message.getQueueOffset(), "key",
                            String.valueOf(message.getKeys()), "body_crc", Truth.crc(message.getBody()));
                    }
                }
                if (result.getNextBeginOffset() <= next) {
                    break;
                }
                next = result.getNextBeginOffset();
            }
        }
    }
}
