"""Completion of verbs, options and files in the user's shell: the script that click writes for it, and its place."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from click.shell_completion import get_completion_class

from broker.errors import BrokerError

if TYPE_CHECKING:
    import click

_VARIABLE = "_CHECKBACK_COMPLETE"  # click reads it when the shell asks what may follow
_STARTED_WITH = {"bash": ".bashrc", "zsh": ".zshrc"}
# zsh knows `compdef` where its user ran compinit. -i: it asks nothing about directories of others.
_ZSH_HAS_NONE = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }"
_FISH = ".config/fish/completions/checkback.fish"


def shell_of(environment: Mapping[str, str]) -> str:
    """The shell that a user logs in with. Raises BrokerError if there is no completion for it."""
    name = os.path.basename(environment.get("SHELL", ""))
    if name not in ("bash", "zsh", "fish"):
        raise BrokerError(f"SHELL is {name or 'not set'}: completion is for bash, zsh and fish")
    return name


def script(program: click.Command, shell: str) -> str:
    """What the shell runs when it starts."""
    writer = get_completion_class(shell)
    if writer is None:
        raise BrokerError(f"This version of click writes no completion for {shell}")
    source = writer(program, {}, "checkback", _VARIABLE).source()
    return source.replace("\n", f"\n{_ZSH_HAS_NONE}\n", 1) if shell == "zsh" else source  # its first line is for fpath


def install(program: click.Command, shell: str, home: str) -> str:
    """Write the script below the home directory and let the shell read it. Returns a sentence for the user."""
    place = os.path.join(home, _FISH if shell == "fish" else f".local/share/checkback/completion.{shell}")
    os.makedirs(os.path.dirname(place), exist_ok=True)
    with open(place, "w", encoding="utf-8") as file:
        file.write(script(program, shell))
    if shell in _STARTED_WITH:
        startup = os.path.join(home, _STARTED_WITH[shell])
        line = f"source {shlex.quote(place)}\n"
        with open(startup, "a+", encoding="utf-8", errors="surrogateescape") as file:
            file.seek(0)
            before = file.read()
            if line not in before:
                file.write(("" if before.endswith("\n") or not before else "\n") + line)
    return f"Installed: {place}. It works in the next {shell}"
