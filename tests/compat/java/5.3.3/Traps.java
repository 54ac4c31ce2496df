import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.header.EndTransactionRequestHeader;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * Ends transactions as no well-behaved client would, and writes down what the broker answered. Options: namesrv broker
 * truth group seed rounds. Each round tries every trap once:
 * twice, commit-rollback, rollback-commit: two ends of one transaction; wrong-group: an end that names another group.
 * delayed, timed: a half message with a delay, which this generation stores where no end can reach it.
 */
public final class Traps {
    private static final int COMMIT = 8;
    private static final int ROLLBACK = 12;

    private final Options options;
    private final Truth truth;
    private final DefaultMQProducer producer;
    private int sent;

    private Traps(Options options) throws Exception {
        this.options = options;
        this.truth = new Truth(options.text("truth"));
        this.producer = new DefaultMQProducer(options.text("group"));
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setSendMsgTimeout(10_000);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
    }

    public static void main(String[] words) throws Exception {
        Traps run = new Traps(new Options(words));
        for (int round = 0; round < run.options.number("rounds", 3); round++) {
            run.trap("commit", 0, 0, COMMIT);
            run.trap("rollback", 0, 0, ROLLBACK);
            run.trap("twice", 0, 0, COMMIT, COMMIT);
            run.trap("commit-rollback", 0, 0, COMMIT, ROLLBACK);
            run.trap("rollback-commit", 0, 0, ROLLBACK, COMMIT);
            run.trap("wrong-group", 0, 0, -COMMIT);
            run.trap("delayed", 1, 0, COMMIT);
            run.trap("delayed-open", 2, 0);
            run.trap("timed", 0, 1500, COMMIT);
            run.trap("timed-open", 0, 1500);
        }
        Thread.sleep(run.options.number("settle", 8) * 1000L);
        Runtime.getRuntime().halt(0);
    }

    /** A half message, with a delay if asked for, and ends; a negative end names a group that is not its own. */
    private void trap(String name, int delayLevel, int timerMillis, int... ends) throws Exception {
        String key = options.text("group") + "-" + options.number("seed", 0) + "-" + sent++;
        byte[] body = ("trap " + name + " " + key).getBytes(java.nio.charset.StandardCharsets.UTF_8);
        Message message = new Message("TrapTopic", "Trap", key, body);
        MessageAccessor.putProperty(message, "TRAN_MSG", "true");
        MessageAccessor.putProperty(message, "PGROUP", options.text("group"));
        if (delayLevel > 0) {
            message.setDelayTimeLevel(delayLevel);
        }
        if (timerMillis > 0) {
            MessageAccessor.putProperty(message, "TIMER_DELAY_MS", String.valueOf(timerMillis));
        }
        SendResult result = send(message);
        long place = MessageDecoder.decodeMessageId(result.getOffsetMsgId()).getOffset();
        truth.say("trap", "name", name, "key", key, "topic", message.getTopic(), "body_len", body.length,
            "body_crc", Truth.crc(body), "commitlog_offset", place, "half_number", result.getQueueOffset());
        for (int end : ends) {
            RemotingCommand answer = end(message, result, place, end);
            truth.say("end", "name", name, "key", key, "end", Math.abs(end), "code", answer.getCode(),
                "remark", String.valueOf(answer.getRemark()));
        }
    }

    /** A broker says that it runs before the name server knows it. */
    private SendResult send(Message message) throws Exception {
        for (int attempt = 0; ; attempt++) {
            try {
                return producer.send(message);
            } catch (org.apache.rocketmq.client.exception.MQClientException notYet) {
                if (attempt == 150) {
                    throw notYet;
                }
                Thread.sleep(200);
            }
        }
    }

    private RemotingCommand end(Message message, SendResult result, long place, int end) throws Exception {
        EndTransactionRequestHeader header = new EndTransactionRequestHeader();
        header.setTopic(message.getTopic());
        header.setTransactionId(result.getTransactionId());
        header.setProducerGroup(end < 0 ? "somebody_else" : options.text("group"));
        header.setTranStateTableOffset(result.getQueueOffset());
        header.setCommitLogOffset(place);
        header.setCommitOrRollback(Math.abs(end));
        header.setFromTransactionCheck(false);
        header.setMsgId(result.getMsgId());
        RemotingCommand request = RemotingCommand.createRequestCommand(RequestCode.END_TRANSACTION, header);
        return producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl().getRemotingClient()
            .invokeSync(options.text("broker"), request, 5000);
    }
}
