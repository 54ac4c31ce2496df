"""Wrong input for the verbs that carry messages elsewhere: one sentence with the next step, and nothing is made."""

from __future__ import annotations

import socketserver
from pathlib import Path
from threading import Thread

import pytest

import broker
from recovery.following import link
from tests.cli.command import command
from tests.following.masters import SEGMENT, served, traffic


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with broker.open(tmp_path / "shop.store", sync="os", layout=broker.StoreLayout(segment_bytes=1 << 20)) as opened:
        opened.append(broker.Message("orders", b"one", keys=["k"]))
    return tmp_path / "shop.store"


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["follow", "127.0.0.1:1", "{}/new"], 1, "cannot be reached: Connection refused: tried 5 times"),
        (["follow", "127.0.0.1:1", "{}/shop.store"], 2, "is not empty, and not a copy"),
        (["follow", "127.0.0.1:1", "{}/exported"], 2, "is a file, and a copy is a directory: name another one"),
        (["follow", "127.0.0.1:1", "{}/new", "--from", "17"], 2, "no segment begins at 17"),
        (["follow", "127.0.0.1:1", "{}/new", "--segment-bytes", "0"], 2, "segments of 0 bytes cannot be"),
        (["follow", "127.0.0.1:1", "{}/new", "--metrics", "99999"], 2, "65535"),
        (["replay", "{}/nothing", "{}/shop.store"], 2, "is not there: give the file that checkback export wrote"),
        (["replay", "{}", "{}/shop.store"], 2, "is a directory: give the file that checkback export wrote"),
        (["replay", "{}/exported", "{}/nothing"], 2, "there is no such directory"),
        (["export", "{}/shop.store", "{}/no/such/file", "--topic", "orders"], 2, "there is no directory"),
        (["find", "{}/shop.store", "--key", "other"], 1, "no message in"),
        (["answer", "127.0.0.1:1", "--ledger", "sqlite:////x", "--bind", "--once"], 2, "leave --once, --for"),
        (["work", "shop:app", "--check-every", "0s"], 2, "an interval is longer than nothing"),
        (["check-back", "{}/shop.store", "--every", "0s"], 2, "an interval is longer than nothing"),
        (["check-back", "{}/shop.store", "--every", "36501d"], 2, "a duration has at most 36500d"),
        (
            ["answer", "127.0.0.1:1", "--group", "shop", "--ledger", "sqlite:////x", "--for", "soon"],
            2,
            "value for --for: 'soon': a duration is a number",
        ),
        (["serve", "{}/shop.store", "--seconds", "nan"], 2, "nan is not a finite number"),
        (["serve", "{}/shop.store", "--check-every", "inf"], 2, "inf is not a finite number"),
        (["follow", "127.0.0.1:1", "{}/new", "--every", "nan"], 2, "nan is not a finite number"),
        (["salvage", "{}/shop.store", "{}/new", "--segment-size", "9" * 20], 2, "is not in the range 4096<=x<="),
        (["answer", "127.0.0.1:1", "--group", "my shop", "--ledger", "sqlite:////nowhere"], 2, "the producer group"),
    ],
)
def test_a_sentence(
    store: Path, words: list[str], code: int, sentence: str,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(link, "_BACKOFF_S", (0.01,))
    assert command(capsys, "export", store, store.parent / "exported", "--topic", "orders").code == 0
    before = sorted(store.parent.iterdir())
    given = [word.replace("{}", str(store.parent)) for word in words] + (["--once"] if words[0] == "follow" else [])
    ran = command(capsys, *given)
    assert ran.code == code
    words_printed = " ".join(ran.err.replace("│", " ").split())
    assert sentence in words_printed
    assert "Traceback" not in ran.err
    assert sorted(store.parent.iterdir()) == before


_DEEP = "x = " + "[" * 5000 + "]" * 5000


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        ("policy = 3", "policy is a table, as in [policy], not 3"),
        ("policy = []\nresolvers = []", "policy is a table, as in [policy], not []"),
        ("resolvers = 'shop'", "resolvers is a table, as in [resolvers], not 'shop'"),
        (_DEEP, "its values are nested too deeply"),
        pytest.param(f"policy = {'9' * 5000}", "is not TOML: Exceeds the limit", id="digits"),
        ("\ufeff[policie]", "there is no 'policie'"),
    ],
)
def test_a_file_of_check_back(store: Path, toml: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence names the file; what an editor puts before the text, to say that it is UTF-8, is no mistake."""
    file = store.parent / "check-back.toml"
    file.write_text(toml)
    ran = command(capsys, "check-back", store, "--config", file)
    assert (ran.code, len(ran.err.splitlines())) == (2, 1), ran.err
    assert ran.err.startswith(f"checkback: {file}")
    assert sentence in ran.err


def test_a_file_of_stores(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = store.parent / "stores.toml"
    file.write_text(_DEEP)
    ran = command(capsys, "settings", "--check", file)
    assert (ran.code, len(ran.err.splitlines())) == (2, 1), ran.err
    assert f"{file} cannot be read: its values are nested too deeply" in ran.err
    file.write_text(f"\ufeff[stores.shop]\npath = '{store}'\n")
    assert "cannot be read" not in command(capsys, "settings", "--check", file).err
    file.write_text("[stores.shop]\npath = '/srv/shop'\n[stores.billing]\npath = '/srv/shop/'\n")
    ran = command(capsys, "settings", "--check", file)
    assert (ran.code, "warn   billing: its path is that of shop" in ran.out) == (0, True), ran.out
    link = store.parent / "link"
    link.symlink_to(store)
    file.write_text(f"[stores.shop]\npath = '{store}'\n[stores.billing]\npath = '{link}'\n")
    assert "warn   billing: its path is that of shop" in command(capsys, "settings", "--check", file).out


def test_a_copy_that_is_there_gives_up_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "_BACKOFF_S", (0.01,))

    with served(tmp_path / "master") as (master, address):
        traffic(master, 3)
        ran = command(capsys, "follow", address, tmp_path / "copy", "--once", "--segment-bytes", SEGMENT)
        assert ran.code == 0, ran.err
    ran = command(capsys, "follow", address, tmp_path / "copy", "--once")
    assert ran.code == 1
    assert f"{address} cannot be reached" in ran.err
    assert "tried 5 times" in ran.err


def test_who_sends_nothing_may_be_a_broker_in_controller_mode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As 5.3.3 does: it reads the eight bytes of a report as something else, and closes or waits for more."""
    monkeypatch.setattr(link, "_BACKOFF_S", (0.01,))
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        ran = command(capsys, "follow", f"127.0.0.1:{server.server_address[1]}", tmp_path / "copy", "--once")
        server.shutdown()
    assert ran.code == 1
    assert "(and sent nothing: a broker in controller mode speaks another protocol): tried 5 times" in ran.err
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["find", "--since", "2026-11-26", "--until", "2026-11-01"], "2026-11-26 is not before --until 2026-11-01"),
        (["find", "--since", "first"], "'first' is neither a time like 2026-11-21T10:00, nor milliseconds"),
        (["dump", "--from", "10", "--to", "5"], "10 is not below --to 5"),
        (["dump", "statetable", "--key", "k"], "--key is for commitlog and index; statetable has no keys"),
        (["dump", "statetable", "5"], "statetable takes no name, not '5'"),
        (["dump", "timers", "5"], "timers takes no name, not '5'"),
        (["dump", "checkpoint", "--from", "5"], "checkpoint has none"),
        (["trace", "0", "--json", "--html", "/dev/null"], "give one of --html and --json"),
    ],
)
def test_words_that_would_be_ignored_are_refused(
    store: Path, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty answer, or one about everything, would be taken for the answer to the question."""
    ran = command(capsys, words[0], store, *words[1:])
    assert (ran.code, ran.out) == (2, "")
    assert sentence in " ".join(ran.err.split())


@pytest.mark.parametrize(
    "words",
    [
        "dump STORE consumequeue orders/DIGITS",
        "follow 127.0.0.1:DIGITS copy --once",
        "follow 127.0.0.1:1 copy --once --from DIGITS",
        f"follow 127.0.0.1:1 copy --once --from {1 << 63}",
        "page STORE --listen 127.0.0.1:DIGITS",
        "consumer STORE group --topic orders --reset DIGITS",
    ],
)
def test_more_digits_than_a_number_has_are_refused(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python reads no number of 4,300 digits: that was called a defect of checkback. A master's offset has 64 bits."""
    broker.open(tmp_path / "store").close()
    names = {"STORE": str(tmp_path / "store"), "copy": str(tmp_path / "copy")}
    ran = command(capsys, *(names.get(word, word.replace("DIGITS", "9" * 5000)) for word in words.split()))
    assert ran.code == 2
    assert "defect" not in ran.err


@pytest.mark.parametrize("verb", ["info -", "copy {} -", "salvage {} -", "transactions {} -", "report {} -", "page -"])
def test_a_place_that_is_empty(
    store: Path, verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable of the shell that is not set: "/ and shop.store lie in each other", or "a str or a pathlib.Path"."""
    monkeypatch.chdir(store.parent)
    before = sorted(store.parent.iterdir())
    ran = command(capsys, *("" if word == "-" else word.format(store) for word in verb.split()))
    assert (ran.code, sorted(store.parent.iterdir())) == (2, before)
    assert ": it is empty: a variable of the shell is not set, perhaps." in ran.err
