"""The verb that shows stores in a browser, without Airflow: `page`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from broker.format.java import split_address
from recovery.cli.declaration import Argument, BadParameter, Option, VerbGroup
from recovery.cli.shared import LogOrNone, examples, listing, secret
from recovery.cli.terminal.log_lines import log_to_stderr
from recovery.cli.terminal.output import show_now
from recovery.interrupts import stopped_by_signal

if TYPE_CHECKING:
    from recovery.page.app import PageStore

TOKEN = "CHECKBACK_PAGE_TOKEN"  # noqa: S105 - the name of a variable
Stores = Annotated[list[str] | None, Argument(metavar="STORE...", help="The directories of the stores.")]
Listen = Annotated[str, Option(metavar="HOST:PORT", help="The address to listen on; port 0 takes a free one.")]
Settings = Annotated[
    str | None, Option(metavar="FILE", help="The stores of Airflow's file of stores (TOML), with their ledgers.")
]
Ledger = Annotated[
    str | None,
    Option(metavar="URL", envvar="CHECKBACK_LEDGER", help="The ledger of STORE..., asked before a decision."),
]
Names = Annotated[
    list[str] | None, Option("--host-name", metavar="NAME", help="A name by which browsers reach it; repeatable.")
]
Certificate = Annotated[str | None, Option("--cert", metavar="FILE", help="A certificate (PEM): TLS.")]
Key = Annotated[str | None, Option("--key", metavar="FILE", help="Its private key (PEM).")]
Insecure = Annotated[bool, Option("--insecure", help="Listen beyond this machine without TLS.")]


def page(
    stores: Stores = None,
    listen: Listen = "127.0.0.1:8090",
    settings: Settings = None,
    ledger: Ledger = None,
    host_names: Names = None,
    certificate: Certificate = None,
    private_key: Key = None,
    insecure: Insecure = False,
    log: LogOrNone = None,
) -> None:
    """Show stores in a browser: in doubt, parked, consumers, dead letters, the last verification, one transaction.

    It listens on this machine only and prints a link with a token, made at each start unless CHECKBACK_PAGE_TOKEN has
    one. It reads; parked transactions are resolved and dead letters resent there, each with a reason. Ctrl-C stops it.
    """
    from broker.errors import BrokerError

    log_to_stderr(log)
    try:
        from recovery.page.serving import bound, check_token, is_loopback, new_token, serve
    except ModuleNotFoundError as error:
        raise BrokerError(f"the page needs {error.name}: install checkback with its extra 'page'") from None

    shown = [*_given(stores or [], ledger), *_configured(settings)]
    if not shown:
        raise BadParameter("give the directory of a store, or --settings", param_hint="STORE...")
    host, port = _address(listen)
    if not (is_loopback(host) or certificate or insecure):
        text = f"{host} is reached from other machines, and without TLS the token could be read on the way"
        raise BadParameter(f"{text}: give --cert and --key, or --insecure behind a proxy", param_hint="--listen")
    if (certificate is None) != (private_key is None):
        raise BadParameter("give --cert and --key together")
    token = check_token(secret(TOKEN) or new_token())
    if certificate is not None and private_key is not None:
        from broker.server.tls import server_context

        server_context(certificate, private_key)  # before the link is printed: uvicorn's own error names no file
    with bound(host, port) as listening:
        scheme, port = "https" if certificate else "http", listening.getsockname()[1]
        count = f"{len(shown)} store{'s' if len(shown) != 1 else ''}"
        stopped = stopped_by_signal()  # before what takes long to load
        show_now(f"{count}: {scheme}://{_shown(host)}:{port}/#token={token}   Ctrl-C stops it.")
        names = [host, "localhost", "127.0.0.1", "::1", "[::1]", *(host_names or [])]
        files = {"certificate": certificate, "private_key": private_key}
        serve(listening, _named_apart(shown), stopped=stopped, token=token, hosts=names, **files)


def _given(paths: Sequence[str], ledger: str | None) -> Iterator[PageStore]:
    """The stores of the command line; of one whose disk hangs the page has a line.

    Raises NotAStore, BrokerError for a ledger's URL that cannot be used.
    """
    from recovery.hanging import DoesNotAnswer, within_time
    from recovery.page.app import PageStore

    if ledger is not None:
        from recovery.checkback.ledgers.engines import check_url

        check_url(ledger)
    for path in paths:
        place = os.path.abspath(path)
        with contextlib.suppress(DoesNotAnswer):
            within_time(place, partial(_check_is_store, path))
        yield PageStore(os.path.basename(place), place, {"ledger": ledger} if ledger else {})


def _check_is_store(path: str) -> None:
    """Raises NotAStore."""
    import broker

    broker.open(path, read_only=True).close()


def _configured(file: str | None) -> Iterator[PageStore]:
    """The stores of Airflow's file; what its connections say is known to Airflow alone.

    A table with a mistake is a line that says so. Raises BadSettings for a file that cannot be read.
    """
    if file is None:
        return
    from recovery.airflow.settings import read_stores
    from recovery.page.app import PageStore

    found = read_stores(file)
    for store in found.stores:
        asked = {name: getattr(store, name) for name in ("ledger", "resolver", "catalog") if getattr(store, name)}
        specs = store.resolvers.items()
        known = {group: spec for group, spec in specs if not any("_connection" in name for name in spec)}
        resolvers: dict[str, Any] = {"resolvers": known} if known else {}
        text = f"{file}: stores.{store.name} has no path but a connection, which only Airflow can read"
        yield PageStore(store.name, store.path, {**asked, **resolvers}, "" if store.path else text)
    for wrong in found.broken:
        yield PageStore(wrong.name, "", why=wrong.why)


def _named_apart(stores: Sequence[PageStore]) -> list[PageStore]:
    """Each with a name of its own: the second `store` is `store-2`."""
    from dataclasses import replace

    found: dict[str, PageStore] = {}
    for store in stores:
        name, number = store.name, 1
        while name in found:
            number += 1
            name = f"{store.name}-{number}"
        found[name] = replace(store, name=name)
    return list(found.values())


def _address(listen: str) -> tuple[str, int]:
    host, port = split_address(listen) or ("", 0)
    if not host:
        raise BadParameter(f"{listen!r:.60} is not HOST:PORT, as 127.0.0.1:8090", param_hint="--listen")
    return host.strip("[]"), port


def _shown(host: str) -> str:
    """As it is in a URL."""
    return f"[{host}]" if ":" in host else host


def register(app: VerbGroup) -> None:
    """Give the command line its verb."""
    lines = examples("page shop.store", "page shop.store billing.store --listen 127.0.0.1:8091")
    app.verb(page, epilog=lines, **listing("page"))
