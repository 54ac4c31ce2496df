"""Tasks that are killed: `python -m tests.airflow.killing WORK DIRECTORY KILLS SEED`, and `... WORK DIRECTORY
together`.

`... traffic DIRECTORY KILLS SEED` kills rebuilds while an application sells.

A store that needs the work is made; a process that does it is killed with SIGKILL at a random moment, once or up to
three times; then the task runs to its end, as a retry does, and once more. What it leaves must be what a task that
nobody killed leaves: the same transactions, messages and digest, a store that verifies clean, every lease free.

Everything that touches a store runs in a forked child, so that this process never has a thread or a store of its own.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import broker
from broker.format.sysflag import TransactionType
from broker.store.disk.store_lock import is_held
from recovery.jobs import tasks
from recovery.views.overview import overview
from tests.house.tree import ROOT
from tests.jobs.shops import ANSWERS, LATE_MS, SMALL, bodies, killed_shop, park, prepare, spoil_slot

ORDERS = 400
PARKED = 12
AT_ONCE = {"*": {"first_check_after": "0s"}}
TEMPORARY = "temporary"
# What a task imports when it begins.
LOADED_BY_TASKS = (
    "checkback.catalog", "checkback.round", "repair.crash", "rebuild.rebuilder", "checkback.manual", "verify.verifier",
)  # fmt: skip


@dataclass(frozen=True)
class Work:
    """One kind of task: a store that needs it, the task, and what the second of two runs in a row must say."""

    make: Callable[[Path], Any]
    do: Callable[[str], Any]
    nothing_left: Callable[[Any], bool]


def late_ms() -> int:
    return time.time_ns() // 1_000_000 + LATE_MS


def half_done(path: Path) -> None:
    """Orders of which every fourth is in doubt; the others were decided by their producer."""
    with broker.open(str(path), layout=SMALL, sync="os") as store:
        service = store.transactions
        for number, offset in enumerate(prepare(store, range(ORDERS))):
            if number % 4:
                (service.commit if number % 2 else service.rollback)(service.half(offset))


def spoiled(path: Path) -> None:
    """Three slots of the state table say what is not so."""
    half_done(path)
    for slot in (3, 50, 77):
        spoil_slot(path, slot)


def cut_off(path: Path) -> None:
    """Its process was killed, and the machine was started again since: nothing but the log can be believed."""
    killed_shop(path, ORDERS)
    (path / "checkback/control").unlink()


def parked(path: Path) -> None:
    """A few wait for a person."""
    with broker.open(str(path), layout=SMALL, sync="os") as store:
        prepare(store, range(PARKED))
    park(path)


def aged(path: Path) -> None:
    """Eight segments, of which the fifth has a transaction in doubt."""
    with broker.open(str(path), layout=SMALL, sync="os") as store:
        for number in range(80):
            if number == 45:
                prepare(store, range(1))
            store.append(broker.Message("filler", b"%d" % number + bytes(100_000)))


def ask(path: str) -> Any:
    """What the two DAGs do: a store that crashed is recovered first, then asked about."""
    if tasks.crashed(path):
        tasks.recover(path, now_ms=1)
    return tasks.check_back(path, now_ms=late_ms(), resolver=ANSWERS, policy=AT_ONCE)


def decide(path: str) -> Any:
    """A person's decisions, one after another: even orders are committed."""
    found = []
    for number, offset in enumerate(sorted(every_half(path))):
        decision = "rollback" if number % 2 else "commit"
        found.append(tasks.resolve(path, commitlog_offset=offset, decision=decision, now_ms=late_ms(), why="paid"))
    return found


def every_half(path: str) -> list[int]:
    with broker.open(path, read_only=True) as store:
        records = store.records()
        return [one.commitlog_offset for one in records if one.transaction_type is TransactionType.PREPARED]


WORKS = {
    "check_back": Work(half_done, ask, lambda told: told["did"] == "nothing is in doubt"),
    "recover": Work(cut_off, lambda path: tasks.recover(path, now_ms=2), lambda told: not told["kept"]),
    "rebuild": Work(spoiled, lambda path: tasks.rebuild_table(path, now_ms=3), lambda told: not told["applied"]),
    "resolve": Work(parked, decide, lambda told: {one["result"] for one in told} == {"unchanged"}),
    "retain": Work(
        aged,
        lambda path: tasks.retain(path, now_ms=late_ms(), keep="1s", even_unread=True),
        lambda told: told["segments"] == 0,
    ),
    "verify": Work(half_done, lambda path: tasks.verify(path, now_ms=4), lambda told: told["ok"]),
    "compare": Work(half_done, lambda path: tasks.compare_table(path, now_ms=5), lambda told: not told["needed"]),
}


