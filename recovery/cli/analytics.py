"""The verbs for data people and managers: `transactions` (Parquet files) and `report` (one HTML page)."""

from __future__ import annotations

from shlex import quote
from typing import Annotated

from recovery.cli.declaration import Argument, Option, VerbGroup
from recovery.cli.shared import AsJson, Store, examples, listing, now_ms
from recovery.cli.terminal.output import Bar, print_json, show

Master = Annotated[
    str | None,
    Option("--spark", metavar="MASTER", help="Run on Spark: local[*], spark://host:7077, yarn, k8s://..."),
]


def transactions(
    store: Store,
    out: Annotated[str, Argument(metavar="OUT", help="The directory to write; it must not exist.")],
    as_json: AsJson = False,
    spark: Master = None,
) -> None:
    """Write one Parquet row for each transaction: ids, group, topic, keys, offsets, state, checks, age.

    OUT/_checkback.json, written last, has the counts and the digest.
    """
    from recovery.pipeline import in_memory
    from recovery.pipeline.store_location import StoreLocation
    from recovery.pipeline.transaction_files import check_out
    from recovery.spark import jobs, sessions

    started_ms = now_ms()
    with Bar("Verifying") as progress:
        if spark is None:
            written = in_memory.write_transactions(store, out, started_ms, progress=progress)
        else:
            StoreLocation(store).files()  # a wrong path is reported before Spark starts
            check_out(store, out)
            with sessions.running(spark) as session:
                written = jobs.write_transactions(session, store, out, now_ms=started_ms, progress=progress)
    if as_json:
        print_json(written.as_json())
        return
    counts = ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in written.transactions.items())
    show([f"{written.path}: {counts}", f"digest {written.digest}"])
    if written.damages or written.bad_crcs:
        text = f"The log has {len(written.damages)} damaged place(s) and {written.bad_crcs} record(s) with a wrong CRC"
        show([f"{text}: transactions may be missing. Run: checkback verify {quote(store)}"])


def report(
    store: Store,
    out: Annotated[str, Argument(metavar="FILE", help="The page to write, such as store.html.")],
) -> None:
    """Verify a store and write the result as one HTML page: figures, findings, transactions in doubt.

    The page is self-contained. It replaces an HTML page at FILE, and no other file.
    """
    from recovery.views.figures import survey
    from recovery.views.html_report import html_report
    from recovery.views.page_file import check_page, write_page

    check_page(out)
    with Bar("Verifying") as progress:
        figures = survey(store, now_ms(), progress)
    write_page(out, html_report(figures))
    found = len(figures.report.findings)
    show([f"{out}: {found} finding{'s' if found != 1 else ''}, {figures.report.transactions['in_doubt']} in doubt"])


def register(app: VerbGroup) -> None:
    """Add these verbs to the command line."""
    app.verb(
        transactions,
        epilog=examples("transactions shop.store out/", 'transactions shop.store out/ --spark "local[*]" --json'),
        **listing("transactions"),
    )
    app.verb(report, epilog=examples("report shop.store shop.html"), **listing("report"))
