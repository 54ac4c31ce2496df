import java.util.HashMap;
import java.util.Map;

/** The command line of every program here: words of the form name=value. */
final class Options {
    private final Map<String, String> values = new HashMap<>();

    Options(String[] words) {
        for (String word : words) {
            int cut = word.indexOf('=');
            if (cut < 1) {
                throw new IllegalArgumentException("expected name=value, got " + word);
            }
            values.put(word.substring(0, cut), word.substring(cut + 1));
        }
    }

    String text(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    String text(String name) {
        String value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException("missing option " + name);
        }
        return value;
    }

    int number(String name, int otherwise) {
        String value = values.get(name);
        return value == null ? otherwise : Integer.parseInt(value);
    }
}
