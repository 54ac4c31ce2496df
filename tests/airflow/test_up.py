"""`checkback up`, but for Airflow itself: what is in the way is said in a sentence; what was started is stopped."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from recovery.airflow.local import preflight as surroundings
from recovery.airflow.local.preflight import NotHere
from recovery.airflow.local.rest import ASKS, Rest, Run
from recovery.airflow.local.standalone import PROGRAM, Standalone, _has_mark, _processes
from recovery.airflow.local.status import last_runs, runs, standing
from recovery.airflow.settings import StoreSettings, read_stores
from recovery.cli.declaration import BadParameter, VerbGroup
from recovery.cli.run import up as verbs_up
from tests.jobs.shops import shop

# Three that ignore SIGINT and SIGTERM: one leaves the session, one writes a title over its environment as
# LocalExecutor's workers do.
STUBBORN = """
import os, signal, sys, time
from setproctitle import setproctitle
signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0: os.setsid()
elif os.fork() == 0: setproctitle("another " * 1000)
open(sys.argv[1] + str(os.getpid()), "w").close()
time.sleep(600)
"""


def test_a_port_in_use_is_said_before_anything_starts(tmp_path: Path) -> None:
    """With what to do; nothing is left behind."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(NotHere, match=f"port {port} .* --port {port + 1}"):
            surroundings.check_port(port)
        app = VerbGroup()
        verbs_up.register(app)
        ran = CliRunner().invoke(
            app, ["up", str(tmp_path / "shop"), "--port", str(port), "--home", str(tmp_path / "home")]
        )
        assert isinstance(ran.exception, NotHere)
    assert not (tmp_path / "shop").exists()
    surroundings.check_port(port)


def test_a_second_one_leaves_the_files_of_the_first_alone(tmp_path: Path) -> None:
    """With another port it had the same database, and its settings took the place of the first one's."""
    app, home = VerbGroup(), tmp_path / "home"
    verbs_up.register(app)
    home.mkdir()
    (home / "stores.toml").write_text("the first one's")
    with surroundings.alone_in(str(home), 8080):
        ran = CliRunner().invoke(app, ["up", str(tmp_path / "shop"), "--port", "8081", "--home", str(home)])
    assert isinstance(ran.exception, NotHere)
    assert f"--home {home}-8082 --port 8082" in str(ran.exception)
    assert (home / "stores.toml").read_text() == "the first one's"
    assert not (tmp_path / "shop").exists()
    with surroundings.alone_in(str(home), 8080):
        pass


def test_a_user_without_a_home_has_to_name_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory `~` was made wherever the process stood."""
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadParameter, match="give --home a directory"):
        verbs_up._made(verbs_up.HOME)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much is free, how much is needed."""
    monkeypatch.setattr(surroundings, "NEEDED_BYTES", 1 << 60)
    with pytest.raises(NotHere, match="MiB are needed"):
        surroundings.check_disk(str(tmp_path))


def test_no_java_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the local engine does it."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    assert not surroundings.has_java()


