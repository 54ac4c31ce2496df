import java.lang.reflect.Field;
import java.net.InetAddress;
import java.util.Arrays;

/**
 * Starts another main class with "any local address" meaning 127.0.0.1, so that a broker, which offers no setting for
 * this, opens no port to the outside. Needs -Djava.net.preferIPv4Stack=true and java.net opened to reflection.
 */
final class Loopback {
    private Loopback() {
    }

    public static void main(String[] words) throws Exception {
        Field implementation = InetAddress.class.getDeclaredField("impl");
        implementation.setAccessible(true);
        Object resolver = implementation.get(null);
        Field any = resolver.getClass().getDeclaredField("anyLocalAddress");
        any.setAccessible(true);
        any.set(resolver, InetAddress.getByAddress("localhost", new byte[] {127, 0, 0, 1}));
        String[] rest = Arrays.copyOfRange(words, 1, words.length);
        Class.forName(words[0]).getMethod("main", String[].class).invoke(null, (Object) rest);
    }
}
