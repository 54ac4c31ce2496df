/** How a consumer takes a message: at once, after some refusals, never, or never with no retry at all. */
final class Taste {
    private final int refusals;
    private final int most;
    private final boolean straightToDead;

    private Taste(int refusals, int most, boolean straightToDead) {
        this.refusals = refusals;
        this.most = most;
        this.straightToDead = straightToDead;
    }

    static Taste of(Options options, String key) {
        int most = options.number("retries", 2);
        int draw = Plan.draw(key, "consume");
        if (key.endsWith("-0") || draw >= 75 && draw < 92) {
            return new Taste(most + 1, most, false);
        }
        return new Taste(draw < 35 ? 0 : 1 + draw % most, most, draw >= 92);
    }

    boolean accepts(int times) {
        return !straightToDead && times >= refusals;
    }

    boolean dies(int times) {
        return !accepts(times) && (straightToDead || times >= most);
    }

    /** The delay level of the next try: 0 lets the broker choose, -1 asks for the dead letters. */
    int delayLevel() {
        return straightToDead ? -1 : 0;
    }
}
