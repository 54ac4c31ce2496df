import java.io.FileWriter;
import java.io.IOException;
import java.io.PrintWriter;
import java.util.zip.CRC32;

/** What really happened, one JSON object a line, flushed line by line so that a kill loses at most the last one. */
final class Truth {
    private final PrintWriter out;

    Truth(String file) throws IOException {
        out = new PrintWriter(new FileWriter(file, java.nio.charset.StandardCharsets.UTF_8, true), true);
    }

    /** Writes one event; names and values alternate, values are strings, numbers or booleans. */
    synchronized void say(String event, Object... pairs) {
        StringBuilder line = new StringBuilder("{\"event\":").append(quoted(event));
        for (int i = 0; i < pairs.length; i += 2) {
            line.append(',').append(quoted((String) pairs[i])).append(':');
            Object value = pairs[i + 1];
            line.append(value instanceof String ? quoted((String) value) : String.valueOf(value));
        }
        out.println(line.append('}'));
    }

    static long crc(byte[] body) {
        CRC32 crc = new CRC32();
        crc.update(body);
        return crc.getValue();
    }

    private static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                quoted.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                quoted.append(String.format("\\u%04x", (int) c));
            } else {
                quoted.append(c);
            }
        }
        return quoted.append('"').toString();
    }
}
