"""When to check a transaction in doubt, how often, and what then: a table and pure functions of plain values.

    policy = parse_policy({"*": {"interval": "30s"}, "orders": {"most_checks": 5, "at_limit": "rollback"}})
    decide(standing, policy.rule("orders"), now_ms=...)     -> WAIT until, ASK, or LIMIT

Nothing here reads a clock or rolls dice: the time and the chance are arguments. RocketMQ's rules, for comparison:
TransactionalMessageServiceImpl.check (5.3.3), TransactionStateService (3.1.4).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import islice, product
from typing import Any, NamedTuple

from broker.errors import BrokerError
from broker.format.properties import decimal
from recovery.durations import parse_duration

DEFAULT_TOPIC = "*"
"""The name in a policy that stands for all topics that it does not name."""
_EXPONENT_MAX = 64  # backoff ** 64 is longer than any store lives


class BadPolicy(BrokerError, ValueError):
    """A policy that names something unknown or makes no sense."""


class AtLimit(enum.StrEnum):
    """What happens to a transaction that nobody answered for often or long enough."""

    PARK = "park"
    """It waits for a person; nothing is decided."""
    ROLLBACK = "rollback"
    """It is rolled back, unless a ledger may answer one day: then it is parked."""
    COMMIT = "commit"
    """It is committed, unless a ledger may answer one day: then it is parked."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How transactions of one topic are checked. Durations are milliseconds here and text (`30s`) in a policy.

    The names of RocketMQ 5.x: first_check_after is transactionTimeOut, interval transactionCheckInterval, most_checks
    transactionCheckMax.
    """

    first_check_after_ms: int = 6_000
    """A half message younger than this is left alone."""
    interval_ms: int = 30_000
    """Between the first check and the second."""
    backoff: float = 2.0
    """Each interval is so many times the one before it, 1 at least."""
    interval_most_ms: int = 3_600_000
    """No interval is longer."""
    jitter: float = 0.1
    """An interval is longer or shorter by up to this share, from 0 to 1, so that checks spread out."""
    most_checks: int | None = 15
    """How many checks without a decision bring it to its limit. None: no limit."""
    longest_ms: int | None = None
    """So long in doubt, since its half message was stored, and it is at its limit. None: no limit."""
    at_limit: AtLimit = AtLimit.PARK
    """What happens to a transaction at its limit: park, rollback or commit."""
    immunity_most_ms: int | None = None
    """The longest immunity that a message may ask for itself. None: as long as it likes."""


ROCKETMQ_5 = Rule(backoff=1.0, jitter=0.0)
"""RocketMQ 5.3.3: after 6 s, every 30 s, 15 times; then to TRANS_CHECK_MAX_TIME_TOPIC, which is parking."""

ROCKETMQ_3 = Rule(60_000, 60_000, backoff=1.0, jitter=0.0, most_checks=None)
"""RocketMQ 3.1.4: every 60 s, until its segment of the CommitLog expires."""

PRESETS = {"default": Rule(), "rocketmq-5": ROCKETMQ_5, "rocketmq-3": ROCKETMQ_3}
"""The rules that a policy may name as its `preset`."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A rule for each topic, and one for all others."""

    default: Rule = Rule()
    """For the topics that have none of their own."""
    topics: Mapping[str, Rule] = field(default_factory=dict)
    """By topic."""

    def rule(self, topic: str) -> Rule:
        """The rule of a topic."""
        return self.topics.get(topic, self.default)


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of one transaction in doubt when it is looked at. A parked one is not looked at."""

    stored_ms: int
    """When its half message was stored, by the store's clock, in milliseconds since 1970."""
    immunity: str | None = None
    """Its property CHECK_IMMUNITY_TIME_IN_SECONDS; None without it."""
    checks: int = 0
    """How often somebody was asked and did not know."""
    next_check_ms: int | None = None
    """When it is due again, in milliseconds since 1970; None: it was never checked."""


class Verdict(enum.Enum):
    """What to do now, and the sentence that explains it."""

    WAIT = "it is not due yet"
    """Look again when it is due."""
    LIMIT = "it was checked often or long enough"
    """Do what the rule's `at_limit` says."""
    ASK = "it is due"
    """Ask its resolver."""


class Decision(NamedTuple):
    """A verdict, and for WAIT the time at which to look again."""

    verdict: Verdict
    """What to do now."""
    due_ms: int = 0
    """When it is, or was, due, in milliseconds since 1970."""


# label  over  early  worn     over: longer in doubt than longest    early: immune, too young, or put off
CASES = (  #                   worn: asked as often as most_checks
    ("@A", "  1     -     -  ", Verdict.LIMIT),
    ("@B", "  0     1     -  ", Verdict.WAIT),  # the last answer gets its whole interval before the limit
    ("@C", "  0     0     1  ", Verdict.LIMIT),
    ("@D", "  0     0     0  ", Verdict.ASK),
)
"""(label, pattern of the facts over, early, worn, verdict): 1 yes, 0 no, - either. One row fits each case."""