# A process that is killed, and one that is not


def begin(do: Callable[[], Any]) -> tuple[int, int]:
    """Do it in a child: (process id, where it writes what came of it)."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            began = time.monotonic()
            try:
                said = {"result": do(), "took_s": time.monotonic() - began}
            except broker.StoreLocked as error:
                said = {"locked": str(error)}
            os.write(write, json.dumps(said).encode())
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is told
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(1)
    os.close(write)
    return pid, read


def ended(child: tuple[int, int]) -> tuple[int, Any]:
    """How a child ended (0, or minus the signal), and what it said."""
    pid, read = child
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status, json.loads(said) if status == 0 else None


def timed(do: Callable[[], Any]) -> tuple[Any, float]:
    """Do it in a child, undisturbed; its result, and how long it took in seconds."""
    status, said = ended(begin(do))
    assert status == 0, f"the task ended with {status}"
    assert "result" in said, said
    return said["result"], said["took_s"]


def done(do: Callable[[], Any]) -> Any:
    """Do it in a child, undisturbed; its result."""
    return timed(do)[0]


def killed(do: Callable[[], Any], after_s: float) -> bool:
    """Do it in a child and kill that; False when it was done before."""
    child = begin(do)
    time.sleep(after_s)
    os.kill(child[0], signal.SIGKILL)  # until it is waited for, the number is the child's
    status, _ = ended(child)
    assert status in (0, -signal.SIGKILL), f"the task ended with {status}"
    return status != 0


# The judge


def left(path: Path) -> dict[str, Any]:
    """What a store holds that must not depend on kills. Raises AssertionError when it is not in order."""
    report = tasks.verify(str(path), now_ms=9)
    assert report["ok"], report["findings"]
    assert tasks.crashed(str(path)) is None, "the store looks as after a crash"
    found = [*bodies(path), *bodies(path, "filler")]
    assert len(found) == len(set(found)), "a message is there twice"
    held = [lease.name for lease in (path / "checkback/leases").iterdir() if is_held(str(lease))]
    assert not held, f"leases that nobody lets go of: {held}"
    assert not is_held(str(path / "checkback/leader.lock"))
    for kept in (path / "checkback/reports").glob("*.json"):
        json.loads(kept.read_text())
    with broker.open(str(path), read_only=True) as store:
        begin_offset = store.begin_offset
    counts = overview(str(path), 0).counts
    same = {name: report[name] for name in ("digest", "transactions", "records")}
    return {**same, "counts": counts, "bodies": sorted(body[:20].hex() for body in found), "begin": begin_offset}


def finish(work: Work, path: Path) -> dict[str, Any]:
    """A retry, a second run that finds nothing left to do, and what is left."""
    done(lambda: work.do(str(path)))
    told = done(lambda: work.do(str(path)))
    assert work.nothing_left(told), told
    if done(lambda: tasks.crashed(str(path))):  # what the trigger of recover_after_crash sees
        done(lambda: tasks.recover(str(path), now_ms=8))
    found: dict[str, Any] = done(lambda: left(path))
    return found


def undisturbed(work: Work, directory: Path) -> tuple[dict[str, Any], float]:
    """What is left of a run that nobody kills, and how long it takes in seconds."""
    path = directory / "undisturbed"
    done(lambda: work.make(path))
    _, took_s = timed(lambda: work.do(str(path)))
    return finish(work, path), took_s


def kill(name: str, directory: Path, kills: int, seed: int) -> int:
    """Kill until so many have died in the middle; how many stores that took."""
    work, chance = WORKS[name], random.Random(seed)
    expected, took_s = undisturbed(work, directory)
    hits = stores = 0
    while hits < kills:
        path = directory / f"store{stores}"
        done(lambda path=path: work.make(path))
        for _ in range(chance.randint(1, 3)):
            if not killed(lambda path=path: work.do(str(path)), chance.random() * took_s):
                took_s *= 0.8
                break
            hits += 1
        found = finish(work, path)
        assert found == expected, (path, found, expected)
        shutil.rmtree(path)
        stores += 1
    return stores


def together(name: str, directory: Path) -> int:
    """Two at once, of which none is killed, then one is: one does it, the other waits or finds it done."""
    work = WORKS[name]
    expected, took_s = undisturbed(work, directory)
    for number, victim in enumerate((None, 0, 1)):
        path = directory / f"both{number}"
        done(lambda path=path: work.make(path))
        both = [begin(lambda path=path: work.do(str(path))) for _ in range(2)]
        if victim is not None:
            time.sleep(took_s / 3)
            os.kill(both[victim][0], signal.SIGKILL)
        ends = [ended(child) for child in both]
        assert {status for status, _ in ends} <= ({0} if victim is None else {0, -signal.SIGKILL}), ends
        if victim is None:
            assert any("result" in said for _, said in ends), ends
        found = finish(work, path)
        assert found == expected, (path, found, expected)
    return 3


def sell(path: Path, notes: Path) -> None:
    """An application: orders, committed one after another; each is noted when the store has acknowledged it."""
    out = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with broker.open(str(path)) as store:
        for number in range(1_000_000, 1 << 40):
            (offset,) = prepare(store, range(number, number + 1))
            store.transactions.commit(store.transactions.half(offset))
            os.write(out, b"%d\n" % number)


def kill_in_traffic(directory: Path, kills: int, seed: int) -> int:
    """Rebuilds are killed while orders come in: each that was acknowledged is there, once."""
    chance, path, notes = random.Random(seed), directory / "busy", directory / "sold"
    done(lambda: spoiled(path))
    notes.touch()
    seller = begin(lambda: sell(path, notes))
    hits, took_s = 0, 0.5
    while hits < kills:
        sold = notes.stat().st_size
        if killed(lambda: tasks.rebuild_table(str(path), now_ms=5), chance.random() * took_s):
            hits += 1
        else:
            done(lambda: spoil_slot(path, chance.randrange(100)))
            took_s *= 0.9
        deadline = time.monotonic() + 60
        while notes.stat().st_size == sold:  # whoever sells is never held up by a rebuild that is dead
            assert time.monotonic() < deadline, "the application stands still"
            time.sleep(0.005)
    os.kill(seller[0], signal.SIGKILL)
    ended(seller)
    done(lambda: tasks.recover(str(path), now_ms=6))
    done(lambda: tasks.rebuild_table(str(path), now_ms=7))
    found = done(lambda: (left(path), [body.decode() for body in bodies(path)])[1])
    acknowledged = notes.read_text().split()
    assert len(acknowledged) > kills
    missing = {f"order {number}" for number in acknowledged} - set(found)
    assert not missing, f"{len(missing)} acknowledged orders are lost: {sorted(missing)[:5]}"
    assert set(found) - {f"order {number}" for number in range(ORDERS)} <= {
        f"order {number}" for number in range(1_000_000, int(acknowledged[-1]) + 2)
    }
    return 1


def main(name: str, directory: str, kills: str, seed: str = "0") -> None:
    """Exit 1 with a traceback when something was lost, doubled or left."""
    place = Path(directory)
    (place / TEMPORARY).mkdir(parents=True, exist_ok=True)
    for loaded in (
        "checkback.catalog",
        "checkback.round",
        "repair.crash",
        "rebuild.rebuilder",
        "checkback.manual",
        "verify.verifier",
    ):
        import_module(f"recovery.{loaded}")  # a fork shares it
    os.environ["TMPDIR"] = str(place / TEMPORARY)  # a killed comparison leaves what it made
    if name == "traffic":
        stores = kill_in_traffic(place, int(kills), int(seed))
    else:
        stores = together(name, place) if kills == "together" else kill(name, place, int(kills), int(seed))
    print(json.dumps({"stores": stores}))


def kill_in_a_process(work: str, directory: Path, *how: object) -> int:
    """Run `tests.airflow.killing`; how many stores it judged."""
    words = [sys.executable, "-m", "tests.airflow.killing", work, str(directory), *map(str, how)]
    ran = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return int(json.loads(ran.stdout)["stores"])


if __name__ == "__main__":
    main(*sys.argv[1:])
