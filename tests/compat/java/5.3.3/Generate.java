import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Sends messages with a planned outcome to a RocketMQ 5.3.3 broker and writes what happened to the truth file.
 * Options: namesrv truth group seed count threads body text plain batch immunity rollback unknown topics keytail
 * pause_ms consumer retries quiet stall; with a consumer the messages are consumed too, some after retries, some never.
 */
public final class Generate {
    private final Options options;
    private final Truth truth;
    private final Watch watch = new Watch(false);
    private final AtomicInteger next = new AtomicInteger();
    private final AtomicInteger failures = new AtomicInteger();
    private final TransactionMQProducer producer;

    private Generate(Options options) throws Exception {
        this.options = options;
        this.truth = new Truth(options.text("truth"));
        this.producer = new TransactionMQProducer(options.text("group"));
        this.next.set(options.number("first", 0));
    }

    public static void main(String[] words) throws Exception {
        Generate run = new Generate(new Options(words));
        run.start();
        run.sendAll();
        run.truth.say("sent", "count", run.next.get(), "failures", run.failures.get());
        run.watch.settle(run.options.number("quiet", 5), run.options.number("stall", 80));
        run.truth.say("settled", "left", run.watch.left());
        Runtime.getRuntime().halt(0);
    }

    private void start() throws Exception {
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setSendMsgTimeout(10_000);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setCompressMsgBodyOverHowmuch(1024);
        // One setting for all threads: changed under a send, a record's flag names another compression than its body has.
        producer.setCompressType(CompressionType.values()[options.number("seed", 0) % 3]);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object local) {
                return LocalTransactionState.valueOf((String) local);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return answer(message);
            }
        });
        producer.start();
        awaitBroker();
    }

    /** A broker says that it runs before the name server knows it. */
    private void awaitBroker() throws Exception {
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

    private void sendAll() throws Exception {
        int count = options.number("first", 0) + options.number("count", 100);
        if (options.number("first", 0) == 0) {
            sendSafely(next.getAndIncrement());
        }
        startConsumer();
        List<Thread> threads = new ArrayList<>();
        for (int t = 0; t < options.number("threads", 1); t++) {
            Thread thread = new Thread(() -> {
                for (int i = next.getAndIncrement(); i < count; i = next.getAndIncrement()) {
                    sendSafely(i);
                }
                next.decrementAndGet();
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    /** The consumer comes after the first message, so that this one is the first record of a new store. */
    private void startConsumer() throws Exception {
        if (!options.text("consumer", "").isEmpty()) {
            new Consumer(options, truth, watch).start();
        }
    }

    private void sendSafely(int index) {
        Plan plan = Plan.of(options, index);
        try {
            send(plan);
            Thread.sleep(options.number("pause_ms", 0));
        } catch (Exception failure) {
            truth.say("failed", "key", plan.key, "why", String.valueOf(failure));
            if (failures.incrementAndGet() > 20) {
                Runtime.getRuntime().halt(3);
            }
        }
    }

    private void send(Plan plan) throws Exception {
        if (options.number("threads", 1) == 1) {
            producer.setCompressType(CompressionType.values()[plan.compression]);
        }
        if (plan.kind.equals("batch")) {
            sendBatch(plan);
            return;
        }
        Message message = message(plan, plan.key);
        boolean half = plan.kind.equals("half");
        String local = half ? Plan.local(options, plan.key) : "";
        announce(plan, plan.key, local);
        if (half) {
            sendHalf(plan, message, local);
        } else {
            var result = producer.send(message);
            truth.say("plain", said(plan, plan.key, "delay", plan.delayLevel, "msg_id", result.getMsgId()));
        }
    }

    private void sendHalf(Plan plan, Message message, String local) throws Exception {
        TransactionSendResult result = producer.sendMessageInTransaction(message, local);
        truth.say("half", said(plan, plan.key, "group", options.text("group"), "local", local,
            "check", Plan.check(options, plan.key), "msg_id", result.getMsgId(),
            "half_number", result.getQueueOffset(), "transaction_id", result.getTransactionId()));
    }

    private void sendBatch(Plan plan) throws Exception {
        List<Message> batch = new ArrayList<>();
        for (int part = 0; part < plan.parts; part++) {
            String key = plan.key + "-b" + part;
            announce(plan, key, "");
            batch.add(message(plan, key));
        }
        producer.send(batch);
        for (int part = 0; part < plan.parts; part++) {
            truth.say("batch", said(plan, plan.key + "-b" + part, "part", part, "parts", plan.parts));
        }
    }

    private Message message(Plan plan, String key) {
        Message message = new Message(plan.topic, plan.tag, key + options.text("keytail", ""), plan.body);
        for (Map.Entry<String, String> property : plan.properties.entrySet()) {
            message.putUserProperty(property.getKey(), property.getValue());
        }
        if (plan.delayLevel > 0) {
            message.setDelayTimeLevel(plan.delayLevel);
        }
        return message;
    }

    /** Says that a message is on its way: what is in the store and was never confirmed is at least announced. */
    private void announce(Plan plan, String key, String local) {
        String end = local.equals(Plan.UNKNOWN) ? Plan.check(options, key) : local;
        if (local.equals(Plan.UNKNOWN)) {
            watch.expect("check " + key);
        }
        if (!options.text("consumer", "").isEmpty() && (local.isEmpty() || end.equals(Plan.COMMIT))) {
            watch.expect("consume " + key);
        }
        truth.say("sending", said(plan, key, "kind", plan.kind, "local", local, "planned_check", end));
    }

    private static Object[] said(Plan plan, String key, Object... more) {
        Object[] all = new Object[8 + more.length];
        Object[] first = {"key", key, "topic", plan.topic, "body_len", plan.body.length,
            "body_crc", Truth.crc(plan.body)};
        System.arraycopy(first, 0, all, 0, 8);
        System.arraycopy(more, 0, all, 8, more.length);
        return all;
    }

    private LocalTransactionState answer(MessageExt message) {
        String key = message.getKeys().split(" ")[0];
        String answer = Plan.check(options, key);
        truth.say("check", "key", key, "answer", answer);
        watch.done("check " + key);
        return LocalTransactionState.valueOf(answer);
    }
}
