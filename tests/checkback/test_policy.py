"""The check-back table: when somebody is asked, how often, and what then."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.checkback.policy import (
    CASES,
    PRESETS,
    ROCKETMQ_3,
    ROCKETMQ_5,
    AtLimit,
    BadPolicy,
    Moment,
    Policy,
    Rule,
    Standing,
    Verdict,
    decide,
    immunity_ms,
    next_check,
    parse_policy,
    timeline,
)
from recovery.durations import format_duration, parse_duration

S = 1000
H = 3_600_000


def test_every_standing_fits_exactly_one_case() -> None:
    """All combinations of facts, against the table as it is printed."""
    for facts in product("01", repeat=3):
        fitting = [
            label
            for label, pattern, _ in CASES
            if all(want in ("-", fact) for want, fact in zip(pattern.split(), facts, strict=True))
        ]
        assert len(fitting) == 1, (facts, fitting)


def test_a_young_half_message_is_left_alone() -> None:
    assert decide(Standing(1000 * S), Rule(), 1005 * S) == (Verdict.WAIT, 1006 * S)
    assert decide(Standing(1000 * S), Rule(), 1006 * S).verdict is Verdict.ASK


def test_a_message_may_ask_for_more_or_less_time() -> None:
    """CHECK_IMMUNITY_TIME_IN_SECONDS replaces first_check_after, in both directions."""
    assert decide(Standing(0, immunity="60"), Rule(), 59 * S) == (Verdict.WAIT, 60 * S)
    assert decide(Standing(0, immunity="1"), Rule(), 1 * S).verdict is Verdict.ASK
    assert decide(Standing(0, immunity="0"), Rule(), 0).verdict is Verdict.ASK


@pytest.mark.parametrize("text", ["-1", "", "soon", "1.5", "٣", "9" * 5000, None])
def test_an_immunity_that_is_no_number_counts_as_not_asked(text: str | None) -> None:
    """RocketMQ takes transactionTimeOut for what it cannot parse, and for -1."""
    assert immunity_ms(text, Rule()) == 6 * S


def test_nobody_hides_behind_immunity_for_ever() -> None:
    rule = Rule(immunity_most_ms=10 * S)
    assert decide(Standing(0, immunity="999999"), rule, 10 * S).verdict is Verdict.ASK


def test_the_limit_comes_an_interval_after_the_last_check() -> None:
    """RocketMQ discards a half while its last check is under way; here the answer has its time."""
    rule = Rule(most_checks=2)
    assert decide(Standing(0, checks=2, next_check_ms=100 * S), rule, 99 * S).verdict is Verdict.WAIT
    assert decide(Standing(0, checks=2, next_check_ms=100 * S), rule, 100 * S).verdict is Verdict.LIMIT
    assert decide(Standing(0, checks=1, next_check_ms=100 * S), rule, 100 * S).verdict is Verdict.ASK


def test_the_longest_time_in_doubt_ends_any_waiting() -> None:
    rule = Rule(longest_ms=12 * H, most_checks=None)
    late = Standing(0, checks=3, next_check_ms=99 * H)
    assert decide(late, rule, 11 * H) == (Verdict.WAIT, 12 * H)
    assert decide(late, rule, 12 * H).verdict is Verdict.LIMIT


def test_intervals_double_up_to_the_longest() -> None:
    rule = Rule(interval_ms=30 * S, backoff=2, interval_most_ms=200 * S, jitter=0)
    assert [next_check(rule, number, 0, 0.5) // S for number in range(1, 6)] == [30, 60, 120, 200, 200]


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_jitter_moves_a_check_by_at_most_its_share(checks: int, chance: float) -> None:
    rule = Rule(jitter=0.25)
    plain = next_check(Rule(jitter=0.0), checks, 0, chance)
    assert 0.75 * plain - 1 <= next_check(rule, checks, 0, chance) <= 1.25 * plain + 1


def test_chance_spreads_checks_over_the_whole_range() -> None:
    rule = Rule(interval_ms=100 * S, jitter=0.1)
    assert next_check(rule, 1, 0, 0.0) == 90 * S
    assert next_check(rule, 1, 0, 0.5) == 100 * S


@pytest.mark.parametrize("backoff", [1e5, 1e308])
def test_a_backoff_whose_powers_no_float_holds_reaches_the_longest_interval(backoff: float) -> None:
    """`policy explain` and each round failed with OverflowError."""
    policy = parse_policy({"orders": {"backoff": backoff, "most_checks": "never", "jitter": 0}})
    rule = policy.rule("orders")
    assert next_check(rule, 1000, 0, chance=0.5) == rule.interval_most_ms


def test_rocketmq_5_asks_after_6_s_every_30_s_15_times_and_parks() -> None:
    moments = list(timeline(ROCKETMQ_5))
    assert [moment.earliest_ms for moment in moments] == [6 * S + 30 * S * number for number in range(16)]
    assert [moment.what for moment in moments] == [*(f"check {number}" for number in range(1, 16)), "park"]


def test_rocketmq_3_asks_each_minute_for_ever() -> None:
    *first, last = timeline(ROCKETMQ_3, 3)
    assert first == [
        Moment("check 1", 60 * S, 60 * S),
        Moment("check 2", 120 * S, 120 * S),
        Moment("check 3", 180 * S, 180 * S),
    ]
    assert last.what == "and so on"


def test_30_s_12_h_and_15_checks_can_be_said() -> None:
    """The rule of RocketMQ's documentation for its cloud: whichever limit comes first."""
    policy = parse_policy({"*": {"preset": "rocketmq-5", "first_check_after": "30s", "longest": "12h"}})
    assert policy.default == Rule(30 * S, 30 * S, 1.0, jitter=0.0, most_checks=15, longest_ms=12 * H)