def test_what_ignores_every_signal_is_stopped_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by its mark, whoever its parent is by now."""
    monkeypatch.setattr("recovery.airflow.local.standalone._PATIENCE_S", 1.0)
    airflow = Standalone(str(tmp_path), 1, "")
    with (tmp_path / "log").open("wb") as log:
        airflow._process = airflow.child(["-c", STUBBORN, f"{tmp_path}/started-"], log)
    deadline = time.monotonic() + 20
    while len(list(tmp_path.glob("started-*"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(airflow.left()) == 3
    airflow.stop()
    assert not airflow.left()
    airflow.stop()


def test_a_second_interrupt_ends_all_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator who presses Ctrl-C again while Airflow is asked to end."""
    airflow = Standalone(str(tmp_path), 1, "")
    with open(os.devnull, "wb") as log:
        airflow._process = airflow.child(["-c", STUBBORN, f"{tmp_path}/started-"], log)
    until = time.monotonic() + 20
    while len(list(tmp_path.glob("started-*"))) < 3 and time.monotonic() < until:
        time.sleep(0.02)
    assert len(airflow.left()) == 3
    wait = airflow._process.wait

    def interrupted(timeout: float | None = None) -> int:
        if timeout is not None:
            raise KeyboardInterrupt
        return wait()

    monkeypatch.setattr(airflow._process, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        airflow.stop()
    assert not airflow.left()


@pytest.mark.parametrize("name", ["läden", "店", "x" * 95])
def test_every_directory_has_a_name_that_dags_can_have(name: str, tmp_path: Path) -> None:
    """Airflow was started, and looked after no store."""
    verbs_up._write_settings(str(tmp_path / "stores.toml"), {"path": f"/srv/{name}.store"})
    assert len(read_stores(str(tmp_path / "stores.toml")).stores) == 1


def test_the_settings_are_their_owners_alone_in_a_directory_that_was_there(tmp_path: Path) -> None:
    """They have the URL of --ledger; each user of the machine could read its password."""
    named, password = tmp_path / "stores.toml", "postgresql+psycopg://shop:secret@db/shop"
    named.write_text("")
    named.chmod(0o644)
    verbs_up._write_settings(str(named), {"path": "/srv/shop.store", "ledger": password})
    assert named.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["stores.toml"]


def test_a_disk_that_is_full_leaves_nothing_beside_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt left another hidden file, with the password of --ledger in it."""

    def full(*_: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        verbs_up._write_settings(str(tmp_path / "stores.toml"), {"path": "/srv/shop.store"})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--ledger", "sqlite://", "--resolver", "shop:answer"], "--ledger and --resolver exclude each other"),
        (["--resolver", "ftp://shop"], "resolver is an http(s) URL"),
    ],
)
def test_settings_that_no_dag_can_have_are_refused_before_airflow_starts(
    words: list[str], why: str, tmp_path: Path
) -> None:
    """Else its only DAG would say so, and the terminal "none has run yet"."""
    app = VerbGroup()
    verbs_up.register(app)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    where = [str(tmp_path / "shop"), "--home", str(tmp_path / "home"), "--port", port]
    ran = CliRunner().invoke(app, ["up", *where, *words])
    assert why in f"{ran.output} {ran.exception}"


def test_what_holds_passwords_is_its_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's admin's, and the ledger's in the settings, were readable for each user of the machine."""
    monkeypatch.setattr(surroundings, "NEEDED_BYTES", 1 << 60)
    app = VerbGroup()
    verbs_up.register(app)
    assert isinstance(CliRunner().invoke(app, ["up", "--home", str(tmp_path / "up")]).exception, NotHere)
    airflow = Standalone(str(tmp_path / "up" / "airflow"), 8123, "stores.toml")
    airflow.make_home()
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "up", tmp_path / "up" / "airflow")] == [0o700, 0o700]


