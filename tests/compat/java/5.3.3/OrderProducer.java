import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.HexFormat;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Saves orders without end, each with its ledger row in one transaction of the database, as docs/howto/answer.md says.
 * It answers no check. Options: namesrv truth group topic database (JDBC) binding store threads turn.
 */
public final class OrderProducer {
    private static final String ROW =
        "INSERT INTO checkback_ledger (ledger_key, state, producer_group, store_id) VALUES (?, 8, ?, ?)";
    private final Options options;
    private final Truth truth;
    private final SecureRandom chance = new SecureRandom();
    private final TransactionMQProducer producer;
    private final ThreadLocal<Connection> connections = ThreadLocal.withInitial(this::connect);

    private OrderProducer(Options options) throws Exception {
        this.options = options;
        truth = new Truth(options.text("truth"));
        producer = new TransactionMQProducer(options.text("group"));
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object order) {
                return save(message, (String) order);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.UNKNOW;
            }
        });
        producer.start();
    }

    public static void main(String[] words) throws Exception {
        Options options = new Options(words);
        OrderProducer program = new OrderProducer(options);
        for (int thread = 0; thread < options.number("threads", 3); thread++) {
            String name = options.text("turn") + "-" + thread + "-";
            new Thread(() -> program.buy(name)).start();
        }
    }

    private void buy(String name) {
        for (int number = 0;; number++) {
            try {
                send(name + number);
            } catch (Exception error) {
                truth.say("failed", "order", name + number, "error", String.valueOf(error));
            }
        }
    }

    private void send(String order) throws Exception {
        byte[] random = new byte[10];
        chance.nextBytes(random);
        String key = String.format("%012x", System.currentTimeMillis()) + HexFormat.of().formatHex(random);
        Message message = new Message(options.text("topic"), order.getBytes(StandardCharsets.UTF_8));
        message.putUserProperty("CHECKBACK_LEDGER_KEY", key);
        message.putUserProperty("CHECKBACK_LEDGER_BINDING", options.text("binding"));
        producer.sendMessageInTransaction(message, order);
        truth.say("sent", "order", order);
    }

    /** The local transaction: the row first, so that it is locked while the transaction runs. */
    private LocalTransactionState save(Message message, String order) {
        int kind = chance.nextInt(10);
        Connection connection = connections.get();
        try {
            try (PreparedStatement row = connection.prepareStatement(ROW)) {
                row.setString(1, message.getUserProperty("CHECKBACK_LEDGER_KEY"));
                row.setString(2, options.text("group"));
                row.setString(3, options.text("store"));
                row.executeUpdate();
            }
            try (PreparedStatement saved = connection.prepareStatement("INSERT INTO orders (id) VALUES (?)")) {
                saved.setString(1, order);
                saved.executeUpdate();
            }
            if (kind < 2) {
                connection.rollback();
                return kind == 0 ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
            }
            connection.commit();
            return kind < 4 ? LocalTransactionState.UNKNOW : LocalTransactionState.COMMIT_MESSAGE;
        } catch (SQLException error) {
            try {
                connection.rollback();
            } catch (SQLException ignored) {
                truth.say("broken", "order", order);
            }
            return LocalTransactionState.UNKNOW;
        }
    }

    private Connection connect() {
        try {
            Connection made = DriverManager.getConnection(options.text("database"));
            try (Statement waiting = made.createStatement()) {
                waiting.execute("PRAGMA busy_timeout = 10000");
            }
            made.setAutoCommit(false);
            return made;
        } catch (SQLException error) {
            throw new IllegalStateException(error);
        }
    }
}
