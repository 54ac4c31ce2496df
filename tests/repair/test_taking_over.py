"""Taking a store of RocketMQ over: refused before anything is changed, by one process alone, and killed at any step."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import broker
from broker.errors import BrokerError, CorruptStore, StoreError, StoreLocked
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.disk.store_lock import StoreLock
from broker.store.read.layout import read_store_file
from recovery.rebuild.rebuilder import rebuild
from recovery.rebuild.replaced import replacements
from recovery.rebuild.undo import undo
from recovery.repair import crash, taking_over
from recovery.verify.verifier import verify
from tests.cli.command import command
from tests.rebuild.derived_files import on_disk, store_with_a_topic_made_again
from tests.rebuild.dying import Killed, dying
from tests.repair.taking import seen, taken

PLAIN = "kinds/rocketmq-5.3.3-plain"
FIRST = f"{0:020}"


@pytest.fixture
def store(golden_copy: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    (tmp_path / "kinds").mkdir()
    return golden_copy


@pytest.fixture
def is_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody watches for three seconds whether a store of these tests changes."""
    monkeypatch.setattr(crash, "check_still", lambda *_arguments, **_options: None)


def derived_of(path: Path) -> dict[str, str]:
    """The derived files that a broker left, below the store."""
    parts = ("consumequeue/", "index/", "transaction/")
    return {name: digest for name, digest in on_disk(path).items() if name.startswith(parts)}


def kept_of(path: Path) -> dict[str, str]:
    """What is kept aside, as if it lay in the store."""
    found: dict[str, str] = {}
    for one in (path / "checkback" / "replaced").iterdir():
        found |= derived_of(one)
    return found


# Refused first


def test_a_store_with_messages_of_a_deleted_topic_stays_with_its_broker(tmp_path: Path) -> None:
    """Its topic was made again. Taken over, consumers got the messages of before once more."""
    path = tmp_path / "store"
    places = store_with_a_topic_made_again(path)
    before = on_disk(path)
    with pytest.raises(StoreError, match=f"OrderTopic was deleted and made again.* at CommitLog offset {places[5]}"):
        taken(path)
    assert on_disk(path) == before


def flipped(path: Path) -> None:
    with open(path / "commitlog" / FIRST, "r+b") as log:
        log.seek(432604)
        byte = log.read(1)
        log.seek(432604)
        log.write(bytes([byte[0] ^ 1]))


def timeless(path: Path) -> None:
    with open(path / "commitlog" / FIRST, "r+b") as log:
        log.seek(56)  # of the first record, its store_timestamp_ms
        log.write(b"\xff" * 8)


def cut(path: Path) -> None:
    os.truncate(path / "commitlog" / FIRST, 10504)


def last_cut(path: Path) -> None:
    os.truncate(max((path / "commitlog").iterdir()), 20480)


def longer(path: Path) -> None:
    os.truncate(min((path / "commitlog").iterdir()), 65536)  # as of two that somebody put into one


def last_gone(path: Path) -> None:
    max((path / "commitlog").iterdir()).unlink()


