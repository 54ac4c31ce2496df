import com.alibaba.rocketmq.client.producer.LocalTransactionState;
import com.alibaba.rocketmq.client.producer.TransactionMQProducer;
import com.alibaba.rocketmq.common.message.MessageExt;

/**
 * A producer that sends nothing and answers every check-back of a store that others wrote: half messages at an even
 * slot are committed, the others rolled back. Options: namesrv truth group topic seconds.
 */
public final class Decider {
    private final Truth truth;
    private final TransactionMQProducer producer;

    private Decider(Options options) throws Exception {
        truth = new Truth(options.text("truth"));
        producer = new TransactionMQProducer(options.text("group"));
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setHeartbeatBrokerInterval(1000);
        producer.setPollNameServerInteval(1000);
        producer.setTransactionCheckListener(this::answer);
        producer.start();
        for (int attempt = 0; attempt < 150; attempt++) {
            try {
                producer.fetchPublishMessageQueues(options.text("topic"));
                return;
            } catch (Exception notYet) {
                Thread.sleep(200);
            }
        }
    }

    public static void main(String[] words) throws Exception {
        Options options = new Options(words);
        Decider decider = new Decider(options);
        Thread.sleep(options.number("seconds", 80) * 1000L);
        decider.truth.say("settled");
        Runtime.getRuntime().halt(0);
    }

    private LocalTransactionState answer(MessageExt message) {
        boolean commit = message.getQueueOffset() % 2 == 0;
        truth.say("check", "slot", message.getQueueOffset(), "commitlog_offset", message.getCommitLogOffset(),
            "answer", commit ? "commit" : "rollback");
        return commit ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
    }
}
