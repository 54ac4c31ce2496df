"""Verbs from functions: what the function gets, what is refused, and what the help says."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest
from click.testing import CliRunner

from broker.errors import BrokerError
from recovery.cli.app import app as checkback
from recovery.cli.declaration import Argument, Option, VerbGroup
from recovery.cli.terminal import completion


class Metal(StrEnum):
    """A choice."""

    LEAD = "lead"
    RARE_EARTH = "rare-earth"


def smelt(
    ore: Annotated[str, Argument(metavar="ORE", help="What goes in.")],
    metal: Annotated[Metal, Argument(metavar="METAL", help="What comes out.")] = Metal.LEAD,
    also: Annotated[list[Metal] | None, Option("--also", help="And these.")] = None,
    heat: Annotated[int, Option("--heat", "-t", min=1, max=9, metavar="N", help="How hot.")] = 3,
    seconds: Annotated[float | None, Option(min=0.5, metavar="N", help="How long.")] = None,
    vent: Annotated[bool | None, Option("--vent/--no-vent", help="Open the vent.")] = None,
    dry_run: Annotated[bool, Option(help="Change nothing.")] = False,
    owner: Annotated[str, Option(metavar="NAME", envvar="SMELT_OWNER", help="Whose it is.")] = "",
    secret: Annotated[int, Option(hidden=True)] = 0,
) -> None:
    """Smelt.

    At length.
    """
    GOT.append(dict(locals()))


GOT: list[dict[str, Any]] = []
DEFAULTS = {
    "ore": "o", "metal": Metal.LEAD, "also": None, "heat": 3, "seconds": None, "vent": None, "dry_run": False,
    "owner": "", "secret": 0,
}  # fmt: skip


def run(*words: str, **environment: str) -> tuple[int, str]:
    GOT.clear()
    group = VerbGroup()
    group.verb(smelt, epilog="Examples:\n  smelt iron --heat 4     # as it is")
    done = CliRunner().invoke(group, ["smelt", *words], env=environment)
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (("o",), {}),
        (("o", "rare-earth"), {"metal": Metal.RARE_EARTH}),
        (("o", "--also", "lead", "--also", "rare-earth"), {"also": [Metal.LEAD, Metal.RARE_EARTH]}),
        (("-t9", "o", "--seconds", "0.5"), {"heat": 9, "seconds": 0.5}),
        (("o", "--seconds", "500ms"), {"seconds": 0.5}),
        (("o", "--seconds", "2m"), {"seconds": 120.0}),
        (("o", "--no-vent", "--dry-run"), {"vent": False, "dry_run": True}),
        (("o", "--vent"), {"vent": True}),
    ],
)
def test_the_function_gets_values_of_its_types(words: Sequence[str], given: dict[str, Any]) -> None:
    assert run(*words) == (0, "")
    assert [DEFAULTS | given] == GOT
    metals = [GOT[0]["metal"], *(GOT[0]["also"] or [])]
    assert all(isinstance(metal, Metal) for metal in metals)


def test_an_option_may_come_from_the_environment() -> None:
    assert run("o", SMELT_OWNER="me") == (0, "")
    assert GOT == [DEFAULTS | {"owner": "me"}]
    assert run("o", "--owner", "you", SMELT_OWNER="me") == (0, "")
    assert GOT == [DEFAULTS | {"owner": "you"}]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "Missing argument 'ORE'."),
        (("o", "gold"), "'METAL': 'gold' is not one of 'lead', 'rare-earth'."),
        (("o", "-t", "10"), "10 is not in the range 1<=x<=9."),
        (("o", "--seconds", "0"), "0.0 is not in the range x>=0.5."),
        (("o", "--seconds", "3x"), "'3x': a duration is a number and one of ms, s, m, h, d, as in 30s"),
        (("o", "--seconds", "499ms"), "0.499 is not in the range x>=0.5."),
        (("o", "--heat", "hot"), "'hot' is not a valid integer"),
        (("o", "lead", "more"), "unexpected extra argument"),
        (("o", "--ventt"), "No such option"),
    ],
)
def test_wrong_words_are_refused_in_a_sentence(words: Sequence[str], sentence: str) -> None:
    code, output = run(*words)
    assert (code, GOT) == (2, [])
    assert sentence in output


def test_the_help_has_everything_but_what_is_hidden() -> None:
    """Arguments apart from options, defaults, ranges, the variable, and the examples as they are."""
    code, output = run("--help")
    assert (code, GOT) == (0, [])
    lines = [" ".join(line.split()) for line in output.splitlines()]
    for line in (
        "Usage: root smelt [OPTIONS] ORE [METAL]", "ORE What goes in.", "[METAL] What comes out. [default: lead]",
        "-t, --heat N How hot. [default: 3; 1<=x<=9]", "--owner NAME Whose it is. [env var: SMELT_OWNER]", "At length.",
    ):  # fmt: skip
        assert line in lines, output
    assert output.endswith("Examples:\n  smelt iron --heat 4     # as it is\n")
    assert "--secret" not in output


def test_zsh_that_completes_nothing_yet_completes_verbs(tmp_path: Path) -> None:
    """Without compinit in the startup file each zsh said that there is no command compdef, and completed nothing."""
    completion.install(checkback, "zsh", str(tmp_path))
    installed = (tmp_path / ".local/share/checkback/completion.zsh").read_text(encoding="utf-8")
    assert installed.startswith("#compdef checkback\n")
    assert installed.index("compinit -i") < installed.index("compdef _checkback_completion checkback")
    if zsh := shutil.which("zsh"):
        words = [zsh, "-d", "-i", "-c", "print -- $_comps[checkback]"]
        ran = subprocess.run(words, env={"HOME": str(tmp_path)}, capture_output=True, text=True, check=True)
        assert (ran.stdout, ran.stderr) == ("_checkback_completion\n", "")


def test_completion_is_installed_once(tmp_path: Path) -> None:
    """The shell's startup file gets a line of its own, whatever it ended with, and keeps what it has."""
    (tmp_path / ".bashrc").write_text("alias ll='ls -l'", encoding="utf-8")
    for _ in range(2):
        assert "completion.bash" in completion.install(checkback, "bash", str(tmp_path))
    lines = (tmp_path / ".bashrc").read_text(encoding="utf-8").splitlines()
    assert lines == ["alias ll='ls -l'", f"source {tmp_path}/.local/share/checkback/completion.bash"]
    completion.install(checkback, "fish", str(tmp_path))
    assert "checkback" in (tmp_path / ".config/fish/completions/checkback.fish").read_text(encoding="utf-8")
    with pytest.raises(BrokerError, match="bash, zsh and fish"):
        completion.shell_of({"SHELL": "/bin/dash"})