def test_its_children_end_with_it(tmp_path: Path) -> None:
    """Killed by SIGKILL it cannot stop anything; the system tells its child to end."""
    script = (
        "import sys, os, signal, time; from recovery.airflow.local.standalone import Standalone\n"
        "one = Standalone(sys.argv[1], 1, ''); out = open(os.devnull, 'wb')\n"
        "child = one.child(['-c', 'import time; time.sleep(600)'], out); print(child.pid, one._mark, flush=True)\n"
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        _, mark = up.stdout.readline().split()
        up.send_signal(signal.SIGKILL)
        up.wait()
    deadline = time.monotonic() + 10
    while any(_has_mark(pid, mark) for pid in _processes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_has_mark(pid, mark) for pid in _processes())


def test_airflow_is_told_to_stay_on_this_machine(tmp_path: Path) -> None:
    """Loopback, few workers, no examples, DAGs on, our bundle and the user's directory."""
    told = Standalone(str(tmp_path), 8123, "stores.toml", spark_master="local[*]").environment
    assert told["AIRFLOW__API__HOST"] == "127.0.0.1"
    assert told["AIRFLOW__CORE__PARALLELISM"] == "4"
    assert told["AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION"] == "False"
    names = [one["name"] for one in json.loads(told["AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"])]
    assert names == ["checkback", "dags-folder"]
    assert json.loads(told["AIRFLOW_CONN_CHECKBACK_SPARK"])["host"] == "local[*]"
    assert told["PATH"].startswith(os.path.dirname(sys.executable))
    assert told["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == f"sqlite:///{tmp_path}/airflow.db?timeout=60"
    assert told["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC"].endswith(f":///{tmp_path}/airflow.db?timeout=60")
    url = "postgresql+psycopg://db/airflow"
    assert Standalone(str(tmp_path), 1, "", database=url).environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == url


def test_airflow_serves_no_logs_to_the_network(tmp_path: Path) -> None:
    """Its scheduler and its triggerer listened on every address of the machine, and no setting says another.

    The key for what connections hide is there before a part of it starts: else each part makes one, or has none.
    """
    parts, program, home = tmp_path / "parts", tmp_path / "airflow", tmp_path / "home"
    program.write_text(f'#!/bin/sh\ngrep -q "^fernet_key = ." {home}/airflow.cfg && echo "$@" >> {parts}\n')
    program.chmod(0o755)
    parts.touch()
    script = (
        "import runpy\n"
        "from airflow.cli.commands.standalone_command import StandaloneCommand as Command\n"
        "def end(_):\n"
        f"    if open({str(parts)!r}).read().count('\\n') == 4: raise KeyboardInterrupt\n"
        "Command.find_user_info = Command.initialize_database = lambda _self: None\n"
        "Command.is_ready = end\n"
        f"runpy.run_module({PROGRAM!r}, run_name='__main__')"
    )
    airflow = Standalone(str(home), 1, "")
    path = f"{tmp_path}{os.pathsep}{airflow.environment['PATH']}"
    run = [sys.executable, "-c", script]
    subprocess.run(run, env=airflow.environment | {"PATH": path}, check=True, timeout=120)
    with_logs = {"scheduler --skip-serve-logs", "triggerer --skip-serve-logs"}
    assert set(parts.read_text().splitlines()) == {"api-server", "dag-processor", *with_logs}


@pytest.mark.parametrize(("gone", "end"), [([], "none has run yet"), (["scheduler"], "stop this and start it again")])
def test_a_part_of_airflow_that_ended_is_named(gone: list[str], end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a scheduler no DAG runs, and the lines were the same for ever."""
    monkeypatch.setattr(Rest, "last_runs", lambda _self: {})
    monkeypatch.setattr(Rest, "unhealthy", lambda _self: gone)
    line = last_runs(["shop"], Rest("http://127.0.0.1:1", lambda: None))
    assert line.endswith(end)
    assert all(name in line for name in gone)


def test_a_busy_machine_is_waited_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """After three minutes it ended all, with the code of a defect of ours; the time of --seconds is kept."""
    monkeypatch.setattr(verbs_up, "_TELL_WAITING_S", 0.0)
    answers = iter([["scheduler"]] * 4 + [[]] * 2)
    monkeypatch.setattr(Rest, "unhealthy", lambda _self: next(answers))
    airflow, rest = Standalone("/nowhere", 1, ""), Rest("http://127.0.0.1:1", lambda: None)
    verbs_up._wait(airflow, rest, lambda: not rest.unhealthy(), None, "is not healthy")
    assert "is not healthy after 0 s (scheduler); its log: /nowhere/airflow.log. Waiting on" in capsys.readouterr().out
    with pytest.raises(NotHere, match="does not know its DAGs after 0 s; its log"):
        verbs_up._wait(airflow, rest, lambda: False, time.monotonic() - 1, "does not know its DAGs")
    monkeypatch.setattr(airflow, "has_ended", lambda: True)
    with pytest.raises(NotHere, match="ended by itself"):
        verbs_up._wait(airflow, rest, lambda: False, None, "is not healthy")


def test_a_verification_that_takes_long_does_not_end_the_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An API server that was busy for half a minute ended Airflow, and the sale's result was the last line."""
    rest = Rest("http://127.0.0.1:1", lambda: ("admin", "x"))
    verbs_up._verify(rest, [StoreSettings(name="shop", path="/nowhere")])
    assert "Verification: Airflow does not answer POST" in capsys.readouterr().out


def test_all_pages_of_the_dags_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow gives at most 100 at a time, whatever is asked for."""
    known = [f"store{number}.check_back" for number in range(231)]

    def ask(_self: Rest, _method: str, path: str, _body: object = None) -> dict[str, object]:
        start = int(path.split("offset=")[1].split("&", maxsplit=1)[0])
        return {"dags": [{"dag_id": name} for name in known[start : start + 100]]}

    monkeypatch.setattr(Rest, "ask", ask)
    assert Rest("http://127.0.0.1:1", lambda: None).dag_ids() == known


def test_a_store_of_a_connection_is_shown_by_the_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its line said that the path of a store is a str or a pathlib.Path, every few seconds."""
    monkeypatch.setattr(Rest, "last_runs", lambda _self: {})
    monkeypatch.setattr(Rest, "unhealthy", lambda _self: [])
    store = StoreSettings(name="billing", connection="billing_store")
    verbs_up._tell(Rest("http://127.0.0.1:1", lambda: None), [store])
    assert "billing: the page shows it, since the connection billing_store has its path" in capsys.readouterr().out


def test_lines_say_how_things_stand(tmp_path: Path) -> None:
    """One for each store, one for the DAGs."""
    path = shop(tmp_path / "shop", orders=3)
    assert standing("shop", str(path), 0).startswith("shop: 3 in doubt (oldest 0 s, 0 asked before), 0 committed")
    assert "no such directory" in standing("gone", str(tmp_path / "gone"), 0)
    last = {"shop.check_back": Run("shop.check_back", "r", "success", None)}
    assert runs(["shop"], last) == "DAGs: check_back ok"
    last["shop.resolve_parked"] = Run("shop.resolve_parked", "r", ASKS, None)
    assert runs(["shop"], last) == "DAGs: check_back ok, resolve_parked asks you"
    assert runs(["shop"], {}) == "DAGs: none has run yet"
