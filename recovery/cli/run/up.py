"""The verbs about Airflow: `up` starts it with our DAGs here, `settings` and `airflow doctor` check one of yours."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from recovery.cli.declaration import Argument, BadParameter, Exit, Option, VerbGroup
from recovery.cli.shared import FINDINGS, USAGE, AsJson, examples, listing, now_ms, secret
from recovery.cli.terminal.output import others_to_stderr, print_json, show, show_now

if TYPE_CHECKING:
    from recovery.airflow.local.demo import Sale
    from recovery.airflow.local.rest import Rest
    from recovery.airflow.local.served import ServedStore
    from recovery.airflow.local.standalone import Standalone
    from recovery.airflow.settings import StoreSettings

HOME = "~/.local/state/checkback/up"
PORT = 8080
_RUN_S = 600.0
_TELL_S = 5.0
_TELL_WAITING_S = 60.0


def up(
    store: Annotated[
        str | None, Argument(metavar="STORE", help="The directory of the store; created when it does not exist.")
    ] = None,
    demo: Annotated[bool, Option("--demo", help="Run the flash-sale demo on the store.")] = False,
    home: Annotated[str, Option(metavar="DIR", help="The directory of Airflow's files.")] = HOME,
    port: Annotated[int, Option(min=1, max=65535, help="Port of Airflow's user interface on 127.0.0.1.")] = PORT,
    stores: Annotated[
        str | None, Option(metavar="FILE", help="Settings of several stores (TOML), instead of STORE.")
    ] = None,
    database: Annotated[
        str | None, Option(metavar="URL", help="SQLAlchemy URL of Airflow's database; SQLite by default.")
    ] = None,
    ledger: Annotated[
        str | None, Option(metavar="URL", help="SQLAlchemy URL of the application's database with the ledger.")
    ] = None,
    resolver: Annotated[
        str | None, Option(metavar="NAME", help="Instead of a ledger: module:function, or a URL.")
    ] = None,
    serve: Annotated[
        str | None, Option(metavar="HOST:PORT", help="Also serve the store to RocketMQ clients, at this address.")
    ] = None,
    seconds: Annotated[float | None, Option(min=1, metavar="TIME", help="Stop after this time.")] = None,
) -> None:
    """Start Airflow with check-back, recovery, rebuild, verification and retention here, and show their runs.

    It listens on 127.0.0.1 only. Ctrl-C stops everything that it started.
    """
    from recovery.airflow.local import preflight as surroundings
    from recovery.airflow.local.demo import Sale
    from recovery.airflow.local.standalone import Standalone

    surroundings.check_airflow()
    _check_options(serve, stores, ledger, resolver, of_one_store=bool(store or demo or ledger or resolver))
    directory = _made(home)
    surroundings.check_disk(directory)
    with contextlib.ExitStack() as stack:
        stack.enter_context(surroundings.alone_in(directory, port))
        surroundings.check_port(port)
        airflow = Standalone(
            os.path.join(directory, "airflow"),
            port,
            os.path.join(directory, "stores.toml") if stores is None else os.path.abspath(stores),
            database=database,
            spark_master="local[*]" if _says_java(surroundings.has_java()) else None,
        )
        until = None if seconds is None else time.monotonic() + seconds
        stack.callback(airflow.stop)
        sale = Sale(os.path.join(directory, time.strftime("demo-%Y%m%d-%H%M%S")), airflow) if demo else None
        if sale is not None:
            sale.start()
        of_store: dict[str, Any] = {}
        if stores is None:
            of_store = sale.settings() if sale else _one_store(directory, store, ledger=ledger, resolver=resolver)
            _write_settings(airflow.stores, of_store)
        _check_stores(airflow.stores, is_only_one=stores is None)
        server = _served(airflow, of_store["path"], serve, stack) if of_store else None
        airflow.start()
        _stay(airflow, sale, until, server)


def _made(home: str) -> str:
    """The directory of Airflow's files, for its owner alone. Raises BadParameter where `~` leads nowhere."""
    if (home := os.path.expanduser(home)).startswith("~"):
        raise BadParameter(f"{home}: no such home directory; give --home a directory", param_hint="--home")
    directory = os.path.abspath(home)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    return directory