def _case(*facts: bool) -> Verdict:
    """The verdict of the row of CASES that fits; a test proves that it is always exactly one."""
    signs = ["01"[fact] for fact in facts]
    (verdict,) = (
        verdict
        for _, pattern, verdict in CASES
        if all(want in ("-", sign) for want, sign in zip(pattern.split(), signs, strict=True))
    )
    return verdict


_BY_FACTS = {facts: _case(*facts) for facts in product((False, True), repeat=3)}


def decide(standing: Standing, rule: Rule, now_ms: int) -> Decision:
    """What to do with a transaction in doubt at `now_ms`, milliseconds since 1970 by the store's clock."""
    due_ms = due(standing, rule)
    over = rule.longest_ms is not None and now_ms - standing.stored_ms >= rule.longest_ms
    worn = rule.most_checks is not None and standing.checks >= rule.most_checks
    return Decision(_BY_FACTS[over, now_ms < due_ms, worn], due_ms)


def due(standing: Standing, rule: Rule) -> int:
    """When it is to be looked at, in milliseconds since 1970.

    First when its immunity ends, later as it was put off; never after the longest.
    """
    due_ms = standing.next_check_ms
    if due_ms is None:
        due_ms = standing.stored_ms + immunity_ms(standing.immunity, rule)
    if rule.longest_ms is not None:
        due_ms = min(due_ms, standing.stored_ms + rule.longest_ms)
    return due_ms


def immunity_ms(text: str | None, rule: Rule) -> int:
    """How many milliseconds a half message is left alone: as long as it asks for, else first_check_after.

    `text` is its CHECK_IMMUNITY_TIME_IN_SECONDS. None, what is not a number, or below zero, counts as not asked.
    RocketMQ: TransactionalMessageServiceImpl.getImmunityTime (5.3.3).
    """
    asked_s = decimal(text or "")
    if asked_s is None:
        return rule.first_check_after_ms
    asked_ms = asked_s * 1000
    return asked_ms if rule.immunity_most_ms is None else min(asked_ms, rule.immunity_most_ms)


def next_check(rule: Rule, checks: int, now_ms: int, chance: float) -> int:
    """When to ask again, in milliseconds since 1970, after check number `checks` (the first is 1) at `now_ms`.

    `chance` in [0, 1) places the jitter.
    """
    return now_ms + round(interval(rule, checks) * (1 + rule.jitter * (2 * chance - 1)))


def interval(rule: Rule, checks: int) -> float:
    """Milliseconds between check number `checks` (the first is 1) and the next, without jitter."""
    most = float(max(rule.interval_most_ms, rule.interval_ms))
    try:
        return min(rule.interval_ms * rule.backoff ** min(max(checks - 1, 0), _EXPONENT_MAX), most)
    except OverflowError:  # a power that no float holds
        return most


class Moment(NamedTuple):
    """A line of a timeline: what happens, and between which times after the half message was stored."""

    what: str
    """`check 1`, ..., what is done at the limit (park, rollback, commit), or `and so on`."""
    earliest_ms: int
    """Milliseconds after the half message was stored, with the shortest intervals that the jitter gives."""
    latest_ms: int
    """The same with the longest."""


def timeline(rule: Rule, most_lines: int = 20) -> Iterator[Moment]:
    """What happens to a transaction that nobody can answer for, if somebody looks all the time.

    At most `most_lines` checks, then the limit or `and so on`.
    """
    earliest = latest = float(rule.first_check_after_ms)
    number = 1
    while number <= most_lines:
        worn = rule.most_checks is not None and number > rule.most_checks
        if rule.longest_ms is not None and (latest >= rule.longest_ms or (worn and earliest >= rule.longest_ms)):
            yield Moment(rule.at_limit.value, min(round(earliest), rule.longest_ms), rule.longest_ms)
            return
        if worn:
            yield Moment(rule.at_limit.value, round(earliest), round(latest))
            return
        yield Moment(f"check {number}", round(earliest), round(latest))
        earliest += interval(rule, number) * (1 - rule.jitter)
        latest += interval(rule, number) * (1 + rule.jitter)
        number += 1
    yield Moment("and so on", round(earliest), round(latest))


# Text to rules

_DURATIONS = {
    "first_check_after": "first_check_after_ms",
    "interval": "interval_ms",
    "interval_most": "interval_most_ms",
    "longest": "longest_ms",
    "immunity_most": "immunity_most_ms",
}
_OTHERS = ("backoff", "jitter", "most_checks", "at_limit")
_NULLABLE = frozenset({"longest", "immunity_most", "most_checks"})
NAMES = ("preset", *_DURATIONS, *_OTHERS)
"""What a topic's table in a policy may hold."""


