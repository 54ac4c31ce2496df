import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;

/** Counts what a run still waits for: questions to be asked and messages to reach their last consumer. */
final class Watch {
    private final Set<String> open = ConcurrentHashMap.newKeySet();
    private final AtomicLong lastProgress = new AtomicLong(System.currentTimeMillis());
    private final AtomicLong lastMove = new AtomicLong(System.currentTimeMillis());
    private final boolean askedForEver;

    /** 3.1.4 asks about an unsettled message for ever, so there only the first question counts. */
    Watch(boolean askedForEver) {
        this.askedForEver = askedForEver;
    }

    void expect(String what) {
        open.add(what);
    }

    void done(String what) {
        boolean first = open.remove(what);
        if (first) {
            lastProgress.set(System.currentTimeMillis());
        }
        if (first || !askedForEver) {
            lastMove.set(System.currentTimeMillis());
        }
    }

    int left() {
        return open.size();
    }

    /**
     * Waits until nothing is open any more and all was quiet for some seconds. A broker may never ask about a message
     * (5.x parks one with a long immunity unasked), so a longer time without progress ends the wait as well.
     */
    void settle(int quietSeconds, int stallSeconds) throws InterruptedException {
        lastProgress.set(System.currentTimeMillis());
        lastMove.set(System.currentTimeMillis());
        while (!(open.isEmpty() && past(lastMove, quietSeconds)) && !past(lastProgress, stallSeconds)) {
            Thread.sleep(100);
        }
    }

    private static boolean past(AtomicLong moment, int seconds) {
        return System.currentTimeMillis() - moment.get() >= seconds * 1000L;
    }
}