def _check_options(
    serve: str | None, stores: str | None, ledger: str | None, resolver: str | None, *, of_one_store: bool
) -> None:
    """Refuse what cannot be served, and a URL that no round could use, before anything starts. Raises BrokerError."""
    from broker.server.settings import host_and_port

    if stores is not None and of_one_store:
        raise BadParameter("--stores names a file of stores: leave out STORE, --demo, --ledger and --resolver")
    if ledger is not None and resolver is not None:
        raise BadParameter("--ledger and --resolver exclude each other: one of them answers for the transactions")
    if ledger is not None:
        from recovery.checkback.ledgers.engines import check_url

        check_url(ledger)
    if serve is not None and stores is not None:
        text = "--serve is for one store, and --stores names a file of several: run `checkback serve STORE` for each"
        raise BadParameter(f"{text} that clients use")
    if serve is not None:
        host, _ = host_and_port("--serve", serve)
        if not ipaddress.ip_address(host).is_loopback:
            text = f"--serve listens on this machine alone, not on {serve}: give 127.0.0.1:PORT here"
            raise BadParameter(f"{text}, or run `checkback serve STORE --listen {serve} --acl FILE` beside it")


def _served(airflow: Standalone, path: str, serve: str | None, stack: contextlib.ExitStack) -> ServedStore | None:
    """The server of the store, if one is wanted; it stops before Airflow does."""
    from recovery.airflow.local.served import ServedStore

    if serve is None:
        return None
    server = ServedStore(airflow, path, serve)
    stack.callback(server.stop)
    server.start()
    return server


def settings(
    check: Annotated[str, Option("--check", metavar="FILE", help="The file (TOML or JSON), or the JSON itself.")],
    as_json: AsJson = False,
) -> None:
    """Check the file of the stores that Airflow looks after, without Airflow. Exits with 2 when a store is wrong.

    A mistake in one table leaves that store out; the others are looked after.
    """
    from recovery.airflow.settings import in_one_directory, read_stores

    if not check.strip():  # an empty variable of a shell, say
        raise BadParameter("--check needs the file of the stores, or its JSON")
    found = read_stores(check)
    if as_json:
        broken = [{"name": store.name, "why": store.why} for store in found.broken]
        print_json({"stores": [store.name for store in found.stores], "broken": broken})
    else:
        for store in found.stores:
            show_now(f"ok     {store.name}: {store.path or f'connection {store.connection}'}")
        for name, earlier in in_one_directory(found.stores):
            show_now(f"warn   {name}: its path is that of {earlier}, so both are about one store")
        for wrong in found.broken:
            show_now(f"wrong  {wrong.name}: {wrong.why}")
        if not (found.stores or found.broken):
            show_now("It names no store, so none is looked after")
    if found.broken:
        raise Exit(USAGE)


TOKEN = "CHECKBACK_AIRFLOW_TOKEN"  # noqa: S105 - the name of a variable


