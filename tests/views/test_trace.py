"""One transaction on one page: by its place, its offset message id, or its unique key."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import broker
from broker.format.commitlog import Record
from broker.format.java import encode_message_id
from broker.format.sysflag import TransactionType
from broker.format.topics import HALF_TOPIC, OP_TOPIC
from broker.store.read.layout import StoreLayout
from recovery.views.lookup import records_of, trace
from recovery.views.overview import story
from tests.cli.command import command
from tests.scan.small_broker import V3
from tests.scan.small_stores import TOPIC, build


@pytest.fixture
def store(golden: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 5.5.0 with settled and parked transactions."""
    return golden("kinds/rocketmq-5.5.0-clean")


def _half(store: Path, answer: str) -> tuple[int, str, str]:
    """The first half message whose producer answered so: its place, unique key and offset message id."""
    with broker.open(store, read_only=True) as opened:
        record = next(
            one for one in opened.records() if one.topic == HALF_TOPIC and one.property_map["KEYS"].endswith(answer)
        )
        key = record.property_map["UNIQ_KEY"]
        return record.commitlog_offset, key, encode_message_id(record.store_host, record.commitlog_offset)


@pytest.mark.parametrize(
    ("answer", "end"), [("c", "committed"), ("k", "committed"), ("r", "rolled back"), ("u", "parked")]
)
def test_every_identifier_leads_to_the_same_story(store: Path, answer: str, end: str) -> None:
    offset, unique_key, message_id = _half(store, answer)
    traces = [trace(str(store), identifier) for identifier in (str(offset), unique_key, message_id)]
    assert all(one["half_offset"] == offset for one in traces)
    assert traces[0]["steps"] == traces[1]["steps"] == traces[2]["steps"]
    what = [step["what"] for step in traces[0]["steps"] if step["what"].split(",")[0] != "sent back"]
    assert (what[0], what[-1]) == ("prepared", end)
    delivered = next((step for step in traces[0]["steps"] if step["what"] == "committed"), None)
    if delivered is not None:
        assert trace(str(store), str(delivered["commitlog_offset"]))["steps"] == traces[0]["steps"]


@pytest.mark.parametrize(("offset", "steps"), [(20555, ["prepared", "committed"]), (25800, ["prepared"])])
def test_half_messages_that_a_rocksdb_knows(golden: Callable[[str], Path], offset: int, steps: list[str]) -> None:
    """Of 5.5 with transRocksDBEnable: their op messages name them by their CommitLog offsets."""
    path = golden("kinds/rocketmq-5.5.0-rocksdb-halves")
    what = [step["what"] for step in trace(str(path), str(offset))["steps"]]
    assert [one for one in what if not one.startswith("sent back")] == steps


def test_a_rolled_back_half_message_that_a_rocksdb_knows(golden: Callable[[str], Path]) -> None:
    path = golden("kinds/rocketmq-5.5.0-rocksdb-halves")
    with broker.open(path, read_only=True) as opened:
        half = next(one for one in opened.records() if one.property_map.get("KEYS") == "t-4-r")
    steps = trace(str(path), str(half.commitlog_offset))["steps"]
    assert [step["what"] for step in steps] == ["prepared", "rolled back"]


@pytest.mark.usefixtures("each_engine")
@pytest.mark.parametrize("lost", [slice(0), slice(1), slice(-1, None), slice(None)], ids=["no", "first", "last", "all"])
def test_what_files_of_the_index_are_lost_changes_no_decision(tmp_path: Path, lost: slice) -> None:
    """A delayed commit goes to another topic, and an op message alone does not say that it rolled back."""
    path, keys = tmp_path / "store", []
    with broker.open(path, layout=StoreLayout(4096, 400, 240, 200, 16, 24), sync="os") as store:
        for number in range(24):
            delay = {"DELAY": "3"} if number % 3 == 2 else {}
            half = store.transactions.prepare(broker.Message("orders", b"lamp"), "shop", extra_properties=delay)
            (store.transactions.rollback if number % 3 == 1 else store.transactions.commit)(half)
            keys.append((half.commitlog_offset, half.unique_key))
    files = sorted((path / "index").iterdir())
    assert len(files) > 1
    for file in files[lost]:
        file.unlink()
    for number, (offset, unique_key) in enumerate(keys):
        decided = "rolled back" if number % 3 == 1 else "committed"
        assert [step["what"] for step in trace(str(path), str(offset))["steps"]] == ["prepared", decided]
        found = trace(str(path), str(unique_key))
        assert found["half_offset"] in (offset, None)
        assert found["half_offset"] == offset or lost == slice(1), "what is behind the index is read from the log"


