"""docs/operations.md says what the code says. `python -m tests.operations.test_operations_page` writes its table."""

from __future__ import annotations

import re
from pathlib import Path

from recovery import cli
from recovery.advice import NEXT_STEPS, WITH_STATE_TABLE, next_step
from recovery.report import KINDS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
BLOCK = re.compile(r"(<!-- findings -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def table() -> str:
    """Each kind of finding with its sentence and the next step."""
    lines = ["| kind | means | what to do |", "|---|---|---|"]
    lines += [f"| `{kind}` | {sentence} | {next_step(kind)} |" for kind, sentence in KINDS.items()]
    return "\n".join(lines) + "\n"


def written_anew(text: str) -> str:
    return BLOCK.sub(lambda block: block[1] + table() + block[3], text)


def test_the_table_is_that_of_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert "<!-- findings -->" in text
    assert text == written_anew(text), "run: python -m tests.operations.test_operations_page"


def test_every_kind_has_a_next_step() -> None:
    """And no kind that is gone has one."""
    assert set(NEXT_STEPS) == set(KINDS)
    assert set(WITH_STATE_TABLE) <= set(KINDS)


def test_advice_about_the_state_table_is_for_stores_that_have_one() -> None:
    assert "3.x" in next_step("queue-missing", "state-table")
    assert "3.x" not in next_step("queue-missing", "half-op")


def test_every_exit_code_is_explained() -> None:
    codes = re.findall(r"^\| (\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    known = (cli.WELL, cli.FINDINGS, cli.USAGE, cli.LOCKED, cli.CORRUPT, cli.DEFECT, cli.INTERRUPTED, cli.PIPE_CLOSED)
    assert [int(code) for code in codes] == list(known)


def test_every_verb_has_its_part() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for command in cli.app.registered_commands:
        assert command.callback
        assert f"\n## {command.callback.__name__}\n" in text


if __name__ == "__main__":
    PAGE.write_text(written_anew(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
