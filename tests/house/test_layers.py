"""Who may import whom. An arrow that is not in a table here does not exist; a new one needs a line and a reason."""

from __future__ import annotations

import ast
import graphlib
from collections import defaultdict
from collections.abc import Iterator, Mapping

import pytest

from tests.house.tree import Module, imports, modules, product, under

pytestmark = pytest.mark.xdist_group("house")  # one process reads the whole project

# Packages: the most exact name that fits a module decides. A room may always import itself.
#
#     errors ◄ format ◄ store ◄ transaction ◄ producer, consumer, ledger ◄ broker ◄ recovery ◄ dags
LAYERS: dict[str, set[str]] = {
    "broker.errors": set(),
    "broker.compiled": {"broker._fast"},  # the C module, where it was built
    "broker.format": {"broker.errors"},
    "broker.message": {"broker.compiled", "broker.errors", "broker.format"},
    "broker.remoting": {"broker.errors", "broker.format"},
    "broker.filtering": {"broker.errors", "broker.format"},
    "broker.store": {"broker.compiled", "broker.errors", "broker.format", "broker.message"},
    "broker.transaction": {"broker.compiled", "broker.errors", "broker.format", "broker.message", "broker.store"},
    # A client of brokers elsewhere; what serves them is not below it.
    "broker.cluster": {
        "broker.consuming",
        "broker.database.bound_ledger",
        "broker.database.dedup",
        "broker.producing.destination",
        "broker.errors",
        "broker.format",
        "broker.ledger",
        "broker.database.ledger_binding",
        "broker.message",
        "broker.log_fields",
        "broker.observing",
        "broker.producer",
        "broker.receiving",
        "broker.remoting",
        "broker.producing.send_arguments",
        "broker.store.write.uniquekey",
        "broker.transaction",
    },
    "broker": {"broker"},
    # Pure: a decision depends on its arguments alone.
    "recovery.checkback.policy": {"broker.errors", "broker.format", "recovery.durations"},
    # Spark's workers import these: bytes to rows, and no operation.
    "recovery.scan": {
        "broker.compiled",
        "broker.errors",
        "broker.format",
        "broker.store",
        "broker.transaction",
        "recovery",
    },
    "recovery.transactions": {
        "broker.compiled",
        "broker.errors",
        "broker.format",
        "broker.store",
        "broker.transaction",
        "recovery",
    },
    "recovery": {"broker", "recovery"},
    "dags": {"recovery"},
}

# Rooms, highest first. A room imports itself and the floors below it; never its own floor, never one above.
FLOORS: dict[str, tuple[set[str], ...]] = {
    "recovery": (
        {"cli"},
        {"airflow"},
        {"page"},  # what both hosts of the operations page show
        {"jobs"},
        {"spark"},
        {"pipeline"},  # a judgement in stages, for whichever executor runs them
        {"repair", "metrics"},
        {"rebuild", "views", "following", "moving", "torture"},
        {"verify"},
        {"demo"},  # of a cluster it needs what answers its checks
        {"transactions", "answering", "work"},
        {"checkback"},
        {"scan"},
        {"durations", "findings", "hanging", "humanize", "interrupts", "metrics_server", "sqlite_files"},
    ),
    "broker.store": (
        {"writer"},
        {"recover"},
        {"maintain"},
        {"engines"},  # what differs between the engines of transactions
        {"write"},
        {"shared"},
        {"read"},
        {"clock", "disk"},
    ),
}

# Nobody imports the command line.
TOP = {"recovery.cli.app"}  # its verbs are its neighbours