def test_the_timeline_is_what_decide_does() -> None:
    """Followed minute by minute, a transaction that nobody answers for meets the moments of the timeline."""
    for rule in (*PRESETS.values(), Rule(longest_ms=2 * H), Rule(most_checks=3, at_limit=AtLimit.COMMIT)):
        still = Rule(**{**{name: getattr(rule, name) for name in Rule.__slots__}, "jitter": 0.0})  # type: ignore[attr-defined]
        met, standing = [], Standing(0)
        for _ in range(6):
            decision = decide(standing, still, 1 << 60)
            now_ms = decision.due_ms
            verdict = decide(standing, still, now_ms).verdict
            if verdict is Verdict.LIMIT:
                met.append(Moment(still.at_limit.value, now_ms, now_ms))
                break
            checks = standing.checks + 1
            met.append(Moment(f"check {checks}", now_ms, now_ms))
            standing = Standing(0, None, checks, next_check(still, checks, now_ms, 0.5))
        assert met == list(timeline(still))[: len(met)]


def test_the_moments_of_a_timeline_come_one_after_another() -> None:
    for before, after in pairwise(timeline(Rule())):
        assert before.earliest_ms < after.earliest_ms


def test_a_topic_begins_with_the_rule_for_all() -> None:
    policy = parse_policy({"*": {"interval": "5s"}, "orders": {"most_checks": 3, "at_limit": "rollback"}})
    assert policy.rule("orders") == Rule(interval_ms=5 * S, most_checks=3, at_limit=AtLimit.ROLLBACK)
    assert policy.rule("carts") == Rule(interval_ms=5 * S)
    assert Policy().rule("orders") == Rule()


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"orders": {"intervall": "5s"}}, "'intervall'"),
        ({"orders": {"at_limit": "drop"}}, "at_limit"),
        ({"orders": {"interval": "5 parsecs"}}, "interval"),
        ({"orders": {"interval": True}}, "interval"),
        ({"orders": {"interval": "0s"}}, "interval below"),
        ({"orders": {"backoff": 0.5}}, "backoff"),
        ({"orders": {"backoff": "big"}}, "backoff"),
        ({"orders": {"jitter": 2}}, "jitter"),
        ({"orders": {"most_checks": 0}}, "most_checks"),
        ({"orders": {"most_checks": 2.5}}, "most_checks cannot be 2.5"),
        ({"orders": {"most_checks": float("inf")}}, "most_checks cannot be inf"),
        ({"orders": {"jitter": True}}, "jitter cannot be True"),
        ({"orders": {"backoff": 10**400}}, "backoff cannot be"),
        ({"orders": {"interval": float("inf")}}, "interval cannot be inf"),
        ({"orders": {"interval": float("nan")}}, "interval cannot be nan"),
        ({"orders": {"interval": "36501d"}}, "at most 36500d"),  # no 64 bits hold a much later next check
        ({"orders": {"longest": "9" * 400 + "d"}}, "at most 36500d"),
        ({"orders": {"longest": "1s"}}, "longest"),
        ({"orders": {"preset": "rocketmq-4"}}, "rocketmq-4"),
        ({"orders": "often"}, "often"),
    ],
)
def test_unknown_names_and_impossible_values_are_refused(raw: dict[str, object], says: str) -> None:
    with pytest.raises(BadPolicy, match=says) as caught:
        parse_policy(raw)
    assert "orders" in str(caught.value)


def test_a_policy_that_is_text_is_refused() -> None:
    """As a template of Airflow gives it."""
    with pytest.raises(BadPolicy, match="policy is a table of rules by topic, not 'often'"):
        parse_policy("often")  # type: ignore[arg-type]


def test_durations_are_read_and_said() -> None:
    assert [parse_duration(text) for text in ("250ms", "6s", "1.5m", "12h", "30d", 3)] == [
        250, 6 * S, 90 * S, 12 * H, 720 * H, 3 * S,
    ]  # fmt: skip
    assert [format_duration(value) for value in (0, 250, 6 * S, 90 * S, 12 * H, 25 * H)] == [
        "0ms", "250ms", "6s", "1m 30s", "12h", "1d 1h",
    ]  # fmt: skip


def test_never_means_no_limit() -> None:
    assert parse_policy({"*": {"most_checks": "never", "longest": "never"}}).default.most_checks is None
