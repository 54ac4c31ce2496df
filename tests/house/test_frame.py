"""The files around the code: Makefile, lock, documents; and that none of them knows the machine it was written on."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.golden import unpack
from tests.house.tree import ROOT, files, texts

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TARGET = re.compile(r"^([a-z][a-z-]*):(?!=)(.*)$", re.MULTILINE)

# `make x` in backticks, or a line of a code block that begins with it.
MENTION = re.compile(r"`make ((?:[a-z-]+ ?)+)`|^(?:\$ )?make ((?:[a-z-]+ ?)+)(?:#.*)?$", re.MULTILINE)

# Directories that many programs share, where a neighbour's path may stand in a document.
PUBLIC = {Path("/"), Path("/opt"), Path("/srv"), Path("/tmp")}  # noqa: S108


def pins(name: str) -> dict[str, set[str]]:
    """Of each distribution in a lock, its versions: there may be one for each Python."""
    found: dict[str, set[str]] = {}
    for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
        if match := re.match(r"([a-z0-9-]+)==([^ ;]+)", line):
            found.setdefault(match[1], set()).add(match[2])
    return found


def test_every_target_has_a_line_of_help() -> None:
    """`make` alone prints the list; nothing is missing in it."""
    targets = dict(TARGET.findall(MAKEFILE))
    assert {"help", "setup", "run", "test", "lint", "compat", "bench", "lock", "clean"} <= set(targets)
    for target, rest in targets.items():
        assert re.search(r"## \S", rest), f"the target {target} has no ## line"
        assert re.search(rf"^\.PHONY:.*\b{target}\b", MAKEFILE, re.MULTILINE), f"{target} is not in .PHONY"


def test_make_alone_prints_the_list() -> None:
    """The help names each target."""
    listed = subprocess.run(["make", "-s", "-C", ROOT], check=True, capture_output=True, text=True).stdout
    assert re.findall(r"^make ([a-z-]+)", listed, re.MULTILINE) == [target for target, _ in TARGET.findall(MAKEFILE)]


def test_documents_name_targets_that_exist() -> None:
    """A reader can type what a document says."""
    targets = {target for target, _ in TARGET.findall(MAKEFILE)}
    for path, text in texts():
        if path.suffix == ".md":
            for match in MENTION.finditer(text):
                assert set((match[1] or match[2]).split()) <= targets, f"{path}: {match[0]}"


def test_programs_that_are_named_are_there() -> None:
    """`python -m` with a module of this project, in documents, docstrings and messages."""
    for path, text in texts():
        for name in re.findall(r"python3? -m ((?:tests|recovery|broker)(?:\.\w+)*)", text):
            place = ROOT / name.replace(".", "/")
            assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file(), f"{path}: {name}"


def test_links_lead_somewhere() -> None:
    """A relative link in a document leads to a file of the project, or to a page that the site generates."""
    hooks = (ROOT / "docs/site_hooks.py").read_text(encoding="utf-8")
    generated = {ROOT / "docs" / page for page in re.findall(r'^    "([\w/-]+\.md)": \w+,$', hooks, re.MULTILINE)}
    assert generated
    for path, text in texts():
        if path.suffix == ".md":
            for link in re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", text):
                target = (ROOT / path.parent / link).resolve()
                assert target.exists() or target in generated, f"{path}: {link}"
                assert target.is_relative_to(ROOT), f"{path}: {link}"


def test_the_lock_is_exact_hashed_and_names_no_host() -> None:
    """Whoever installs from it gets the same bytes, from whichever index they use."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert not re.search(r"://|--(extra-)?index-url|--find-links|^-e |@ ", lock, re.MULTILINE)
    assert not re.search(r"://|^-", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    for requirement in re.split(r"\n(?=\S)", lock.strip()):
        assert re.match(r"\S+==\S+", requirement), requirement
        assert "--hash=sha256:" in requirement, requirement
    assert pins("constraints.txt") == pins("requirements.lock")


def test_the_lock_has_what_pyproject_asks_for() -> None:
    """The core and the locked extras; the build backend is the same one in both places."""
    extras = re.search(r"^EXTRAS := (.*)$", MAKEFILE, re.MULTILINE)
    assert extras
    wanted = list(PYPROJECT["project"]["dependencies"])
    for extra in extras[1].split():
        wanted += PYPROJECT["project"]["optional-dependencies"][extra]
    locked = pins("requirements.lock")
    assert {re.split(r"[^a-z0-9-]", requirement)[0] for requirement in wanted} <= set(locked)
    (backend,) = PYPROJECT["build-system"]["requires"]
    assert backend in PYPROJECT["project"]["optional-dependencies"]["dev"]
    assert locked["setuptools"] == {backend.removeprefix("setuptools==")}


def test_pyspark_is_never_overwritten() -> None:
    """The Spark provider of Airflow brings pyspark-client, which writes other versions of the same files."""
    assert "pyspark-client" not in pins("requirements.lock")
    assert not [line for line in PYPROJECT["project"]["optional-dependencies"]["airflow"] if "spark" in line]


def test_messages_name_extras_that_exist_and_no_index() -> None:
    """checkback is on no index yet: `pip install checkback[...]` would fail, or install another project's package."""
    code = {path: text for path, text in texts() if path.suffix == ".py" and path.parts[0] in ("broker", "recovery")}
    named = {name for text in code.values() for name in re.findall(r"nstall checkback with its extra '(\w+)'", text)}
    assert {"airflow", "fast", "http", "page", "rocksdb", "spark", "telemetry"} <= named
    assert named <= set(PYPROJECT["project"]["optional-dependencies"])
    assert not [path for path, text in code.items() if re.search(r"pip install ['\"]?checkback", text)]


def test_each_release_says_what_changes_on_disk() -> None:
    """CHANGELOG.md has this version, and a line "On disk:" for each."""
    _, *releases = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")
    assert releases[0].startswith(PYPROJECT["project"]["version"])
    for release in releases:
        assert "\nOn disk: " in release, f"{release.splitlines()[0]} does not say what changes on disk"


def test_nothing_knows_the_machine_it_was_written_on() -> None:
    """No path of this tree, of a directory beside it, or of a home."""
    here = [ROOT, Path.home()]
    if ROOT.parent not in PUBLIC:
        here += [path for path in ROOT.parent.iterdir() if path.is_dir()]
    paths = [re.escape(f"{path}/") for path in here if path != Path("/")]
    known = re.compile("|".join([*paths, r"/(?:home|Users)/[A-Za-z]", r"/(?:root)/"]))
    for path, text in texts():
        assert not known.search(text), f"{path}: {known.search(text)}"


@pytest.mark.parametrize("name", unpack.names())
def test_golden_stores_are_documented(name: str) -> None:
    """Each has a line in the README of its directory."""
    assert f"| `{name}` |" in (unpack.HERE / "README.md").read_text(encoding="utf-8")


def test_golden_stores_unpack_for_a_reader_without_pytest(tmp_path: Path) -> None:
    """The script gives each store its directory, and leaves alone what is there."""
    script = [sys.executable, ROOT / "tests/golden/unpack.py", tmp_path]
    subprocess.run(script, check=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == unpack.names()
    for name in unpack.names():
        assert (tmp_path / name / "commitlog").is_dir()
        (tmp_path / name / "mine").touch()
    subprocess.run(script, check=True)
    assert all((tmp_path / name / "mine").exists() for name in unpack.names())


def test_no_file_is_committed_by_mistake() -> None:
    """What .gitignore leaves out stays out."""
    for path in files():
        assert path.parts[0] not in {".venv", "build", "dist"}
        assert "__pycache__" not in path.parts
