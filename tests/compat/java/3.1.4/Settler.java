import com.alibaba.rocketmq.client.producer.LocalTransactionState;
import com.alibaba.rocketmq.client.producer.TransactionMQProducer;
import com.alibaba.rocketmq.common.message.MessageExt;

/**
 * A producer that sends nothing and answers when the broker asks how a transaction ended: what the key's last letter
 * says, c for commit, r for roll back, u for unknown. Options: namesrv truth group topic seconds.
 */
public final class Settler {
    private final Truth truth;
    private final TransactionMQProducer producer;

    private Settler(Options options) throws Exception {
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
        Settler settler = new Settler(options);
        Thread.sleep(options.number("seconds", 80) * 1000L);
        settler.truth.say("settled");
        Runtime.getRuntime().halt(0);
    }

    private LocalTransactionState answer(MessageExt message) {
        String key = message.getKeys().split(" ")[0];
        char last = key.charAt(key.length() - 1);
        truth.say("check", "key", key, "slot", message.getQueueOffset(), "commitlog_offset",
            message.getCommitLogOffset());
        return last == 'c' ? LocalTransactionState.COMMIT_MESSAGE
            : last == 'r' ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
    }
}