@pytest.mark.usefixtures("is_still")
@pytest.mark.parametrize(
    ("name", "harm", "sentence"),
    [
        ("rocketmq-5.3.3-clean", flipped, "damaged at CommitLog offset 432516"),
        ("rocketmq-5.3.3-clean", timeless, "at CommitLog offset 0: the record's store_timestamp_ms is not a time"),
        (PLAIN, cut, "has 10504 bytes: it was cut"),
        ("kinds/rocketmq-5.5.0-segments", last_cut, "has 20480 bytes, the others 32768: it was cut"),
        ("kinds/rocketmq-5.5.0-segments", longer, "has 65536 bytes, the others 32768: its broker did not make it so"),
        ("kinds/rocketmq-5.5.0-segments", last_gone, f"segment {196608:020} is missing"),
    ],
)
def test_a_log_that_is_damaged_or_incomplete_is_refused_before_anything_is_changed(
    store: Callable[[str], Path], name: str, harm: Callable[[Path], None], sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = store(name)
    harm(path)
    before = seen(path)
    ran = command(capsys, "recover", path, "--apply", "--broker-is-stopped")
    assert (ran.code, sentence in ran.err) == (4, True), ran.err
    assert seen(path) == before


@pytest.mark.parametrize(
    ("name", "harm", "sentence"),
    [
        (PLAIN, cut, "has 10504 bytes: it was cut"),
        ("kinds/rocketmq-5.5.0-segments", last_cut, "has 20480 bytes, the others 32768: it was cut"),
        ("kinds/rocketmq-5.5.0-segments", longer, "has 65536 bytes, the others 32768: its broker did not make it so"),
        ("kinds/rocketmq-5.5.0-segments", last_gone, f"segment {196608:020} is missing"),
    ],
)
def test_without_apply_it_says_that_it_would_refuse(
    store: Callable[[str], Path], name: str, harm: Callable[[Path], None], sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = store(name)
    ran = command(capsys, "recover", path)
    assert (ran.code, "would refuse" in ran.out) == (1, False), ran.out
    harm(path)
    before = seen(path)
    ran = command(capsys, "recover", path)
    assert (ran.code, ran.out.count("--apply would refuse: "), sentence in ran.out) == (4, 1, True), ran.out
    ran = command(capsys, "recover", path, "--json")
    assert (ran.code, sentence in json.loads(ran.out)["refused"]) == (4, True), ran.out
    assert seen(path) == before


def test_an_empty_segment_that_its_broker_was_making_is_no_damage(store: Callable[[str], Path]) -> None:
    path = store("kinds/rocketmq-5.5.0-segments")
    unmade = path / "commitlog" / f"{229376:020}"
    unmade.touch()
    taken(path)
    assert not unmade.exists()
    assert verify(path).ok


@pytest.mark.usefixtures("is_still")
def test_a_single_segment_of_a_round_size_was_not_cut(
    store: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """A real broker that was set to 1,000,000 bytes: its segment was to be given its size again, which it had."""
    path = store(PLAIN)
    os.truncate(path / "commitlog" / FIRST, 11_000)
    ran = command(capsys, "recover", path, "--apply", "--broker-is-stopped")
    assert ran.code == 0, ran.err
    with broker.open(path, sync="os") as opened:
        for number in range(8):
            opened.append(broker.Message("Plain", b"b" * 200, keys=[f"k{number}"]))
    assert {file.stat().st_size for file in (path / "commitlog").iterdir()} == {11_000}
    assert verify(path).ok


@pytest.mark.usefixtures("is_still")
def test_a_log_that_is_short_is_taken_over_with_a_word(
    store: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = store("kinds/rocketmq-5.5.0-segments")
    last_gone(path)
    with pytest.raises(CorruptStore, match="--even-short"):
        taken(path)
    assert command(capsys, "recover", path, "--even-short").code == 2
    derived = derived_of(path)
    assert command(capsys, "recover", path, "--apply", "--broker-is-stopped", "--even-short").code == 0
    assert kept_of(path) == derived
    assert verify(path).ok


@pytest.mark.usefixtures("is_still")
def test_a_store_with_a_half_message_among_delayed_ones_stays_its_brokers(store: Callable[[str], Path]) -> None:
    """Taken over, seven parked transactions were rolled back, and verification found 28 wrong slots."""
    path = store("kinds/rocketmq-5.3.3-timed-halves")
    before = seen(path)
    with pytest.raises(StoreError, match=r"CommitLog offset 16882 has a delay.*Leave the store to its broker"):
        taken(path)
    assert seen(path) == before


def test_every_message_of_a_log_that_its_broker_cleaned_is_received(store: Callable[[str], Path]) -> None:
    """Its first segment is gone, as retention leaves it: each queue begins behind what is gone, and is not empty."""
    path = store("kinds/rocketmq-5.5.0-segments")
    (path / "commitlog" / FIRST).unlink()
    with broker.open(path, read_only=True) as reader:
        before = [reader.queue_range("Plain", queue_id) for queue_id in (0, 1)]
    taken(path)
    with broker.open(path) as live, live.consumer("late", "Plain") as consumer:
        assert [live.queue_range("Plain", queue_id) for queue_id in (0, 1)] == before
        received = 0
        while consumer.receive(timeout_s=0) is not None:
            received += 1
    assert received == sum(end - first for first, end in before) == 406
    assert verify(path).ok


@pytest.mark.usefixtures("is_still")
def test_a_queue_all_of_whose_messages_expired_goes_on_at_its_number(store: Callable[[str], Path]) -> None:
    """The broker's groups have read so far: below it they would receive nothing."""
    path = store("kinds/rocketmq-5.5.0-segments")
    for segment in sorted((path / "commitlog").iterdir())[:-1]:
        segment.unlink()
    half = "RMQ_SYS_TRANS_HALF_TOPIC"
    with broker.open(path, read_only=True) as reader:
        assert reader.queue_range(half, 0) == (40, 40)
    taken(path)
    with broker.open(path) as live:
        assert live.queue_range(half, 0) == (40, 40)
        prepared = live.transactions.prepare(broker.Message("Plain", b"new"), "group")
        live.transactions.commit(prepared)
        assert live.queue_range(half, 0) == (40, 41)
    assert verify(path).ok


def test_undo_says_where_the_files_of_a_store_that_was_taken_over_are(store: Callable[[str], Path]) -> None:
    path = store(PLAIN)
    taken(path)
    (kept,) = (path / "checkback" / "replaced").iterdir()
    with pytest.raises(StoreError, match=f"nothing to undo; the files of its broker.*{kept}"):
        undo(path)


# One alone


def test_beside_another_process_it_is_refused(store: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = store(PLAIN)
    before = seen(path)
    lock = StoreLock(str(path / "lock"))
    made = crash.plan(crash.survey(path))
    assert lock.try_exclusive()
    try:
        with pytest.raises(StoreLocked, match="locked by process"):
            taking_over.take_over(str(path), Disk(), made.survey)
    finally:
        lock.release()
    assert seen(path) == before


@pytest.mark.parametrize("when", ["before it looks", "while it looks"])
def test_the_second_of_two_changes_nothing(
    store: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Both have seen the store of a broker; the first is done before the second gets the lock."""
    path = store(PLAIN)
    second = crash.plan(crash.survey(path))
    if when == "before it looks":
        taken(path)
    else:
        look = taking_over.rebuild
        monkeypatch.setattr(taking_over, "rebuild", lambda *_arguments, **_options: (
            monkeypatch.setattr(taking_over, "rebuild", look), taken(path), look(path))[-1])  # fmt: skip
    with pytest.raises(StoreLocked, match="was changed by another process"):
        crash.apply(second, broker_is_stopped=True, still_s=0)
    assert len(list((path / "checkback" / "replaced").iterdir())) == 1
    assert verify(path).ok


def test_of_many_at_once_one_takes_it_over(store: Callable[[str], Path]) -> None:
    path, start, ends = store(PLAIN), threading.Barrier(4), []

    def one() -> None:
        made = crash.plan(crash.survey(path))
        start.wait()
        try:
            ends.append(crash.apply(made, broker_is_stopped=True, still_s=0).applied)
        except StoreLocked:
            ends.append(False)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ends) == [False, False, False, True]
    assert len(list((path / "checkback" / "replaced").iterdir())) == 1
    assert verify(path).ok


# Killed


def test_while_it_is_not_finished_no_copy_is_deleted(
    store: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for call in range(1, 100):
        path = store(PLAIN)
        derived = derived_of(path)
        with contextlib.suppress(Killed):
            taken(path, dying(Disk, "_rename", call))
        if (path / "checkback" / "store.json").is_file():
            break
    assert derived_of(path) == derived, "ours by now, and nothing was moved yet"
    ran = command(capsys, "rebuild", path, "--forget-replaced")
    assert (ran.code, "needs what is kept" in ran.err) == (2, True), ran.err
    assert command(capsys, "recover", path, "--apply").code == 0
    assert kept_of(path) == derived
    assert command(capsys, "rebuild", path, "--forget-replaced").code == 0
    assert not (path / "checkback" / "replaced").exists()


@pytest.mark.sample("_rename", "_write")
@pytest.mark.parametrize("name", ["_rename", "_write", "_make_directory", "_remove_file"])
@pytest.mark.parametrize("then", ["recover", "open", "rebuild"])
def test_a_kill_at_any_step_loses_nothing_that_the_broker_had_derived(
    store: Callable[[str], Path], name: str, then: str
) -> None:
    """Whatever opens the store next: it is still the broker's, or its files are kept."""
    kills = 0
    while kills < 200:
        path = store(PLAIN)
        derived = derived_of(path)
        try:
            taken(path, dying(Disk, name, kills + 1))
        except Killed:
            kills += 1
        else:
            break
        paths = Paths(str(path))
        is_ours = read_store_file(Disk(), paths) is not None
        if not is_ours:
            assert derived_of(path) == derived
        if then == "open":
            with contextlib.suppress(BrokerError):
                broker.open(path).close()
        elif then == "rebuild":
            rebuild(path, apply=True, broker_is_stopped=True, still_s=0)
            assert is_ours or derived_of(path) == derived
        if crash.plan(crash.survey(path)).is_needed:
            taken(path)
        assert kept_of(path) == derived, (name, kills)
        assert [made.state in ("taken over", "taking over") for made in replacements(Disk(), paths)] == [True]
        assert not os.path.exists(paths.swap)
        report = verify(path)
        assert report.ok, [str(finding) for finding in report.findings][:4]
    assert 0 < kills < 200
