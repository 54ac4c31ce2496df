import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;

/** Counts what a run still waits for: questions to be asked and messages to reach their last consumer. */
final class Watch {
    private final Set<String> open = ConcurrentHashMap.newKeySet();
    private final AtomicLong lastMove = new AtomicLong(System.currentTimeMillis());

    void expect(String what) {
        open.add(what);
    }

    void done(String what) {
        open.remove(what);
        lastMove.set(System.currentTimeMillis());
    }

    int left() {
        return open.size();
    }

    /** Waits until nothing is open any more and all was quiet for some seconds, at most so many seconds in all. */
    void settle(int quietSeconds, int mostSeconds) throws InterruptedException {
        long end = System.currentTimeMillis() + mostSeconds * 1000L;
        while (System.currentTimeMillis() < end) {
            long quiet = System.currentTimeMillis() - lastMove.get();
            if (open.isEmpty() && quiet >= quietSeconds * 1000L) {
                return;
            }
            Thread.sleep(100);
        }
    }
}
