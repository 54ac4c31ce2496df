"""The verbs about transactions in doubt, as an operator types them; on SQLite and PostgreSQL where a ledger speaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, select

import broker
from broker.transaction.events import BY, WHY, TransactionState
from broker.transaction.service import Half
from recovery.checkback.catalog import Catalog, attempts_of
from recovery.checkback.leader import LeaderLock
from recovery.checkback.manual import find, resolve
from recovery.checkback.round import CheckBack
from recovery.cli import checkback as verbs_check
from recovery.cli.shared import FINDINGS, USAGE, WELL
from tests.backends.shop import raiser
from tests.checkback.shop import Shop, open_store

Run = Callable[..., Any]


def url_text(url: URL) -> str:
    return url.render_as_string(hide_password=False)


@pytest.fixture
def in_doubt(tmp_path: Path) -> tuple[Path, list[Half]]:
    """A closed store with three half messages in doubt that no ledger knows."""
    path = tmp_path / "plain"
    with open_store(path) as store:
        messages = [broker.Message("orders", b"%d" % number, keys=[f"k{number}"]) for number in range(3)]
        halves = [
            store.transactions.prepare(message, "shop", extra_properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "0"})
            for message in messages
        ]
    return path, halves


def states(path: Path, halves: list[Half]) -> list[str]:
    with open_store(path) as store:
        return [store.transactions.state(half).name for half in halves]


# check-back


def test_check_back_settles_by_the_ledger(shop: Shop, monkeypatch: pytest.MonkeyPatch, run: Run, url: URL) -> None:
    shop.buy_and_vanish(1, 2)
    shop.buy_and_vanish(3, saved=False)
    monkeypatch.setattr(CheckBack, "now_ms", lambda _self: shop.now_ms() + 60_000)
    code, report = run("check-back", shop.path, "--ledger", url_text(url), "--json")
    assert (code, report["committed"], report["rolled_back"]) == (WELL, 2, 1)
    assert shop.orders() == shop.announced() == [1, 2]


def test_a_dry_run_lists_what_it_would_ask(in_doubt: tuple[Path, list[Half]], run: Run) -> None:
    path, halves = in_doubt
    code, text = run("check-back", path, "--dry-run")
    assert code == WELL
    assert [line.split()[2] for line in text.splitlines() if line.startswith("would ask")] == [
        half.message_id for half in halves
    ]
    assert states(path, halves) == ["PREPARED"] * 3


def was_saved(message: broker.ReceivedMessage) -> str:
    return {b"0": "commit", b"1": "rollback"}.get(message.body, "unknown")


def test_check_back_calls_a_function(in_doubt: tuple[Path, list[Half]], run: Run) -> None:
    path, halves = in_doubt
    code, report = run("check-back", path, "--call", f"{__name__}:was_saved", "--json")
    assert (code, report["committed"], report["rolled_back"], report["unknown"]) == (WELL, 1, 1, 1)
    assert states(path, halves) == ["COMMITTED", "ROLLED_BACK", "PREPARED"]
    (attempt,) = attempts_of(str(path)).values()
    assert attempt.checks == 1


def test_a_file_says_whom_to_ask_and_when(in_doubt: tuple[Path, list[Half]], run: Run, tmp_path: Path) -> None:
    path, halves = in_doubt
    config = tmp_path / "check-back.toml"
    config.write_text(
        f'[policy.orders]\nmost_checks = 1\ninterval = "1ms"\n[resolvers.shop]\ncall = "{__name__}:was_saved"\n'
    )
    run("check-back", path, "--config", config)
    code, report = run("check-back", path, "--config", config, "--json")
    assert (code, report["newly_parked"]) == (WELL, 1)
    assert states(path, halves) == ["COMMITTED", "ROLLED_BACK", "PARKED"]


def test_nobody_named_is_nobody_asked(in_doubt: tuple[Path, list[Half]], run: Run) -> None:
    path, halves = in_doubt
    code, report = run("check-back", path, "--json")
    assert (code, report["down"]) == (FINDINGS, 3)
    assert states(path, halves) == ["PREPARED"] * 3


def test_who_does_not_lead_does_nothing(in_doubt: tuple[Path, list[Half]], run: Run) -> None:
    path, halves = in_doubt
    lease = LeaderLock(str(path))
    assert lease.try_take()
    code, text = run("check-back", path, "--call", f"{__name__}:was_saved")
    assert code == WELL
    assert "leads" in text
    assert states(path, halves) == ["PREPARED"] * 3
    code, report = run("check-back", path, "--call", f"{__name__}:was_saved", "--anyway", "--json")
    assert report["asked"] == 3
    lease.release()


def test_every_goes_on_until_it_is_interrupted(
    in_doubt: tuple[Path, list[Half]], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, halves = in_doubt
    shown: list[Any] = []

    def interrupted(report: Any, as_json: bool) -> None:
        shown.append((report, as_json))
        if len(shown) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(verbs_check, "show_round", interrupted)
    code, _ = run("check-back", path, "--call", f"{__name__}:was_saved", "--every", "1ms")
    assert code == 130
    assert (shown[0][0].committed, shown[1][0].committed) == (1, 0)
    assert states(path, halves)[:2] == ["COMMITTED", "ROLLED_BACK"]


@pytest.mark.parametrize(
    "words",
    [
        ("--ledger", "sqlite:///x.db", "--http", "http://x"),
        ("--call", "nowhere:f"),
        ("--every", "often"),
        ("--config", "missing.toml"),
        ("--ledger", "nosql://x"),
        ("--http", "http://[::1"),
        ("--http", "localhost:8080/check-back"),
    ],
)
def test_what_makes_no_sense_is_a_sentence(in_doubt: tuple[Path, list[Half]], run: Run, words: tuple[str, ...]) -> None:
    code, text = run("check-back", in_doubt[0], *words)
    assert code == USAGE
    assert "Traceback" not in text
    assert "defect" not in text


@pytest.mark.parametrize("verb", ["check-back", "park-list"])
def test_a_store_that_is_not_there_is_not_made(run: Run, tmp_path: Path, verb: str) -> None:
    code, _ = run(verb, tmp_path / "typo")
    assert code == USAGE
    assert not (tmp_path / "typo").exists()


# park-list, recheck


def park(path: Path, halves: list[Half], why: str = "nobody knew") -> None:
    with open_store(path) as store:
        for half in halves:
            assert store.transactions.park(half, why)


def test_park_list_says_why(in_doubt: tuple[Path, list[Half]], run: Run) -> None:
    path, halves = in_doubt
    assert run("park-list", path) == (WELL, "Nothing is parked\n")
    park(path, halves[:2])
    code, listed = run("park-list", path, "--json")
    assert code == WELL
    assert [(one["message_id"], one["why"], one["keys"]) for one in listed] == [
        (halves[0].message_id, "nobody knew", ["k0"]),
        (halves[1].message_id, "nobody knew", ["k1"]),
    ]
    assert halves[0].message_id in run("park-list", path)[1]


def test_a_reason_does_nothing_to_the_terminal(in_doubt: tuple[Path, list[Half]], run: Run) -> None:
    """It quotes what a resolver met, and keys come from producers."""
    path, halves = in_doubt
    park(path, halves[:1], "\x1b[2Jnobody")
    assert r"old: \x1b[2Jnobody" in run("park-list", path)[1]


def test_recheck_takes_back_what_is_parked_and_counts_anew(in_doubt: tuple[Path, list[Half]], run: Run) -> None:
    path, halves = in_doubt
    run("check-back", path, "--call", "builtins:repr")  # says what means nothing: unknown
    park(path, halves[:1])
    code, dry = run("recheck", path, "--all-parked", "--dry-run", "--json")
    assert [(one["result"], one["why"]) for one in dry] == [("unparked", "dry run: nothing was done")]
    assert states(path, halves)[0] == "PARKED"
    code, done = run("recheck", path, *(half.message_id for half in halves), "--json")
    assert (code, [one["result"] for one in done]) == (WELL, ["unparked", "unchanged", "unchanged"])
    assert [one["why"] for one in done] == ["", "it was not parked", "it was not parked"]
    assert states(path, halves) == ["PREPARED"] * 3
    assert attempts_of(str(path)) == {}


# resolve


@pytest.mark.parametrize("name", ["message_id", "unique_key", "commitlog_offset"])
def test_a_person_decides_and_the_end_record_says_who_and_why(
    in_doubt: tuple[Path, list[Half]], run: Run, name: str
) -> None:
    path, halves = in_doubt
    decide = ("--commit", "--why", "paid, ticket 12", "--by", "ada", "--json")
    code, done = run("resolve", path, getattr(halves[1], name), *decide)
    assert (code, [one["result"] for one in done]) == (WELL, ["committed"])
    assert states(path, halves) == ["PREPARED", "COMMITTED", "PREPARED"]
    with open_store(path) as store:
        (end,) = [
            record for record in store.records() if record.prepared_transaction_offset == halves[1].commitlog_offset
        ]
        assert (end.property_map[WHY], end.property_map[BY]) == ("paid, ticket 12", "ada")
        catalog = Catalog.open(str(path), store.store_id)
        (decision,) = catalog.decisions()
        catalog.close()
    assert (decision["decision"], decision["decided_by"], decision["why"]) == ("committed", "ada", "paid, ticket 12")


@pytest.mark.parametrize(
    "words",
    [("--why", "M\udcfcller paid"), ("--why", "paid", "--by", "M\udcfcller"), ("--why", "paid\x01")],
    ids=["reason", "name", "separator"],
)
def test_what_a_record_cannot_hold_is_refused_before_the_ledger_decides(
    shop: Shop, run: Run, url: URL, words: tuple[str, ...]
) -> None:
    """As a terminal in Latin-1 gives it. A tombstone in the ledger would be the decision, without its reason."""
    shop.buy_and_vanish(1, saved=False)
    (half,) = shop.store.transactions.in_doubt()
    code, text = run("resolve", shop.path, half.message_id, "--rollback", *words, "--ledger", url_text(url))
    assert (code, "Give it in UTF-8" in text or "0x01" in text) == (USAGE, True)
    with shop.ledger.engine.connect() as reading:
        assert reading.execute(select(shop.ledger.rows)).all() == []  # no tombstone


def test_parked_ones_can_be_decided_at_once(in_doubt: tuple[Path, list[Half]], run: Run) -> None:
    path, halves = in_doubt
    park(path, halves[:2])
    code, dry = run("resolve", path, "--all-parked", "--rollback", "--why", "drill", "--dry-run", "--json")
    assert [one["result"] for one in dry] == ["rolled back"] * 2
    assert states(path, halves) == ["PARKED", "PARKED", "PREPARED"]
    assert run("resolve", path, "--all-parked", "--topic", "stock", "--rollback", "--why", "drill", "--json")[1] == []
    code, done = run("resolve", path, "--all-parked", "--rollback", "--why", "drill", "--json")
    assert (code, len(done)) == (WELL, 2)
    assert states(path, halves) == ["ROLLED_BACK", "ROLLED_BACK", "PREPARED"]


def test_operator_against_producer_the_first_decision_stands(in_doubt: tuple[Path, list[Half]]) -> None:
    """The operator looked while it was in doubt; the producer was faster."""
    path, halves = in_doubt
    with open_store(path) as store:
        (found,) = find(store, [halves[0].message_id])
        store.transactions.commit(halves[0])
        (refused,) = resolve(store, [found], TransactionState.ROLLED_BACK, why="w", by="ada", now_ms=0)
        (same,) = resolve(store, [found], TransactionState.COMMITTED, why="w", by="ada", now_ms=0)
    assert (refused.result, same.result) == ("refused", "unchanged")
    assert "first decision stands" in refused.why


def test_operator_against_producer_the_operator_is_faster(in_doubt: tuple[Path, list[Half]], run: Run) -> None:
    path, halves = in_doubt
    run("resolve", path, halves[0].message_id, "--rollback", "--why", "gone")
    with open_store(path) as store, pytest.raises(broker.AlreadyEnded):
        store.transactions.commit(halves[0])


@pytest.mark.parametrize(
    "words",
    [
        ("--commit", "--rollback", "--why", "w"),
        ("--why", "w"),
        ("--commit",),
        ("--commit", "--why", "  "),
        ("--commit", "--why", "w", "--all-parked"),
        ("--commit", "--why", "w", "--topic", "orders"),
    ],
)
def test_half_a_decision_is_refused(in_doubt: tuple[Path, list[Half]], run: Run, words: tuple[str, ...]) -> None:
    path, halves = in_doubt
    code, _ = run("resolve", path, halves[0].message_id, *words)
    assert code == USAGE
    assert states(path, halves) == ["PREPARED"] * 3


def test_an_id_that_names_nothing_is_a_sentence(in_doubt: tuple[Path, list[Half]], run: Run) -> None:
    code, text = run("resolve", in_doubt[0], "12345678", "--commit", "--why", "w")
    assert code == USAGE
    assert "no half message in doubt" in text


# resolve, where a ledger has the say


def the_half(shop: Shop) -> Half:
    (half,) = shop.store.transactions.in_doubt()
    return half


def test_a_ledger_is_not_contradicted(shop: Shop, run: Run, url: URL) -> None:
    """What was saved cannot be rolled back by hand, nor what was not saved be announced."""
    shop.buy_and_vanish(1)
    half = the_half(shop)
    code, (refused,) = run(
        "resolve", shop.path, half.commitlog_offset, "--rollback", "--why", "w", "--ledger", url_text(url), "--json"
    )
    assert (code, refused["result"]) == (FINDINGS, "refused")
    assert "committed" in refused["why"]
    code, (done,) = run(
        "resolve", shop.path, half.message_id, "--commit", "--why", "w", "--ledger", url_text(url), "--json"
    )
    assert done["result"] == "committed"
    shop.buy_and_vanish(2, saved=False)
    code, (refused,) = run(
        "resolve", shop.path, the_half(shop).message_id, "--commit", "--why", "w", "--ledger", url_text(url), "--json"
    )
    assert (code, refused["result"]) == (FINDINGS, "refused")
    assert shop.orders() == shop.announced() == [1]


def test_a_rollback_by_hand_ends_all_messages_of_the_transaction(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, run: Run, url: URL
) -> None:
    """The tombstone goes in first: check-back then does the same with the other message."""
    with monkeypatch.context() as patch:
        patch.setattr(shop.store.transactions, "rollback", raiser(broker.StoreFull("the end is lost")))
        with pytest.raises(ZeroDivisionError):
            shop.buy(1, topics=("orders", "stock"), in_between=raiser(ZeroDivisionError()))
    first, second = shop.store.transactions.in_doubt()
    code, (done,) = run(
        "resolve", shop.path, first.message_id, "--rollback", "--why", "w", "--ledger", url_text(url), "--json"
    )
    assert (code, done["result"]) == (WELL, "rolled back")
    assert shop.check_back().rolled_back == 1
    assert shop.store.transactions.state(second) is TransactionState.ROLLED_BACK


def test_operator_against_a_running_transaction(shop: Shop, run: Run, url: URL) -> None:
    """Its row or its database is locked: the decision is refused, and the transaction goes on."""

    def decide(session: Any, _transaction: Any) -> None:
        session.flush()
        code, (refused,) = run(
            "resolve",
            shop.path,
            the_half(shop).message_id,
            "--rollback",
            "--why",
            "w",
            "--ledger",
            url_text(url),
            "--json",
        )
        assert (code, refused["result"]) == (FINDINGS, "refused")
        assert "still runs" in refused["why"]

    shop.buy(1, in_between=decide)
    assert shop.orders() == shop.announced() == [1]


def test_without_its_ledger_a_decision_needs_a_word(shop: Shop, run: Run) -> None:
    shop.buy_and_vanish(1)
    half = the_half(shop)
    code, (refused,) = run("resolve", shop.path, half.message_id, "--commit", "--why", "w", "--json")
    assert (code, refused["result"]) == (FINDINGS, "refused")
    assert "--without-ledger" in refused["why"]
    code, (done,) = run("resolve", shop.path, half.message_id, "--commit", "--why", "w", "--without-ledger", "--json")
    assert (code, done["result"]) == (WELL, "committed")


# policy explain


def test_policy_explain_prints_the_timeline(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "check-back.toml"
    config.write_text('[policy.orders]\npreset = "rocketmq-5"\nmost_checks = 2\nat_limit = "rollback"\n')
    code, text = run("policy", "explain", "orders", "--config", config)
    assert code == WELL
    assert text.splitlines()[1:] == [
        "  check 1    after 6s",
        "  check 2    after 36s",
        "  rollback   after 1m 6s",
    ]
    code, said = run("policy", "explain", "carts", "--config", config, "--json")
    assert said["timeline"][-1]["what"] == "park"


def test_policy_explain_refuses_unknown_names(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "check-back.toml"
    config.write_text("[policy.orders]\nmost_cheks = 2\n")
    code, text = run("policy", "explain", "orders", "--config", config)
    assert code == USAGE
    assert "most_cheks" in text
