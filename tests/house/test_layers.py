"""Who may import whom. An arrow that is not in a table here does not exist; a new one needs a line and a reason."""

from __future__ import annotations

import ast
import graphlib

import pytest

from tests.house.tree import Module, imports, modules, product, under

# Spark's workers import the scan: bytes to Arrow, and no operation.
SCAN = {
    "recovery.findings", "recovery.scan", "recovery.transactions.digest", "recovery.transactions.events",
}  # fmt: skip

# The most exact name that fits a module decides. A room may always import itself.
#
#     errors ◄ format ◄ store ◄ transaction ◄ producer, consumer, ledger ◄ broker ◄ recovery ◄ tasks ◄ dags
LAYERS: dict[str, set[str]] = {
    "broker.errors": set(),
    "broker.format": {"broker.errors"},
    "broker.message": {"broker.errors", "broker.format"},
    "broker.store": {"broker.errors", "broker.format", "broker.message"},
    "broker.transaction": {"broker.errors", "broker.format", "broker.message", "broker.store"},
    "broker": {"broker"},
    # Pure: a decision depends on its arguments alone.
    "recovery.checkback.policy": {"broker.errors", "broker.format"},
    **{name: {"broker.errors", "broker.format", "broker.store", "broker.transaction", *SCAN} for name in SCAN},
    "recovery": {"broker", "recovery"},
    "dags": {"recovery"},
}

# Nobody imports the command line.
TOP = {"recovery.cli.app"}  # its verbs are its neighbours

# A module for each kind of work.
VERBS = {
    "recovery.cli.shared", "recovery.cli.read", "recovery.cli.write", "recovery.cli.repair", "recovery.cli.checkback",
    "recovery.cli.consumer", "recovery.cli.ledger", "recovery.cli.analytics", "recovery.cli.up",
}  # fmt: skip

