"""`checkback new shop`: an application that runs as it stands, and whose own tests pass."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.cli.command import command
from tests.house.tree import ROOT

LINES_MAX = 60


def test_the_application_runs_and_its_tests_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of them kills workers. Its code is clean, too."""
    monkeypatch.chdir(tmp_path)
    ran = command(capsys, "new", "bakery")
    assert ran.code == 0
    assert "checkback work bakery:app" in ran.out
    directory = tmp_path / "bakery"
    assert sorted(path.name for path in directory.iterdir()) == ["README.md", "bakery.py", "test_bakery.py"]
    assert len((directory / "bakery.py").read_text().splitlines()) <= LINES_MAX
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for words in (["ruff", "check", "--isolated", "."], ["pytest", "-q", "-p", "no:cacheprovider"]):
        line = [sys.executable, "-m", *words]
        done = subprocess.run(
            line, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=280
        )
        assert done.returncode == 0, done.stdout + done.stderr
    placed = subprocess.run(
        [sys.executable, "bakery.py", "bread"],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert placed.stdout == "order 1: bread\n", placed.stderr
    options = ("--until-idle", "1s")
    words = [sys.executable, "-m", "recovery.cli", "work", "bakery:app", *options]
    done = subprocess.run(
        words, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_the_next_steps_need_nothing_that_checkback_does_not_bring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The extra `sql` has no pytest, so it is installed before it is run."""
    monkeypatch.chdir(tmp_path)
    for steps in (command(capsys, "new", "bakery").out, (tmp_path / "bakery" / "README.md").read_text()):
        assert steps.index("pip install pytest") < steps.index("python -m pytest")


@pytest.mark.parametrize(
    "name",
    ["Shop", "my-shop", "2shop", "broker", ".", "class", "test", "queue", "sqlalchemy", "conftest", "test_shop"],
)
def test_a_name_that_is_not_a_module_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = command(capsys, "new", name)
    assert ran.code == 2
    assert "cannot name an application" in ran.err
    assert ("a word of Python's own" in ran.err) is (name == "class")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "notes").write_text("mine")
    ran = command(capsys, "new", "shop")
    assert ran.code == 2
    assert "is not empty (it holds notes): nothing was made" in ran.err
    assert [path.name for path in (tmp_path / "shop").iterdir()] == ["notes"]


def test_files_beside_the_code_are_found_in_a_zip(tmp_path: Path) -> None:
    """`zipapp` of an application and checkback made none: "Not a directory"."""
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        template = ROOT / "recovery" / "work"
        for path in [*ROOT.glob("broker/**/*.py"), *ROOT.glob("recovery/*.py"), *template.rglob("*.*")]:
            archive.write(path, path.relative_to(ROOT))
    program = "from recovery.work.scaffold import make_application; print(list(make_application('bakery'))[0])"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "all.zip")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "made bakery/bakery.py\n", done
