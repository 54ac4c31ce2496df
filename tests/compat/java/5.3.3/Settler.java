import org.apache.rocketmq.client.impl.producer.TopicPublishInfo;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

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
        producer.setPollNameServerInterval(1000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object local) {
                return LocalTransactionState.UNKNOW;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return answer(message);
            }
        });
        producer.start();
        // A producer that sends nothing learns no broker by itself, and tells none that it is there.
        var client = producer.getDefaultMQProducerImpl().getMqClientFactory();
        for (int attempt = 0; attempt < 150; attempt++) {
            if (client.updateTopicRouteInfoFromNameServer(options.text("topic"))) {
                break;
            }
            Thread.sleep(200);
        }
        producer.getDefaultMQProducerImpl().getTopicPublishInfoTable()
            .putIfAbsent(options.text("topic"), new TopicPublishInfo());
        client.sendHeartbeatToAllBrokerWithLock();
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