# Modules from outside that not every room may import, and the rooms that may.
OUTSIDE = {
    "struct": {
        "broker.format": "every layout is declared there, once",
        "broker.store.write.queue_offsets": "our own file, in native words",
        "broker.store.write.control": "our own file, in native words",
        "broker.store.write.pending_record": "patches single fields of a record under the append lock",
        "broker.store.write.indexwriter": "patches single fields of an index under the append lock",
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
    "rich": {
        "recovery.cli.output": "the terminal",
        "recovery.cli.tables": "tables for the terminal",
        "recovery.cli.tables_consumer": "tables for the terminal",
    },
    "typer": {"recovery.cli.app": "the terminal", **dict.fromkeys(VERBS, "verbs of the command line")},
    "sqlalchemy": {
        "broker.ledger": "a row in the application's database",
        "broker.django": "check-back reads the database that Django's settings name",
        "broker.enlisting": "joins the application's transaction",
        "broker.ledger_binding": "whose ledger it is",
        "broker.ledger_identity": "which database it is",
        "broker.tables": "makes the tables of those two",
        "broker.dedup": "a row in the consumer's database",
        "broker.consuming.processing": "commits it",
        "recovery.demo": "an application, with a database",
        "recovery.checkback.ledger_resolver": "asks the ledger",
        "recovery.checkback.ledgers.proof": "asks whose ledger it is",
        "recovery.checkback.ledgers.doctor": "asks the ledger how it is",
        "recovery.checkback.ledgers.routing": "asks several ledgers",
        "recovery.checkback.ledgers.database_errors": "what an error of the ledger's database means",
        "recovery.checkback.catalog": "the catalog is a database",
        "recovery.checkback.config": "opens the ledger's database",
        "recovery.cli.ledger": "opens the ledger's database",
        "recovery.cli.checkback": "a ledger that does not answer is left for the next time",
    },
    "tenacity": {
        "recovery.checkback.ledger_resolver": "a database that is briefly away",
        "recovery.checkback.http_resolver": "an endpoint that is briefly away",
    },
    "httpx": {"recovery.checkback.http_resolver": "asks an endpoint of the application"},
    "pyspark": {"recovery.spark": "the data source and the jobs"},
    "airflow": {"recovery.airflow": "hook, operators, trigger", "dags": "wiring"},
    "django": {"broker.django": "the adapter for Django's transactions"},
    "broker.testing": {"broker.testing": "for tests, ours and users'", "recovery.demo": "the demo kills itself"},
}

# Only these may load together with `broker`; the rest of OUTSIDE waits for its first use, inside a function.
LOADED_WITH_BROKER = {"struct"}
# Nothing in `broker` imports this room, so what it loads is loaded already.
LOADED_ALONE = {"broker.django": "django"}

# What a pure room may use: no files, no clock, no logging, no environment.
PURE = {
    "__future__", "abc", "binascii", "bisect", "collections", "dataclasses", "enum", "functools", "hashlib",
    "importlib", "io", "ipaddress", "itertools", "json", "math", "operator", "re", "string", "struct", "types",
    "typing", "zlib",
}  # fmt: skip
PURE_ROOMS = {"broker.format", "recovery.checkback.policy"}


by_module = pytest.mark.parametrize(
    "module", [module for module in product() if under(module.name, set(LAYERS))], ids=lambda module: module.name
)


def rule(name: str) -> str:
    """The most exact key of LAYERS for a module."""
    return max((key for key in LAYERS if under(name, {key})), key=len)


@by_module
def test_imports_follow_the_layers(module: Module) -> None:
    """A module imports only what lies below it."""
    own = rule(module.name)
    allowed = LAYERS[own] | {own}
    for name, line in imports(module):
        if name.split(".")[0] in {"broker", "recovery", "dags", "tests"}:
            assert under(name, allowed), f"{module.path}:{line}: {own} must not import {name}"
            assert name not in TOP or module.name == "recovery.cli.__main__", (
                f"{module.path}:{line}: nothing imports {name}"
            )


@by_module
def test_imports_from_outside_stay_in_their_rooms(module: Module) -> None:
    """pyspark, airflow, struct and the like are known only where they belong."""
    at_load = set(imports(module, at_load=True))
    for name, line in imports(module):
        for outside, rooms in OUTSIDE.items():
            if under(name, {outside}):
                place = f"{module.path}:{line}"
                assert under(module.name, set(rooms)), f"{place}: only {', '.join(rooms)} may import {outside}"
                free = LOADED_WITH_BROKER | {LOADED_ALONE[room] for room in LOADED_ALONE if under(module.name, {room})}
                if module.room == "broker" and outside not in free and not outside.startswith("broker"):
                    assert (name, line) not in at_load, f"{place}: import {outside} inside the function that needs it"


@pytest.mark.parametrize("module", [m for m in product() if under(m.name, PURE_ROOMS)], ids=lambda module: module.name)
def test_pure_rooms_are_pure(module: Module) -> None:
    """No files, no clock, no logging: values in, values out."""
    for name, line in imports(module, at_load=True):
        root = name.split(".")[0]
        assert root in PURE or root == "broker", f"{module.path}:{line}: {name} is not for a pure room"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"open", "print", "input"}, f"{module.path}:{node.lineno}: {node.func.id}()"


def test_rooms_that_load_alone_are_imported_by_nobody() -> None:
    """Only an application that has Django imports the adapter for it."""
    for module in product():
        for name, line in imports(module):
            for room in LOADED_ALONE:
                assert under(module.name, {room}) or not under(name, {room}), f"{module.path}:{line}: imports {room}"


def test_no_import_goes_in_a_circle() -> None:
    """Modules can be read in an order in which each needs only what came before."""
    names = {module.name for module in modules()}
    graph = {
        module.name: {name for name, _ in imports(module, at_load=True) if name in names and name != module.name}
        for module in modules()
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_pure_rooms_import_nothing_else_later() -> None:
    """Inside functions a pure room may load a decompressor, and nothing else."""
    for module in product():
        if under(module.name, PURE_ROOMS):
            for name, line in imports(module):
                root = name.split(".")[0]
                assert root in PURE | {"broker", "pyarrow"}, f"{module.path}:{line}: {name} is not for a pure room"