# Modules from outside that not every room may import, and the rooms that may.
OUTSIDE = {
    "struct": {
        "broker.format": "every layout is declared there, once",
        "broker.remoting.command": "the head of a frame",
        "broker.store.shared.queue_offsets": "our own file, in native words",
        "broker.store.shared.control": "our own file, in native words",
        "broker.store.engines.half_op": "patches single fields of a half message, and of an op message",
        "broker.store.write.pending_record": "patches single fields of a record under the append lock",
        "broker.store.write.indexwriter": "patches single fields of an index under the append lock",
        "recovery.torture.second_reader": "shares no code with what it verifies",
        "recovery.transactions.digest": "what is hashed is no layout on disk",
        "recovery.scan.framing": "the hot loop reads two fields of each record, at 0.1 µs",
    },
    "numpy": {"recovery": "whole-store work"},
    "pyarrow": {
        "recovery": "whole-store work",
        "broker.format": "decompresses bodies, at first use",
    },
    "isal": {
        "recovery": "whole-store work",
        "broker.store.write.pending_record": "the CRC of each record, where it is installed",
    },
    "uvloop": {"broker.server.event_loop": "the server's event loop, where it is installed"},
    "click": {
        "recovery.cli.app": "the program",
        "recovery.cli.declaration": "verbs from functions",
        "recovery.cli.terminal.completion": "the shell's script",
    },
    "sqlalchemy": {
        "broker.ledger": "a row in the application's database",
        "broker.django": "check-back reads the database that Django's settings name",
        "broker.enlisting": "joins the application's transaction",
        "broker.database.ledger_binding": "whose ledger it is",
        "broker.database.ledger_identity": "which database it is",
        "broker.database.new_connection": "where one of its connections goes",
        "broker.database.tables": "makes the tables of those two",
        "broker.database.dedup": "a row in the consumer's database",
        "broker.app": "sessions of handlers and of transaction blocks",
        "broker.consuming.processing": "commits it",
        "broker.consuming.once": "looks at its session",
        "recovery.demo": "an application, with a database",
        "recovery.answering.group_answering": "a ledger that does not answer",
        "recovery.checkback.ledger_resolver": "asks the ledger",
        "recovery.checkback.ledgers.proof": "asks whose ledger it is",
        "recovery.checkback.ledgers.doctor": "asks the ledger how it is",
        "recovery.checkback.ledgers.routing": "asks several ledgers",
        "recovery.checkback.ledgers.database_errors": "what an error of the ledger's database means",
        "recovery.checkback.ledgers.engines": "the engine for a URL of the command line",
        "recovery.checkback.catalog": "the catalog is a database",
        "recovery.checkback.config": "opens the ledger's database",
        "recovery.cli.ledger": "opens the ledger's database",
        "recovery.moving.ledger_carry": "binds the ledger to the cluster",
        "recovery.airflow.operating": "reads the database of Airflow",
        "recovery.jobs.checks": "whether the databases of the settings answer",
        "recovery.checkback.ledger_retention": "a ledger that does not answer is left for the next time",
    },
    "tenacity": {
        "recovery.checkback.ledger_resolver": "a database that is briefly away",
        "recovery.checkback.http_resolver": "an endpoint that is briefly away",
    },
    "starlette": {"recovery.page.app": "the page that runs alone"},
    "uvicorn": {"recovery.page.serving": "the page that runs alone"},
    "httpx": {"recovery.checkback.http_resolver": "asks an endpoint of the application"},
    "pyspark": {"recovery.spark": "the data source and the jobs"},
    "airflow": {"recovery.airflow": "hook, operators, trigger", "dags": "wiring"},
    "opentelemetry": {"broker.telemetry": "spans, for applications that switch them on"},
    "django": {"broker.django": "the adapter for Django's transactions"},
    "broker.testing": {
        "broker.testing": "for tests, ours and users'",
        "recovery.demo": "the demo kills itself",
        "recovery.torture": "cuts power",
    },
}

# Only these may load together with `broker`; the rest of OUTSIDE waits for its first use, inside a function.
LOADED_WITH_BROKER = {"struct"}
# Nothing in `broker` imports this room, so what it loads is loaded already.
LOADED_ALONE = {"broker.django": "django", "broker.telemetry": "opentelemetry"}

# What a pure room may use: no files, no clock, no logging, no environment.
PURE = {
    "__future__", "abc", "base64", "binascii", "bisect", "collections", "dataclasses", "enum", "functools", "hashlib",
    "hmac", "importlib", "io", "ipaddress", "itertools", "json", "math", "msgspec", "operator", "re", "string",
    "struct", "types", "typing", "zlib",
}  # fmt: skip
PURE_ROOMS = {"broker.filtering", "broker.format", "broker.remoting", "recovery.checkback.policy", "recovery.durations"}


def layered() -> list[Module]:
    """The modules that LAYERS has a rule for."""
    return [module for module in product() if under(module.name, set(LAYERS))]


def report(offenders: Iterator[str]) -> None:
    """Fail with all offenders, a line each."""
    if lines := list(offenders):
        pytest.fail("\n".join(lines), pytrace=False)


def rule(name: str) -> str:
    """The most exact key of LAYERS for a module."""
    return max((key for key in LAYERS if under(name, {key})), key=len)


def test_imports_follow_the_layers() -> None:
    """A module imports only what lies below it."""

    def offenders() -> Iterator[str]:
        for module in layered():
            own = rule(module.name)
            allowed = LAYERS[own] | {own}
            for name, line in imports(module, types=True):
                if name.split(".")[0] in {"broker", "recovery", "dags", "tests"}:
                    if not under(name, allowed):
                        yield f"{module.path}:{line}: {own} must not import {name}"
                    if name in TOP and module.name != "recovery.cli.__main__":
                        yield f"{module.path}:{line}: nothing imports {name}"

    report(offenders())


