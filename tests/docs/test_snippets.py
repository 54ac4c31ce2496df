"""Every Python block of README and docs/ runs, or says beside it why it does not.

A block without a prelude here runs as a program of its own, in an empty directory.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.snippets import Block, blocks, pages
from tests.house.tree import ROOT

# Pages whose programs another test runs.
ELSEWHERE = {
    "README.md": "tests/house/test_readme.py",
    "docs/airflow.md": "tests/airflow/test_docs.py",
    "docs/frameworks.md": "tests/frameworks/test_frameworks_page.py",
    "docs/tutorial.md": "tests/docs/test_tutorial.py",
}

STORE = """
import broker
with broker.open("shop.store", layout=broker.StoreLayout(segment_bytes=1 << 20)) as store:
    web = store.producer("web")
    for number in range(3):
        web.send(broker.Message("orders", b"%d" % number))
"""

# Pages whose blocks run one after the other in one program, with what comes before each block.
TOGETHER: dict[str, list[str]] = {
    "docs/consumer.md": [
        f"""{STORE}
charged = []
def charge(order_id):
    charged.append(order_id)
    if len(charged) == 3:
        raise KeyboardInterrupt
""",
        """
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
class Base(DeclarativeBase): ...
class Charge(Base):
    __tablename__ = "charges"
    order: Mapped[str] = mapped_column(primary_key=True)
engine = create_engine("sqlite:///billing.db")
Base.metadata.create_all(engine)
broker.Processed().create_all(engine)
assert len(charged) == 3
store = broker.open("shop.store")
consumer = store.consumer("invoices", "orders")
message = consumer.receive(timeout_s=10)
""",
    ],
    "docs/applications.md": [""],
    "docs/howto/arrow.md": [STORE],
    "docs/layouts-and-retention.md": ["import broker"],
    "docs/spark.md": [STORE],
}

RUNNER = """
import sys
for block in sys.stdin.read().split("\\0"):
    try:
        exec(compile(block, "<page>", "exec"))
    except KeyboardInterrupt:  # how a prelude ends a loop that runs for ever
        pass
"""


def programs(page: str) -> list[Block]:
    """The Python blocks of a page that are to be run."""
    return [block for block in blocks(page) if block.language == "python" and not block.not_run]


def run(text: str, directory: Path) -> None:
    """Run blocks, separated by zero bytes, in an empty directory."""
    command = [sys.executable, "-c", RUNNER]
    done = subprocess.run(command, input=text, cwd=directory, capture_output=True, text=True, check=False, timeout=560)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.timeout(600)  # one of them starts Spark
@pytest.mark.parametrize("page", sorted(TOGETHER))
def test_the_programs_of_a_page_run_in_order(page: str, tmp_path: Path) -> None:
    found = programs(page)
    assert len(found) >= len(TOGETHER[page]), f"{page} has fewer programs than preludes"
    preludes = TOGETHER[page] + [""] * (len(found) - len(TOGETHER[page]))
    run("\0".join(f"{before}\0{block.text}" for before, block in zip(preludes, found, strict=True)), tmp_path)


ALONE = [
    pytest.param(block.text, id=f"{page}-{number}")
    for page in pages()
    if page not in ELSEWHERE and page not in TOGETHER
    for number, block in enumerate(programs(page))
]


@pytest.mark.parametrize("program", ALONE)
def test_a_program_runs(program: str, tmp_path: Path) -> None:
    run(program, tmp_path)


def test_what_does_not_run_says_why() -> None:
    """And there is little of it."""
    reasons = [block.not_run for page in pages() for block in blocks(page) if block.not_run]
    assert set(reasons) <= {"needs a cluster", "needs an object store"}
    assert len(reasons) <= 3


def test_what_runs_elsewhere_does() -> None:
    """The pages and the tests that this file leaves out are there."""
    for page, test in ELSEWHERE.items():
        assert programs(page), page
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8"), test
