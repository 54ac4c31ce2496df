import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Random;

/**
 * What message number i of a run is: a pure function of the options and i, so that a later process that is asked about
 * a message of an earlier one gives the same answer.
 */
final class Plan {
    static final String COMMIT = "COMMIT_MESSAGE";
    static final String ROLLBACK = "ROLLBACK_MESSAGE";
    static final String UNKNOWN = "UNKNOW";

    final String key;
    final String kind;
    final String topic;
    final String tag;
    final byte[] body;
    final int delayLevel;
    final int parts;
    final int compression;
    final Map<String, String> properties = new LinkedHashMap<>();

    private Plan(Options options, int index) {
        long seed = options.number("seed", 0);
        Random random = new Random((seed * 1_000_003L + index) * 7919L);
        random.nextInt();
        key = options.text("group") + "-" + seed + "-" + index;
        String[] topics = options.text("topics", "OrderTopic,PayTopic").split(",");
        topic = topics[random.nextInt(topics.length)];
        tag = random.nextInt(8) == 0 ? null : "Tag" + (char) ('A' + random.nextInt(5));
        kind = index == 0 ? "half" : kindOf(random.nextInt(100), options);
        delayLevel = kind.equals("plain") && random.nextInt(4) == 0 ? 1 + random.nextInt(3) : 0;
        parts = kind.equals("batch") ? 2 + random.nextInt(4) : 1;
        compression = random.nextInt(3);
        body = bodyOf(random, options);
        if (random.nextInt(3) == 0) {
            properties.put("orderId", "o" + index);
        }
        if (random.nextInt(5) == 0) {
            properties.put("note\u00e9", "\u8ba2\u5355 " + index + " \u20ac \ud83d\ude80");
        }
        if (kind.equals("half") && random.nextInt(100) < options.number("immunity", 0)) {
            properties.put("CHECK_IMMUNITY_TIME_IN_SECONDS", String.valueOf(5 + random.nextInt(6)));
        }
    }

    static Plan of(Options options, int index) {
        return new Plan(options, index);
    }

    private static String kindOf(int draw, Options options) {
        int plain = options.number("plain", 20);
        int batch = options.number("batch", 0);
        return draw < plain ? "plain" : draw < plain + batch ? "batch" : "half";
    }

    private static byte[] bodyOf(Random random, Options options) {
        int limit = options.number("body", 400);
        boolean text = random.nextInt(100) < options.number("text", 20);
        byte[] body = new byte[1 + random.nextInt(text ? limit * 8 : limit)];
        if (text) {
            Arrays.fill(body, (byte) ('a' + random.nextInt(26)));
            body[random.nextInt(body.length)] = (byte) random.nextInt(256);
        } else {
            random.nextBytes(body);
        }
        return body;
    }

    /** A draw from 0 to 99 that depends on the key and the question only. */
    static int draw(String key, String question) {
        try {
            byte[] digest = MessageDigest.getInstance("MD5").digest((question + key).getBytes(StandardCharsets.UTF_8));
            return ((digest[0] & 0xFF) << 16 | (digest[1] & 0xFF) << 8 | digest[2] & 0xFF) % 100;
        } catch (java.security.NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    /** What the local transaction answers. The first message of a run is always committed. */
    static String local(Options options, String key) {
        if (key.endsWith("-0")) {
            return COMMIT;
        }
        int draw = draw(key, "local");
        int rollback = options.number("rollback", 10);
        return draw < rollback ? ROLLBACK : draw < rollback + options.number("unknown", 15) ? UNKNOWN : COMMIT;
    }

    /** What a check-back is answered: what the local transaction said, if it said anything. */
    static String check(Options options, String key) {
        String local = local(options, key);
        int draw = draw(key, "check");
        return local.equals(UNKNOWN) ? (draw < 50 ? COMMIT : draw < 75 ? ROLLBACK : UNKNOWN) : local;
    }
}
