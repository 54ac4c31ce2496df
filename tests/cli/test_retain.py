"""`checkback retain`: it looks, says who has yet to read what, and removes with --apply only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import broker
from tests.cli.command import command


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Six segments; of its thirty messages the group billing has read twelve."""
    path = tmp_path / "shop.store"
    layout = broker.StoreLayout(1 << 18, 6000, 2400, 2000, 100, 400)
    with broker.open(path, layout=layout, sync="os") as opened:
        for _ in range(30):
            opened.append(broker.Message("orders", bytes(50_000)))
        with opened.consumer("billing", "orders") as consumer:
            for _ in range(12):
                message = consumer.receive(5)
                assert message is not None
                consumer.ack(message)
    return path


def segments(store: Path) -> int:
    """Those that hold messages: the next one may have been made ahead."""
    with broker.open(store, read_only=True) as opened:
        return sum(segment.base < opened.end_offset for segment in opened.segments)


def test_it_looks_and_then_removes(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 1 while there is something to do; the numbers of both runs agree; nothing unread goes."""
    before = segments(store)
    plain = command(capsys, "retain", store)
    assert (plain.code, segments(store)) == (1, before)
    assert "group billing did not acknowledge" in plain.out
    assert "May go: 2 segments, 512.0 KiB" in plain.out
    seen = command(capsys, "retain", store, "--keep", "0s", "--json")
    done = command(capsys, "retain", store, "--keep", "0s", "--apply", "--json")
    told, did = json.loads(seen.out), json.loads(done.out)
    assert (seen.code, done.code) == (1, 0)
    assert (told["segments"], told["begin"]) == (did["segments"], did["begin"])
    assert (len(did["segments"]), did["bytes"], did["unread_gone"], segments(store)) == (2, 2 << 18, 0, before - 2)
    assert [(one["group"], one["waiting"]) for one in did["unread"]] == [("billing", 18)]
    assert did["pins"][0]["text"].endswith(f"checkback consumer {store} billing --topic orders --reset last")
    again = command(capsys, "retain", store, "--keep", "0s", "--apply")
    assert (again.code, "Nothing was removed" in again.out) == (0, True)


def test_what_it_advises_releases_the_group(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(capsys, "consumer", store, "billing", "--topic", "orders", "--reset", "last").code == 0
    assert command(capsys, "retain", store, "--keep", "0s", "--apply").code == 0
    assert segments(store) == 1


def test_even_unread_says_what_it_took(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = command(capsys, "retain", store, "--keep", "0s", "--even-unread", "--apply")
    assert ran.code == 0
    assert "Removed 5 segments, 1.2 MiB, with " in ran.out
    assert "Removed unread so far: " in ran.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--apply"], "nothing says what may go"),
        (["--even-unread"], "say what may go"),
        (["--keep", "long"], "a duration is a number"),
        (["--max-bytes", "much"], "a size is a number"),
        (["--max-bytes", "0"], "max_bytes is a number of bytes above 0"),
        (["--keep", "", "--max-bytes", "1MiB", "--apply"], "--keep, --max-bytes, --free-bytes or --gone-after is"),
        (["--gone-after", ""], "--gone-after is empty"),
    ],
)
def test_what_it_cannot_do_gets_a_sentence(
    store: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    ran = command(capsys, "retain", store, *words)
    assert ran.code == 2
    assert said in " ".join(ran.err.split())


def test_no_store_is_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither for this verb nor for send, which makes one when it is told to."""
    assert command(capsys, "retain", tmp_path / "shop.store", "--keep", "72h").code == 2
    assert command(capsys, "send", tmp_path / "shop.store", "orders", "--body", "x").code == 2
    assert list(tmp_path.iterdir()) == []
    assert command(capsys, "send", tmp_path / "shop.store", "orders", "--body", "x", "--create").code == 0
    assert command(capsys, "send", tmp_path / "shop.store", "orders", "--body", "x").code == 0
