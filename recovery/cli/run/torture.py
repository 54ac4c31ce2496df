"""The verb that proves a disk: `torture`."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from recovery.cli.declaration import Argument, Option, VerbGroup
from recovery.cli.shared import FINDINGS, AsJson, bytes_of, examples, fail, listing
from recovery.cli.terminal.output import print_json, show, warn

if TYPE_CHECKING:
    from recovery.torture.kit import TortureReport


class LayoutName(StrEnum):
    """The presets of `broker.StoreLayout`."""

    SMALL = "small"
    DEFAULT = "default"
    ROCKETMQ = "rocketmq"


class EngineName(StrEnum):
    """The engines of transactions."""

    STATE_TABLE = "state-table"
    HALF_OP = "half-op"


class SyncMode(StrEnum):
    """The sync modes of `broker.open`."""

    EACH = "each"
    GROUP = "group"
    OS = "os"


def torture(
    path: Annotated[str, Argument(metavar="PATH", help="A directory on the disk where the store will be.")],
    layout: Annotated[LayoutName, Option(help="The file sizes of the store.")] = LayoutName.DEFAULT,
    engine: Annotated[EngineName, Option(help="The engine of transactions.")] = EngineName.STATE_TABLE,
    sync: Annotated[SyncMode, Option(help="The sync mode that the application opens it with.")] = SyncMode.GROUP,
    seconds: Annotated[float, Option(min=1, max=86400, metavar="TIME", help="How long it runs, about.")] = 60,
    bytes_max: Annotated[str, Option("--bytes", metavar="SIZE", help="The space that it may take.")] = "512MiB",
    seed: Annotated[int, Option(min=0, metavar="N", help="Of what is random: the same again.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Prove on this disk that kills, power cuts and a full disk lose nothing, and report what the disk promises.

    Real processes are killed while they write to a store of the given layout; the power fails at random steps of a
    simulated disk with tiny files in the same place; the disk fills up. Measured are fsync, dropped caches, renames,
    allocation, shared maps and locks.

    It works in a new directory under PATH, which is removed when everything held, and else kept and named. Exit codes:
    0 everything held, 1 something did not, 2 refused. What a drive does when its power fails no program can see.
    """
    from recovery.torture.kit import Limits, Subject, prove

    size = bytes_of("--bytes", bytes_max)
    subject = Subject(str(layout), str(engine), str(sync))
    report = prove(path, Limits(seconds, size, seed), subject, warn)
    if as_json:
        print_json(report.as_json())
    else:
        show(_lines(report))
    if not report.holds:
        broken = [verdict for verdict in report.verdicts if verdict.outcome == "broken"]
        text = f"a promise was broken ({broken[0].promise}): {broken[0].sentence}"
        fail(f"{text}. What it left is in {report.kept}; remove it when you have seen it", FINDINGS)


def _lines(report: TortureReport) -> Iterator[str]:
    from recovery.humanize import printable

    for verdict in report.verdicts:
        yield printable(f"{verdict.outcome:<8} {verdict.promise}: {verdict.sentence}")
    subject = report.subject
    about = f"layout {subject.layout}, engine {subject.engine}, sync {subject.sync}, seed {report.limits.seed}"
    result = "Every promise that could be seen was kept" if report.holds else "NOT every promise was kept"
    yield f"{result}: {about}, {report.seconds:.0f} s."


def register(app: VerbGroup) -> None:
    """Put the verb on the command line."""
    app.verb(
        torture,
        **listing("torture"),
        epilog=examples(
            "torture /srv/shop",
            "torture /srv/shop --sync each --engine half-op --seconds 600",
            "torture /srv/shop --layout rocketmq --bytes 8GiB --json",
        ),
    )
