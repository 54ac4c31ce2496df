"""What a verification has to say about a store, worked out from what its producers and consumers wrote down.

An end is sent one-way and nobody confirms it, so a kill leaves some transactions open to more than one answer. What is
certain is asked for exactly; what is not, only within those answers, and there the second reading decides.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tests.compat.witness import Account, Transaction

ENDS = {"COMMIT_MESSAGE": "committed", "ROLLBACK_MESSAGE": "rolled_back"}
CONFIRMED = {"half", "plain", "batch"}
Event = dict[str, Any]


def allowed_states(events: list[Event], version: str, ending: str) -> dict[str, set[str]]:
    """For the key of each transaction that was begun: the states that the store may show; `absent`: not there."""
    begun = {event["key"]: event for event in events if event["event"] == "sending" and event["kind"] == "half"}
    confirmed = {event["key"] for event in events if event["event"] == "half"}
    answers: dict[str, set[str]] = defaultdict(set)
    for event in events:
        if event["event"] == "check":
            answers[event["key"]].add(event["answer"])
    allowed = {}
    for key, event in begun.items():
        states = _ends(event, answers[key], version)
        if ending != "clean" or key not in confirmed:
            states |= {"in_doubt"} | ({"parked"} if version != "3.1.4" else set())
        if key not in confirmed:
            states |= {"absent"}
        allowed[key] = states
    return allowed


def _ends(event: Event, answers: set[str], version: str) -> set[str]:
    said = {event["local"]} | answers
    states = {ENDS[answer] for answer in said if answer in ENDS}
    if version == "3.1.4":
        return states or {"in_doubt"}
    if not states:
        return {"in_doubt", "parked"}
    # The last question that the broker permits itself is asked when the message is parked already.
    return states | ({"parked"} if answers and "rolled_back" in states else set())


def contradictions(events: list[Event], account: Account, version: str, ending: str) -> list[str]:
    """Where the second reading of the store and the truth disagree; empty for every store that a broker may leave."""
    allowed = allowed_states(events, version, ending)
    seen: dict[str, list[Transaction]] = defaultdict(list)
    for transaction in account.transactions:
        seen[transaction.key].append(transaction)
    wrong = [f"{key}: the store holds a transaction that nobody began" for key in seen.keys() - allowed.keys()]
    for key, states in allowed.items():
        shown = {transaction.state for transaction in seen[key]} or {"absent"}
        wrong.extend(f"{key}: {state}, expected {' or '.join(sorted(states))}" for state in sorted(shown - states))
        if len(seen[key]) > 1:
            wrong.append(f"{key}: stored as {len(seen[key])} transactions")
    return wrong


def lost_messages(events: list[Event], messages: dict[str, set[tuple[str, int, int]]]) -> list[str]:
    """The confirmed messages that `messages` (key -> topic, body length, body CRC) lacks."""
    return [
        event["key"]
        for event in events
        if event["event"] in CONFIRMED
        and (event["topic"], event["body_len"], event["body_crc"]) not in messages.get(event["key"], set())
    ]


def explained_kinds(account: Account, version: str, ending: str) -> set[str]:
    """The kinds of findings that what is in the store explains; a finding of another kind is a false alarm."""
    kinds: set[str] = set()
    for transaction in account.transactions:
        if len(transaction.delivered) > 1:
            kinds |= {"delivered-twice", "double-end"}
        if transaction.ends > 1:
            kinds |= {"double-end", "decision-conflict"}
        if version != "3.1.4" and transaction.delivered and not transaction.named_by_op:
            kinds |= {"committed-without-op"}
        if transaction.delivered and transaction.parked:
            kinds |= {"decision-conflict"}
    if version == "3.1.4" and account.copies:
        kinds |= {"redo-orphan"}  # send-backs of committed messages are written to the redo log as ends
    if version != "3.1.4" and account.diverted:
        kinds |= {"half-diverted"}
    if ending == "killed":  # what is dispatched from the CommitLog lags behind it
        kinds |= {"queue-missing", "index-missing", "redo-missing", "slot-missing", "slot-wrong-state", "torn-tail"}
    return kinds


TRAPPED = {
    "commit": {"committed"},
    "rollback": {"rolled_back"},
    "twice": {"committed"},
    "commit-rollback": {"committed"},
    "wrong-group": {"in_doubt", "parked"},
    "delayed": {"committed"},
}


def trapped_states(events: list[Event], version: str, copied: set[str]) -> dict[str, set[str]]:
    """For each transaction that the program Traps ended strangely: how it may stand.

    A commit after a rollback changes nothing in 3.x, where the first end counts; in 5.x the message is delivered. What
    a delay led astray in 5.x is no transaction of the half topic, and is left out. `copied` has the keys whose half
    message 5.x stored again: it does so with one that was rolled back, too, when it checks it before its op message is
    written (transactionOpBatchInterval, 3 s). The op message names the first half, so the copy is open, and is checked
    and given up as any other. RocketMQ: TransactionalMessageServiceImpl.check (5.3.3), isNeedCheck without op messages.
    """
    states = {}
    for event in events:
        if event["event"] == "trap" and (version == "3.1.4" or not event["name"].startswith(("delayed", "timed"))):
            late = {"rolled_back" if version == "3.1.4" else "committed"}
            states[event["key"]] = TRAPPED.get(event["name"], late)
            if event["name"] == "rollback" and event["key"] in copied:
                states[event["key"]] = {"rolled_back", "in_doubt", "parked"}
    return states
