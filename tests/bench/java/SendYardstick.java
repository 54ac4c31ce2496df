import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends to a broker for as long as it is told to, and says how fast that was: the load of tests/bench/following.py.
 *
 * SendYardstick NAMESRV TOPIC THREADS BODY_BYTES. Each line of its input, "SECONDS RATE", is one turn; a rate of 0 means
 * as fast as the broker answers. It prints "sent COUNT FAILED SECONDS P50_US P99_US" for each.
 */
public final class SendYardstick {
    private static final int LATENCIES = 4_000_000;
    private final DefaultMQProducer producer = new DefaultMQProducer("yardstick");
    private final String topic;
    private final int threads;
    private final byte[] body;

    private SendYardstick(String[] words) throws Exception {
        topic = words[1];
        threads = Integer.parseInt(words[2]);
        body = new byte[Integer.parseInt(words[3])];
        Arrays.fill(body, (byte) 'x');
        producer.setNamesrvAddr(words[0]);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.setSendMsgTimeout(10_000);
        producer.start();
    }

    public static void main(String[] words) throws Exception {
        SendYardstick yardstick = new SendYardstick(words);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] turn = line.split(" ");
            yardstick.turn(Double.parseDouble(turn[0]), Double.parseDouble(turn[1]));
        }
        yardstick.producer.shutdown();
        Runtime.getRuntime().halt(0);
    }

    private void turn(double seconds, double rate) throws Exception {
        int[] latencies = new int[LATENCIES];
        AtomicLong sent = new AtomicLong();
        AtomicLong failed = new AtomicLong();
        long began = System.nanoTime();
        long ends = began + (long) (seconds * 1e9);
        Thread[] all = new Thread[threads];
        for (int number = 0; number < threads; number++) {
            all[number] = new Thread(() -> send(ends, rate / threads, latencies, sent, failed));
            all[number].start();
        }
        for (Thread thread : all) {
            thread.join();
        }
        double took = (System.nanoTime() - began) / 1e9;
        int count = (int) Math.min(sent.get(), LATENCIES);
        Arrays.sort(latencies, 0, count);
        System.out.println("sent " + count + " " + failed.get() + " " + took + " " + at(latencies, count, 50) + " "
            + at(latencies, count, 99));
    }

    private static int at(int[] sorted, int count, int percent) {
        return count == 0 ? -1 : sorted[Math.min(count - 1, count * percent / 100)];
    }

    /** One thread: a message is due each 1/rate seconds, whether or not the one before it was late. */
    private void send(long ends, double rate, int[] latencies, AtomicLong sent, AtomicLong failed) {
        long due = System.nanoTime();
        while (System.nanoTime() < ends) {
            if (rate > 0) {
                LockSupport.parkNanos(due - System.nanoTime());
                due += (long) (1e9 / rate);
            }
            long began = System.nanoTime();
            try {
                if (producer.send(new Message(topic, body)).getSendStatus() != SendStatus.SEND_OK) {
                    throw new IllegalStateException("not SEND_OK");
                }
            } catch (Exception error) {
                failed.incrementAndGet();
                continue;
            }
            int number = (int) sent.getAndIncrement();
            if (number < LATENCIES) {
                latencies[number] = (int) ((System.nanoTime() - began) / 1000);
            }
        }
    }
}