def room_of(name: str, package: str) -> str | None:
    """The room of a package that a module is in; None for the package itself and for what is outside of it."""
    inside = name.removeprefix(package + ".")
    return None if inside == name else inside.split(".")[0]


def arrows_up(package: str) -> Iterator[str]:
    """Each import of a package's rooms that goes up or sideways."""
    floors = FLOORS[package]
    height = {room: len(floors) - number for number, rooms in enumerate(floors) for room in rooms}
    for module in product():
        own = room_of(module.name, package)
        if own is None or (module.path.name == "__init__.py" and own not in height):
            continue
        if own not in height:
            yield f"{module.path}: the room {own} is not in FLOORS"
            continue
        for name, line in imports(module, types=True):
            room = room_of(name, package)
            if room not in (None, own) and height[own] <= height.get(str(room), 0):
                yield f"{module.path}:{line}: {own} is not above {room}"


@pytest.mark.parametrize("package", FLOORS)
def test_rooms_import_only_what_lies_below(package: str) -> None:
    """Imports inside functions and under TYPE_CHECKING count, too."""
    report(arrows_up(package))


def test_imports_from_outside_stay_in_their_rooms() -> None:
    """pyspark, airflow, struct and the like are known only where they belong."""

    def offenders() -> Iterator[str]:
        for module in layered():
            at_load = set(imports(module, at_load=True))
            for name, line in imports(module):
                for outside, rooms in OUTSIDE.items():
                    if not under(name, {outside}):
                        continue
                    place = f"{module.path}:{line}"
                    if not under(module.name, set(rooms)):
                        yield f"{place}: only {', '.join(rooms)} may import {outside}"
                    free = LOADED_WITH_BROKER | {
                        LOADED_ALONE[room] for room in LOADED_ALONE if under(module.name, {room})
                    }
                    is_late = outside in free or outside.startswith("broker")
                    if module.room == "broker" and not is_late and (name, line) in at_load:
                        yield f"{place}: import {outside} inside the function that needs it"

    report(offenders())


def test_pure_rooms_are_pure() -> None:
    """No files, no clock, no logging: values in, values out. Inside functions a decompressor may load."""

    def offenders() -> Iterator[str]:
        for module in product():
            if not under(module.name, PURE_ROOMS):
                continue
            at_load = set(imports(module, at_load=True))
            for name, line in imports(module):
                allowed = PURE | {"broker"} | (set() if (name, line) in at_load else {"pyarrow"})
                if name.split(".")[0] not in allowed and not under(name, PURE_ROOMS):
                    yield f"{module.path}:{line}: {name} is not for a pure room"
            for node in ast.walk(module.tree):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in {"open", "print", "input"}:
                    yield f"{module.path}:{node.lineno}: {ast.unparse(node.func)}()"

    report(offenders())


def test_rooms_that_load_alone_are_imported_by_nobody() -> None:
    """Only an application that has Django imports the adapter for it, and one that wants spans those."""
    for module in product():
        if module.name == "recovery.cli.terminal.traces":  # the option --otlp, in a function
            continue
        for name, line in imports(module):
            for room in LOADED_ALONE:
                assert under(module.name, {room}) or not under(name, {room}), f"{module.path}:{line}: imports {room}"


def test_no_import_goes_in_a_circle() -> None:
    """Modules can be read in an order in which each needs only what came before; imports in functions and for the
    type checker count. A package's door, which loads its rooms at first use, is no module to read first."""
    names = {module.name for module in modules() if module.path.name != "__init__.py"}
    graph = {
        module.name: {name for name, _ in imports(module, types=True) if name in names and name != module.name}
        for module in modules()
        if module.name in names
    }
    circle = _circle(graph)
    assert not circle, " imports ".join(circle)


@pytest.mark.parametrize("package", FLOORS)
def test_no_circle_of_rooms(package: str) -> None:
    """Rooms can be read in an order, too."""
    graph: dict[str, set[str]] = defaultdict(set)
    for module in product():
        own = room_of(module.name, package)
        for name, _ in imports(module, types=True) if own else ():
            room = room_of(name, package)
            if room not in (None, own):
                graph[str(own)].add(str(room))
    circle = _circle(graph)
    assert not circle, " imports ".join(circle)


def _circle(graph: Mapping[str, set[str]]) -> list[str]:
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(reversed(error.args[1]))
    return []
