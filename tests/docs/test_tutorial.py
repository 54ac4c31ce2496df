"""docs/tutorial.md: its programs are written, its commands run, and they print what the page shows."""

from __future__ import annotations

from pathlib import Path

from tests.docs.snippets import agrees, blocks, commands, run

PAGE = "docs/tutorial.md"


def test_the_tutorial_runs(tmp_path: Path) -> None:
    """From an empty directory, in the order of the page."""
    ran = 0
    for block in blocks(PAGE):
        if block.language == "python":
            assert block.title, f"{PAGE}: a program without a file name:\n{block.text}"
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
            continue
        assert block.language == "console"
        for command, expected in commands(block.text):
            printed = run(command, tmp_path)
            shown = "\n".join(printed)
            assert agrees(expected, printed), f"$ {command}\nprinted\n{shown}\nand the page shows\n" + "\n".join(
                expected
            )
            ran += 1
    assert ran >= 10
