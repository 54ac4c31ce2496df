import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The official Java client as a load: plain and transactional sends of 1 KiB with 1, 8 and 32 threads, then a push
 * consumer. Prints "begin" before, and a line of figures after each. Usage: ServingLoad NAMESRV COUNT
 */
public class ServingLoad {
    static final String TOPIC = "serving";

    static class Commits implements TransactionListener {
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }

        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }
    }

    static long send(TransactionMQProducer producer, boolean inTransaction, int threads, int count, boolean isWarm)
        throws Exception {
        int each = Math.max(1, count / threads);
        long[][] took = new long[threads][each];
        AtomicInteger failed = new AtomicInteger();
        byte[] body = new byte[1024];
        Arrays.fill(body, (byte) 'x');
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        List<Future<?>> running = new ArrayList<>();
        if (!isWarm) {
            System.out.println("begin");
        }
        long began = System.nanoTime();
        for (int thread = 0; thread < threads; thread++) {
            long[] mine = took[thread];
            running.add(pool.submit(() -> {
                for (int at = 0; at < each; at++) {
                    long start = System.nanoTime();
                    try {
                        Message message = new Message(TOPIC, "load", body);
                        SendResult result =
                            inTransaction ? producer.sendMessageInTransaction(message, null) : producer.send(message);
                        if (result.getSendStatus() != SendStatus.SEND_OK) {
                            failed.incrementAndGet();
                        }
                    } catch (Exception error) {
                        failed.incrementAndGet();
                    }
                    mine[at] = System.nanoTime() - start;
                }
            }));
        }
        for (Future<?> one : running) {
            one.get();
        }
        double seconds = (System.nanoTime() - began) / 1e9;
        pool.shutdown();
        long sent = (long) each * threads;
        if (!isWarm) {
            long[] all = Arrays.stream(took).flatMapToLong(Arrays::stream).sorted().toArray();
            print(inTransaction ? "transactional" : "plain", threads, sent, seconds, all, failed.get());
        }
        return sent - failed.get();
    }

    static void print(String kind, int threads, long messages, double seconds, long[] sorted, int failed) {
        long p50 = sorted.length == 0 ? 0 : sorted[sorted.length / 2] / 1000;
        long p99 = sorted.length == 0 ? 0 : sorted[sorted.length * 99 / 100] / 1000;
        System.out.printf(
            "{\"kind\": \"%s\", \"threads\": %d, \"messages\": %d, \"seconds\": %.4f, \"p50_us\": %d, \"p99_us\": %d,"
                + " \"failed\": %d}%n", kind, threads, messages, seconds, p50, p99, failed);
    }

    static void consume(String nameServer, long messages) throws Exception {
        AtomicLong got = new AtomicLong();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("serving-consumers");
        consumer.setNamesrvAddr(nameServer);
        consumer.setVipChannelEnabled(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(TOPIC, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            got.addAndGet(batch.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        long end = System.nanoTime() + 120_000_000_000L;
        while (got.get() == 0 && System.nanoTime() < end) {
            Thread.sleep(1);
        }
        System.out.println("begin");
        long began = System.nanoTime(), first = got.get();
        while (got.get() < messages * 9 / 10 && System.nanoTime() < end) {
            Thread.sleep(1);
        }
        print("consume", 1, got.get() - first, (System.nanoTime() - began) / 1e9, new long[0], 0);
        consumer.shutdown();
    }

    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[1]);
        TransactionMQProducer producer = new TransactionMQProducer("serving-producers");
        producer.setNamesrvAddr(arguments[0]);
        producer.setVipChannelEnabled(false);
        producer.setSendMsgTimeout(10_000);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setTransactionListener(new Commits());
        producer.start();
        long messages = 0;
        for (boolean inTransaction : new boolean[] {false, true}) {
            for (int threads : new int[] {1, 8, 32}) {
                int most = (threads == 1 ? count / 2 : count) / (inTransaction ? 2 : 1);
                messages += send(producer, inTransaction, threads, Math.min(most, 500 * threads), true);
                messages += send(producer, inTransaction, threads, most, false);
            }
        }
        consume(arguments[0], messages);
        producer.shutdown();
        Runtime.getRuntime().halt(0);
    }
}
