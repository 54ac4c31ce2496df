"""docs/operations.md says what the code says. `python -m tests.cli.test_operations_page` writes its table."""

from __future__ import annotations

import re
from pathlib import Path

from recovery.cli import shared as verbs
from recovery.findings import CAUSES, KINDS
from recovery.verify.remedies import NEXT_STEPS, NEXT_STEPS_OF_CAUSES, WITH_STATE_TABLE, next_step

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
BLOCK = re.compile(r"(<!-- (findings|causes) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def table(name: str) -> str:
    """Each kind of finding, or of cause, with its sentence and the next step."""
    head, sentences = {"findings": ("kind", KINDS), "causes": ("cause", CAUSES)}[name]
    lines = [f"| {head} | means | what to do |", "|---|---|---|"]
    lines += [f"| `{kind}` | {sentence} | {next_step(kind)} |" for kind, sentence in sentences.items()]
    return "\n".join(lines) + "\n"


def written_anew(text: str) -> str:
    return BLOCK.sub(lambda block: block[1] + table(block[2]) + block[4], text)


def test_the_table_is_that_of_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert "<!-- findings -->" in text
    assert "<!-- causes -->" in text
    assert text == written_anew(text), "run: python -m tests.cli.test_operations_page"


def test_every_kind_has_a_next_step() -> None:
    """And no kind that is gone has one."""
    assert set(NEXT_STEPS) == set(KINDS)
    assert set(NEXT_STEPS_OF_CAUSES) == set(CAUSES)
    assert set(WITH_STATE_TABLE) <= set(KINDS)


def test_advice_about_the_state_table_is_for_stores_that_have_one() -> None:
    assert "3.x" in next_step("files-missing", "state-table")
    assert "3.x" not in next_step("files-missing", "half-op")


def test_no_advice_destroys_what_a_broker_cannot_make_again() -> None:
    """Whatever replaces a derived file is a rebuild, which refuses stores that it does not understand."""
    for kind, step in NEXT_STEPS.items():
        assert not re.search(r"move .*(away|aside)|delete|rm |abort", step), kind
        if kind.startswith(("queue-", "index-", "files-")):
            assert "checkback rebuild STORE" in step, kind


def test_every_exit_code_is_explained() -> None:
    codes = re.findall(r"^\| (\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    known = (
        verbs.WELL, verbs.FINDINGS, verbs.USAGE, verbs.LOCKED, verbs.CORRUPT, verbs.DEFECT, verbs.INTERRUPTED,
        verbs.PIPE_CLOSED,
    )  # fmt: skip
    assert [int(code) for code in codes] == list(known)


def test_every_verb_has_its_part() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in verbs.VERBS:
        assert f"\n## {name}\n" in text or re.search(f"`{name}[` ]", text), f"say what `checkback {name}` does"


if __name__ == "__main__":
    PAGE.write_text(written_anew(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