def doctor(
    seconds: Annotated[
        float, Option(min=0, metavar="TIME", help="How long workers and triggerer may take to look; 0: do not ask.")
    ] = 90.0,
    url: Annotated[str, Option(metavar="URL", help="The API server; by default [api] base_url of Airflow.")] = "",
    as_json: AsJson = False,
) -> None:
    """Check an Airflow with our DAGs: settings, connections, ledgers, who sees the stores, pools, Java, paused DAGs.

    Run it where Airflow's scheduler runs, with its environment. With a token of Airflow's API in
    CHECKBACK_AIRFLOW_TOKEN the API server is asked, too. Exits with 1 when something is wrong; each line says what to
    do next.
    """
    from recovery.airflow.local.preflight import check_airflow

    check_airflow()
    with others_to_stderr():  # Airflow logs to standard output
        from recovery.airflow.operating.doctor import OK, WRONG, examine

        examined = examine(run_s=seconds, url=url, token=secret(TOKEN) or "")
    found = []
    while True:
        with others_to_stderr():
            one = next(examined, None)
        if one is None:
            break
        found.append(one)
        if not as_json:
            show([f"{one.state:<5}  {one.what}", *([f"       next: {one.next_step}"] if one.state != OK else [])])
    if as_json:
        print_json([one.as_json() for one in found])
    if any(one.state == WRONG for one in found):
        raise Exit(FINDINGS)


def _says_java(is_there: bool) -> bool:
    if not is_there:
        show_now("No Java 17 or newer: verification and rebuild use the local engine; nothing else is missing.")
    return is_there


def _one_store(directory: str, store: str | None, **asked: str | None) -> dict[str, Any]:
    """The settings for one store, which is made when it is not there; what another program wrote is only read."""
    import broker

    path = os.path.abspath(store if store is not None else os.path.join(directory, "store"))
    if not os.path.exists(path) or not os.listdir(path):
        broker.open(path).close()
    broker.open(path, read_only=True).close()
    return {"path": path, **{name: value for name, value in asked.items() if value}}


def _write_settings(named: str, settings: Mapping[str, Any]) -> None:
    """The file that the DAGs read: one store, named as its directory is.

    It is its owner's alone, wherever it lies: the ledger's URL may have a password.
    """
    from recovery.airflow.operating.sense import NAME_MOST

    title = os.path.basename(settings["path"]).split(".")[0]
    name = re.sub(r"[^A-Za-z0-9_-]", "-", title)[:NAME_MOST] or "store"
    descriptor, beside = tempfile.mkstemp(prefix=".stores-", dir=os.path.dirname(named))  # mode 0600
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps({"stores": {name: settings}}, indent=2))
        os.replace(beside, named)
    except OSError:  # a full disk
        os.remove(beside)
        raise


def _check_stores(named: str, *, is_only_one: bool) -> None:
    """Say which tables of the file are wrong, before Airflow starts. Raises BadSettings where nothing else is in it."""
    from recovery.airflow.settings import BadSettings, read_stores

    for broken in read_stores(named).broken:
        if is_only_one:
            raise BadSettings(broken.why)
        show_now(f"{broken.name} is not looked after until it is corrected: {broken.why}")


def _stay(airflow: Standalone, sale: Sale | None, until: float | None, server: ServedStore | None) -> None:
    """From the start to Ctrl-C."""
    from recovery.airflow.local.preflight import NotHere
    from recovery.airflow.local.rest import Rest
    from recovery.airflow.settings import read_stores

    rest, looked_after = Rest(airflow.url, airflow.login), read_stores(airflow.stores).stores
    show_now(f"Airflow starts; its files and its log are in {airflow.home}")
    began = time.monotonic()
    _wait(airflow, rest, lambda: not rest.unhealthy(), until, "is not healthy")
    wanted = {f"{store.name}.verify_store" for store in looked_after}
    _wait(airflow, rest, lambda: wanted <= set(rest.dag_ids()), until, "does not know its DAGs")
    login = airflow.login()
    show_now(f"Ready after {time.monotonic() - began:.0f} s")
    show_now(f"  Airflow   {airflow.url}" + (f"   user {login[0]}, password {login[1]}" if login else ""))
    show_now(f"  Stores    {airflow.url}/plugin/checkback")
    if server is not None:
        show_now(f"  RocketMQ  {server.address}   its log is {server.log}")
    show_now("  Ctrl-C stops all of it")
    while until is None or time.monotonic() < until:
        _check_runs(airflow)
        if server is not None and server.has_ended():
            raise NotHere(f"the server ended by itself; its log says why: {server.log}")
        if sale is not None and (result := sale.result()):
            show_now(result)
            _verify(rest, looked_after)
            sale = None
        _tell(rest, looked_after)
        time.sleep(_TELL_S if until is None else max(0.0, min(_TELL_S, until - time.monotonic())))


