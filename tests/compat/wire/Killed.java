import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.util.UUID;
import java.util.concurrent.ThreadLocalRandom;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The official Java client as a producer or a consumer that is killed; its records are those of
 * tests/server/killed_wire.py. Usage: Killed produce|consume DIRECTORY NAMESRV TOPIC
 */
public class Killed {
    static Path directory;

    /** Lines of one process in a file of its own: each is one write. */
    static class Records {
        private final OutputStream out;

        Records(String kind) throws IOException {
            out = Files.newOutputStream(
                directory.resolve(kind + "-java-" + UUID.randomUUID()), StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        }

        synchronized void add(String key) {
            try {
                out.write((key + "\n").getBytes(StandardCharsets.UTF_8));
            } catch (IOException error) {
                Runtime.getRuntime().halt(3);
            }
        }
    }

    static boolean exists(String name) {
        return Files.exists(directory.resolve(name));
    }

    /** Decide a transaction, unless it was decided: the first file counts. */
    static LocalTransactionState decide(String key, String wanted) {
        try {
            Path place = directory.resolve("ledger").resolve(key);
            Path beside = directory.resolve("draft-" + UUID.randomUUID());
            Files.write(beside, wanted.getBytes(StandardCharsets.UTF_8));
            try {
                Files.createLink(place, beside);
            } catch (FileAlreadyExistsException decided) {
                // by another, or before
            }
            Files.delete(beside);
            return Files.readString(place).equals("c")
                ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    static String keyOf(MessageExt message) {
        return message.getKeys() == null ? message.getProperty("UNIQ_KEY") : message.getKeys();
    }

    static void configure(ClientConfig client, String nameServers) {
        client.setNamesrvAddr(nameServers);
        client.setVipChannelEnabled(false);
        client.setPollNameServerInterval(1000);
        client.setHeartbeatBrokerInterval(1000);
        client.setPersistConsumerOffsetInterval(1000);
        client.setInstanceName("i" + System.nanoTime());
    }

    static void produce(String nameServers, String topic) throws Exception {
        Records acked = new Records("acked");
        Records checked = new Records("checked");
        TransactionMQProducer producer = new TransactionMQProducer("shop");
        configure(producer, nameServers);
        producer.setSendMsgTimeout(3000);
        producer.setTransactionListener(new TransactionListener() {
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                double chance = ThreadLocalRandom.current().nextDouble();
                if (chance < 0.1) {
                    return LocalTransactionState.UNKNOW; // as a producer that dies before it decides
                }
                LocalTransactionState decided =
                    decide(message.getKeys(), ThreadLocalRandom.current().nextInt(3) < 2 ? "c" : "r");
                return chance < 0.3 ? LocalTransactionState.UNKNOW : decided; // and after it did
            }

            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                LocalTransactionState decided = decide(keyOf(message), "r");
                checked.add(keyOf(message));
                return decided;
            }
        });
        producer.start();
        while (!exists("stop")) {
            if (exists("quiet")) {
                Thread.sleep(50);
                continue;
            }
            String key = UUID.randomUUID().toString().replace("-", "");
            Message message = new Message(topic, "java", key, new byte[200]);
            try {
                if (ThreadLocalRandom.current().nextDouble() >= 0.3) {
                    producer.sendMessageInTransaction(message, null);
                } else if (producer.send(message).getSendStatus() == SendStatus.SEND_OK) {
                    acked.add(key);
                }
            } catch (Exception error) {
                Thread.sleep(100); // a server is gone
            }
            Thread.sleep(5);
        }
    }

    static void consume(String nameServers, String topic) throws Exception {
        Records delivered = new Records("delivered");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("billing");
        configure(consumer, nameServers);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                delivered.add(keyOf(message));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        while (!exists("stop")) {
            Thread.sleep(100);
        }
    }

    public static void main(String[] arguments) throws Exception {
        directory = Paths.get(arguments[1]);
        if (arguments[0].equals("produce")) {
            produce(arguments[2], arguments[3]);
        } else {
            consume(arguments[2], arguments[3]);
        }
        Runtime.getRuntime().halt(0);
    }
}
