"""The HTML report: complete, true, and alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from recovery.cli import analytics as verbs_spark
from recovery.cli.declaration import VerbGroup
from recovery.verify.verifier import verify
from recovery.views.figures import TimeSums, survey
from recovery.views.html_report import html_report
from recovery.views.svg import bars, columns, nice, short, size_text
from tests.scan.logs import Chunk, Log, Wanted

NOW_MS = 1_900_000_000_000
VOID = {"meta", "br", "line", "rect", "i"}


class _Checked(HTMLParser):
    """Every tag is closed in order, and nothing is fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in {"script", "link", "img", "iframe", "object"}
        for name, value in attrs:
            assert name not in {"src", "href", "srcset", "data", "action"}, (tag, name, value)
            assert not name.startswith("on")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, _attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def _checked(page: str) -> str:
    parser = _Checked()
    parser.feed(page)
    assert not parser.open
    assert "url(" not in page
    assert "@import" not in page
    return "".join(parser.texts)


@pytest.mark.parametrize("name", ["rocketmq-3.1.5-recovered", "rocketmq-5.3.3-killed", "rocketmq-5.3.3-clean"])
def test_a_page_alone_with_the_numbers_of_the_verification(golden: Callable[[str], Path], name: str) -> None:
    """Well-formed, nothing from elsewhere, and the counts and the digest that `verify` gives."""
    path = golden(name)
    report = verify(path)
    text = _checked(html_report(survey(path, NOW_MS)))
    assert report.digest in text
    assert f"{report.records:,}records" in text
    assert f"{report.transactions['in_doubt']:,}in doubt" in text
    for kind, count in report.findings.counts.items():
        assert f"{count:,}{kind}" in text
    assert ("No finding" in text) == report.ok


def test_figures_add_up(golden: Callable[[str], Path]) -> None:
    """What the columns show in all is what there is."""
    figures = survey(golden("rocketmq-5.3.3-killed"), NOW_MS)
    report = figures.report
    assert figures.traffic.series(50)[2].sum(axis=0).tolist() == [report.records, report.bytes]
    states = [report.transactions[name] for name in ("committed", "rolled_back", "in_doubt", "parked")]
    assert figures.transactions.series(50)[2].sum(axis=0).tolist() == states
    assert figures.ages.total() == report.transactions["in_doubt"]
    assert sum(figures.topics.values()) == report.bytes
    assert figures.topic_records.total() == report.records


def test_names_from_the_log_are_text(tmp_path: Path) -> None:
    """A topic may be called anything; on the page it is words, never a tag."""
    log = Log(8192)
    log.append(Wanted(topic="<script>alert(1)</script>", chunks=(Chunk("bytes", b"x"),)))
    page = html_report(survey(log.write(tmp_path), NOW_MS))
    assert "<script>" not in page
    assert "<script>alert(1)</script>" in _checked(page)


def test_an_empty_store_has_a_page(tmp_path: Path) -> None:
    """Nothing to draw is no error."""
    log = Log(4096)
    log.preallocate(1)
    assert "0transactions" in _checked(html_report(survey(log.write(tmp_path), NOW_MS)))


def test_buckets_of_time_grow_wider() -> None:
    """However long the time and whatever the order, nothing is lost and the columns are few."""
    sums, dice = TimeSums(1), np.random.default_rng(3)
    for _ in range(30):
        times_ms = dice.integers(0, 10**12, 2000)
        sums.add(times_ms, np.ones((2000, 1), np.int64))
    start_ms, width_ms, rows = sums.series(120)
    assert rows.sum() == 60_000
    assert 1 < len(rows) <= 120
    assert start_ms + width_ms * len(rows) >= 10**12 * 0.99


def test_drawings() -> None:
    """Heights are to scale, and the axis ends at a round number."""
    drawn = columns(0, 1000, [[50, 50], [25, 0]], ["a", "b"], "", "t")
    heights = [float(found) for found in re.findall(r'height="([\d.]+)"/>', drawn)]
    assert heights == pytest.approx([92.0, 92.0, 46.0])
    assert [nice(value) for value in (0, 3, 99, 101, 5000)] == [1, 5, 100, 200, 5000]
    assert [short(value) for value in (7, 1234, 35_000_000)] == ["7", "1.23k", "35M"]
    assert [size_text(count) for count in (284, 6820)] == ["284 B", "6.82 kB"]
    assert 'width="340.0"' in bars([("one", 2, "two"), ("&", 1, "x")], "t")


@pytest.fixture
def app() -> VerbGroup:
    """The verbs alone."""
    app = VerbGroup()
    verbs_spark.register(app)
    return app


def test_the_verb_writes_the_page(app: VerbGroup, golden: Callable[[str], Path], tmp_path: Path) -> None:
    """And says in a line what is in it."""
    out = tmp_path / "store.html"
    done = CliRunner().invoke(app, ["report", str(golden("rocketmq-5.3.3-clean")), str(out)])
    assert done.exit_code == 0, done.output
    assert "0 findings" in done.output
    _checked(out.read_text(encoding="utf-8"))
    assert list(tmp_path.iterdir()) == [out]


def test_transactions_without_spark(app: VerbGroup, golden: Callable[[str], Path], tmp_path: Path) -> None:
    """The local engine writes the same files, by processes of this machine."""
    import pyarrow.parquet as pq

    store, out = str(golden("rocketmq-5.3.3-killed")), tmp_path / "out"
    done = CliRunner().invoke(app, ["transactions", store, str(out)])
    report = verify(store)
    assert done.exit_code == 0, done.output
    assert report.digest in done.output
    rows = pq.read_table(sorted(out.glob("*.parquet"))).to_pylist()
    assert len({row["unique_key"] for row in rows}) == report.transactions["total"]