def _verify(rest: Rest, looked_after: Sequence[StoreSettings]) -> None:
    """Have the first store verified by its DAG, and say what came of it."""
    from recovery.airflow.local.rest import NoAnswer
    from recovery.jobs.setup import last_report

    store = looked_after[0]
    try:
        run = rest.wait(f"{store.name}.verify_store", rest.trigger(f"{store.name}.verify_store"), _RUN_S)
    except NoAnswer as error:  # it is busy, and goes on
        show_now(f"Verification: {error}")
        return
    report = last_report(store.path)
    if report is None:
        show_now(f"Verification: {run.state}")
        return
    wrong = sum(report["counts"].values())
    facts = f"{report['records']:,} records, {report['transactions']['total']:,} transactions, {wrong} findings"
    show_now(f"Verification by {report['engine']}: {facts}, digest {report['digest']}")


def _wait(airflow: Standalone, rest: Rest, is_so: Callable[[], bool], until: float | None, what: str) -> None:
    """Until something is so: on a busy machine for minutes, and each minute has a line.

    Raises NotHere when Airflow ends before, or the time of `--seconds` is over.
    """
    from recovery.airflow.local.preflight import NotHere
    from recovery.airflow.local.rest import NoAnswer

    began_s = shown_s = time.monotonic()
    while True:
        with contextlib.suppress(NoAnswer):
            if is_so():
                return
        _check_runs(airflow)
        now = time.monotonic()
        is_late = until is not None and now > until
        if is_late or now - shown_s > _TELL_WAITING_S:
            missing = ", ".join(rest.unhealthy())
            which = f" ({missing})" if missing else ""
            text = f"Airflow {what} after {now - began_s:.0f} s{which}; its log: {airflow.log}"
            if is_late:
                raise NotHere(text)
            shown_s = now
            show_now(f"{text}. Waiting on; Ctrl-C stops all of it")
        time.sleep(0.5)


def _check_runs(airflow: Standalone) -> None:
    """Raises NotHere when Airflow is gone: its database does not answer, say, or has tables of a newer one."""
    from recovery.airflow.local.preflight import NotHere

    if airflow.has_ended():
        raise NotHere(f"Airflow ended by itself; its log says why: {airflow.log}")


def _tell(rest: Rest, looked_after: Sequence[StoreSettings]) -> None:
    from recovery.airflow.local.status import last_runs, standing

    now = time.strftime("%H:%M:%S")
    for store in looked_after:
        if store.path:  # else its connection has it, which is Airflow's to read
            show_now(f"{now}  {standing(store.name, store.path, now_ms())}")
        else:
            show_now(f"{now}  {store.name}: the page shows it, since the connection {store.connection} has its path")
    show_now(f"{now}  {last_runs([store.name for store in looked_after], rest)}")


_EPILOG = examples(
    "up shop.store",
    "up shop.store --ledger postgresql+psycopg:///shop",
    "up shop.store --serve 127.0.0.1:10911",
    "up --demo",
)


def register(app: VerbGroup) -> None:
    """Put these verbs on the command line."""
    app.verb(up, epilog=_EPILOG, **listing("up"))
    app.verb(settings, epilog=examples("settings --check /etc/checkback/stores.toml"), **listing("settings"))
    airflow = VerbGroup("airflow", help="An Airflow with our DAGs.", no_args_is_help=True)
    airflow.verb(doctor, "doctor", epilog=examples("airflow doctor", "airflow doctor --seconds 0 --json"))
    app.add_group(airflow, **listing("airflow"))