def test_a_late_rollback_is_found_without_decoding_what_is_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million records between a half message and its op message took half a minute, on the page too."""
    path, decoded, records = tmp_path / "store", 0, broker.Store.records
    with broker.open(path, sync="os", transactions="half-op") as store:
        half = store.transactions.prepare(broker.Message("orders", b"lamp"), "shop")
        for _ in range(50):
            store.append(broker.Message("mail", b"to you"))
        store.transactions.rollback(half)

    def counted(store: broker.Store, start: int | None = None, end: int | None = None) -> Iterator[Record]:
        nonlocal decoded
        for record in records(store, start, end):
            decoded += 1
            yield record

    monkeypatch.setattr(broker.Store, "records", counted)
    assert [step["what"] for step in story(str(path), half.commitlog_offset)] == ["prepared", "rolled back"]
    assert decoded < 10


def test_without_an_index(store: Path, tmp_path: Path) -> None:
    """Of messageIndexEnable=false, or of 5.5 with its index in a RocksDB: each record with the unique key is found."""
    asked = [_half(store, answer) for answer in "ckru"]
    before = [trace(str(store), unique_key)["steps"] for _, unique_key, _ in asked]
    path = shutil.copytree(store, tmp_path / "store", ignore=shutil.ignore_patterns("index"))
    for (offset, unique_key, _), steps in zip(asked, before, strict=True):
        assert trace(str(path), unique_key)["steps"] == trace(str(path), str(offset))["steps"] == steps


@pytest.mark.parametrize("redo_log", [True, False], ids=["redo-log", "no-redo-log"])
def test_what_a_consumer_sent_back_is_no_second_commit(tmp_path: Path, redo_log: bool) -> None:
    """3.x notes it in the redo log as an end of the transaction at offset 0; without a redo log the log is read."""
    made, path = build(V3, tmp_path / "store"), tmp_path / "store"
    sent_back = [one for one in made.records if one.reconsume_times and one.transaction_type == TransactionType.COMMIT]
    assert {one.prepared_transaction_offset for one in sent_back} == {0}
    if not redo_log:
        shutil.rmtree(path / "transaction" / "redolog")
    steps = trace(str(path), "0")["steps"]
    assert [(step["what"], step.get("delivered")) for step in steps] == [
        ("prepared", None),
        ("committed", f"{TOPIC}/0 at 0"),
    ]


@pytest.mark.parametrize("lost", ["queues", "last-op"])
def test_a_rollback_that_the_queue_of_op_messages_lacks(store: Path, tmp_path: Path, lost: str) -> None:
    """A copy of the log alone, and a broker that was killed before it wrote the unit and the index."""
    path = shutil.copytree(store, tmp_path / "store")
    with broker.open(path, read_only=True) as opened:
        records = list(opened.records())
    last_op = max(one.commitlog_offset for one in records if one.topic == OP_TOPIC)
    halves = [one.commitlog_offset for one in records if one.topic == HALF_TOPIC]
    before = {at: story(str(path), at) for at in halves}
    named = [at for at, steps in before.items() if steps[-1]["commitlog_offset"] == last_op]
    assert named
    if lost == "queues":
        shutil.rmtree(path / "consumequeue")
    else:
        (queue,) = (path / "consumequeue" / OP_TOPIC / "0").iterdir()
        units = queue.read_bytes()
        unit = units.index(last_op.to_bytes(8, "big"))
        queue.write_bytes(units[:unit] + bytes(len(units) - unit))
        shutil.rmtree(path / "index")
    assert {at: story(str(path), at) for at in halves} == before


def test_a_rollback_behind_which_the_clock_was_set_back(store: Path, tmp_path: Path) -> None:
    """An op message that states an earlier time than its half message was not looked at."""
    path = shutil.copytree(store, tmp_path / "store")
    half, _, _ = _half(path, "r")
    (segment,) = (path / "commitlog").iterdir()
    raw = bytearray(segment.read_bytes())
    at = half + 56  # its STORETIMESTAMP
    raw[at : at + 8] = (int.from_bytes(raw[at : at + 8], "big") + 5 * 86_400_000).to_bytes(8, "big")
    segment.write_bytes(raw)
    assert [step["what"] for step in story(str(path), half)] == ["prepared", "rolled back"]


def test_damaged_op_messages_in_front_of_a_half_message_hide_nothing_of_it(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """The search for the place behind the half read them: trace and the page ended with the damage of others."""
    path = shutil.copytree(golden("kinds/rocketmq-4.9.7-clean"), tmp_path / "store")
    with broker.open(path, read_only=True) as opened:
        records = list(opened.records())
    half = max(
        one.commitlog_offset for one in records if one.topic == HALF_TOPIC and one.property_map["KEYS"][-1] == "r"
    )
    with (path / "commitlog" / f"{0:020}").open("r+b") as segment:
        for op in (one for one in records if one.topic == OP_TOPIC and one.commitlog_offset < half):
            segment.seek(op.commitlog_offset)
            segment.write(bytes([255]) * 8)
    assert [step["what"] for step in story(str(path), half)] == ["prepared", "rolled back"]


def test_damage_that_may_hide_an_end_is_said(store: Path, tmp_path: Path) -> None:
    """The page said that no half message begins there, and trace had nothing to say."""
    path = shutil.copytree(store, tmp_path / "store", ignore=shutil.ignore_patterns("index"))
    offset, unique_key, _ = _half(path, "c")
    with broker.open(path, read_only=True) as opened:
        behind = next(one.commitlog_offset for one in opened.records() if one.commitlog_offset > offset)
    with (path / "commitlog" / f"{0:020}").open("r+b") as segment:
        segment.seek(behind)
        segment.write(bytes([255]) * 8)
    for asked in (lambda: story(str(path), offset), lambda: trace(str(path), unique_key)):
        with pytest.raises(broker.CorruptRecord, match=f"CommitLog offset {behind}: no record begins here"):
            asked()
    assert story(str(path), offset + 1) == []


def test_damage_behind_the_index_hides_no_delivery_that_it_names(store: Path, tmp_path: Path) -> None:
    path = shutil.copytree(store, tmp_path / "store")
    max((path / "index").iterdir()).unlink()
    with broker.open(path, read_only=True) as opened:
        reached = max(file.header.end_commitlog_offset for file in opened.index.files())
        behind = [one.commitlog_offset for one in opened.records() if one.commitlog_offset > reached]
    with (path / "commitlog" / f"{0:020}").open("r+b") as segment:
        segment.seek(behind[0])
        segment.write(bytes([255]) * 8)
    delivered, rolled_back = (_half(store, answer)[0] for answer in "cr")
    decided = [step["what"] for step in trace(str(path), str(delivered))["steps"]]
    assert decided[:2] == ["prepared", "committed"]
    with pytest.raises(broker.CorruptRecord, match=f"CommitLog offset {behind[0]}: no record begins here"):
        trace(str(path), str(rolled_back))


def test_what_is_no_transaction_is_said(store: Path) -> None:
    assert "belongs to no transaction" in trace(str(store), "0")["text"]
    for nothing in ("1", "no id", "00" * 16, "9" * 19):
        found = trace(str(store), nothing)
        assert (found["steps"], found["text"]) == ([], "no record of the log has this id")
    with broker.open(store, read_only=True) as opened:
        assert records_of(opened, encode_message_id(next(opened.records()).store_host, 1)) == []


def test_the_verb(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    offset, unique_key, _ = _half(store, "k")
    ran = command(capsys, "trace", store, unique_key)
    assert ran.code == 0
    assert "written again, after check 1" in ran.out
    ran = command(capsys, "trace", store, unique_key, "--json")
    assert json.loads(ran.out)["half_offset"] == offset
    page = tmp_path / "trace.html"
    assert command(capsys, "trace", store, offset, "--html", page).code == 0
    assert unique_key in page.read_text()
    assert command(capsys, "trace", store, "0").code == 1