def parse_policy(raw: Mapping[str, Any]) -> Policy:
    """The policy that a mapping from topics to rules means; the topic `*` stands for all that are not named.

    A rule is a mapping from NAMES to values: durations as text (`30s`) or seconds, `never` or None for no limit. A
    topic's rule begins as the one for `*`, or as its `preset` (default, rocketmq-5, rocketmq-3). Raises BadPolicy for
    an unknown name or a value that makes no sense.
    """
    if not isinstance(raw, Mapping):  # a template of Airflow gives text
        raise BadPolicy(f"policy is a table of rules by topic, not {raw!r:.60}")
    default = parse_rule(raw.get(DEFAULT_TOPIC, {}), Rule(), DEFAULT_TOPIC)
    topics = {topic: parse_rule(one, default, topic) for topic, one in raw.items() if topic != DEFAULT_TOPIC}
    return Policy(default, topics)


def parse_rule(raw: Any, begin: Rule, topic: str) -> Rule:
    """One rule from its names and values; what they leave out is as in `begin`. `topic` is for errors alone.

    Raises BadPolicy for an unknown name or a value that makes no sense.
    """
    if not isinstance(raw, Mapping):
        raise BadPolicy(f"the policy of topic {topic} is a table of names and values, not {raw!r:.60}")
    for name in raw:
        if name not in NAMES:
            raise BadPolicy(f"the policy of topic {topic} has no {name!r}; the names are {', '.join(NAMES)}")
    preset = raw.get("preset")
    if preset is not None and preset not in PRESETS:
        raise BadPolicy(f"the policy of topic {topic}: there is no preset {preset!r}, only {', '.join(PRESETS)}")
    rule = begin if preset is None else PRESETS[preset]
    given = {name: value for name, value in raw.items() if name != "preset"}
    values: dict[str, Any] = {_DURATIONS.get(name, name): _value(name, value, topic) for name, value in given.items()}
    return _checked(replace(rule, **values), topic)


def _value(name: str, value: Any, topic: str) -> Any:
    if name in _NULLABLE and value in (None, "never"):
        return None
    try:
        if name in _DURATIONS:
            return parse_duration(value)
        if name == "at_limit":
            return AtLimit(value)
        return _number(value, whole=name == "most_checks")
    except (TypeError, ValueError, OverflowError) as error:
        raise BadPolicy(f"the policy of topic {topic}: {name} cannot be {value!r:.60} ({error})") from None


def _number(value: Any, *, whole: bool) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("it is a number")
    if whole and value != int(value):
        raise ValueError("it is a whole number")
    return int(value) if whole else float(value)


def _checked(rule: Rule, topic: str) -> Rule:
    wrong = {
        "first_check_after below zero": rule.first_check_after_ms < 0,
        "interval below 1ms": rule.interval_ms < 1,
        "interval_most below 1ms": rule.interval_most_ms < 1,
        "backoff below 1": not 1 <= rule.backoff < float("inf"),
        "jitter outside 0 to 1": not 0 <= rule.jitter <= 1,
        "most_checks below 1": rule.most_checks is not None and rule.most_checks < 1,
        "longest below first_check_after": rule.longest_ms is not None and rule.longest_ms < rule.first_check_after_ms,
        "immunity_most below zero": rule.immunity_most_ms is not None and rule.immunity_most_ms < 0,
    }
    for reason, is_so in wrong.items():
        if is_so:
            raise BadPolicy(f"the policy of topic {topic} makes no sense: {reason}")
    return rule


def as_json(rule: Rule) -> dict[str, Any]:
    """The rule by the names of its fields, durations in milliseconds, ready for JSON."""
    return {one.name: getattr(rule, one.name) for one in fields(rule)}


class Turn(NamedTuple):
    """A transaction that is due. `half` is its half message, or None: then it is read when its turn comes, since a
    million may be due at once, where nobody answered for an hour.
    """

    commitlog_offset: int
    """Byte position of its half message."""
    topic: str
    """Where its consumers will see it."""
    checks: int
    """How often somebody was asked and answered."""
    due_ms: int
    """Since when it is due, in milliseconds since 1970."""
    at_limit: bool
    """Whether it is at the limit of its policy."""
    half: Any
    """Its half message, where that was read."""


def fairly(due: Iterable[Turn], per_topic: int | None) -> Iterator[Turn]:
    """The topics by turns, each with its longest due first, and no more than `per_topic` of each."""
    topics: dict[str, list[Turn]] = {}
    for one in due:
        topics.setdefault(one.topic, []).append(one)
    turns = [iter(sorted(ones, key=_by_due)[:per_topic]) for _, ones in sorted(topics.items())]
    while turns:
        left = []
        for turn in turns:
            for one in islice(turn, 1):
                yield one
                left.append(turn)
        turns = left


def _by_due(one: Turn) -> tuple[int, int]:
    return one.due_ms, one.commitlog_offset


def spread(offsets: Sequence[int], most: int) -> Sequence[int]:
    """At most so many, from all over the log: a flood in one place does not hide what follows it."""
    return offsets if len(offsets) <= most else offsets[:: -(-len(offsets) // most)]
