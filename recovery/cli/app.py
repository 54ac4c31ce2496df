"""The command line: `checkback VERB STORE`. It ends the process, and maps errors to exit codes.

Exit codes: 0 ok, 1 findings (verify), 2 usage, 3 locked, 4 corrupt, 70 a defect of checkback, 130 interrupted, 141
the reader of the output went away.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from broker.errors import BrokerError, CorruptStore, StoreLocked
from recovery.cli.shared import (
    CORRUPT,
    DEBUG,
    DEFECT,
    INTERRUPTED,
    LOCKED,
    PIPE_CLOSED,
    USAGE,
    VERBS,
    WELL,
    fail,
    listing,
)
from recovery.cli.terminal.output import warn

# Typer's own way to end: click's classes, which newer versions of typer bring along under another name.
_TYPERS_OWN: tuple[type[Exception], ...] = (
    typer.Exit,
    typer.Abort,
    next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"),
)


class _Verbs(TyperGroup):
    """Verbs; whatever one of them raises becomes a sentence and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The verbs in the order of their groups."""
        return sorted(super().list_commands(ctx), key=lambda name: [*VERBS, name].index(name))

    def invoke(self, ctx: Any) -> Any:
        try:
            super().invoke(ctx)
            sys.stdout.flush()
        except _TYPERS_OWN:
            raise
        except BrokerError as error:
            fail(str(error), _code_of(error))
        except BrokenPipeError:
            fail("", PIPE_CLOSED)
        except KeyboardInterrupt:
            fail("Interrupted.", INTERRUPTED)
        except MemoryError:
            fail("There is not enough memory for this.", DEFECT)
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            fail(f"{place}{error.strerror or error}", USAGE)
        except Exception as error:  # noqa: BLE001 - the last resort: nobody sees a traceback unasked
            text = f"checkback has a defect here: {type(error).__name__}: {error}. See the details with {DEBUG}=1"
            fail(text, DEFECT)


class _AllVerbs(_Verbs):
    """The verbs of `shared.VERBS`: the module of one is imported when it is called, the help needs none of them."""

    _is_listing = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """The verbs in the order of their groups."""
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """One verb; None when there is no such verb."""
        if cmd_name not in VERBS:
            self.load(VERBS)  # typer suggests the nearest of those that it knows
            return None
        if self._is_listing:
            return TyperCommand(cmd_name, **listing(cmd_name))
        self.load([cmd_name])
        return self.commands[cmd_name]

    def load(self, verbs: Iterable[str]) -> None:
        """Import the modules of these verbs."""
        for name in verbs:
            if name not in self.commands:
                room = typer.Typer(rich_markup_mode=app.rich_markup_mode)
                room.callback()(_nothing)  # else a module with one verb would be that verb
                import_module(f"recovery.cli.{VERBS[name][1]}").register(room)
                group: Any = typer.main.get_command(room)
                self.commands.update(group.commands)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help of the program: groups and lines of the verbs."""
        self._is_listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._is_listing = False


def _nothing() -> None:
    pass


app = typer.Typer(
    cls=_AllVerbs,
    name="checkback",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Transactional messages in Apache RocketMQ's store format: look, write, settle, repair, analyse, run.",
    epilog="Exit codes: 0 ok, 1 findings, 2 usage, 3 locked, 4 corrupt, 70 a defect of checkback (details: --debug)",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from recovery.cli.read import installed_version

        print(f"checkback {installed_version()}")
        raise typer.Exit


@app.callback()
def _checkback(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    if debug:
        os.environ[DEBUG] = "1"


def whole_command_line() -> Any:
    """The program with every verb loaded: what its documentation is written from."""
    group: Any = typer.main.get_command(app)
    group.load(VERBS)
    return group


# The way out


def _code_of(error: BrokerError) -> int:
    if isinstance(error, StoreLocked):
        return LOCKED
    return CORRUPT if isinstance(error, CorruptStore) else USAGE


def _ready_streams() -> None:
    """Whatever the terminal's encoding, nothing is unprintable; a stream that was closed swallows what it gets."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def main(arguments: list[str] | None = None) -> NoReturn:
    """The console script `checkback`. `--debug` may stand anywhere."""
    words = sys.argv[1:] if arguments is None else arguments
    if "--debug" in words:
        words = ["--debug", *(word for word in words if word != "--debug")]
    _ready_streams()
    try:
        app(words, prog_name="checkback")
    except KeyboardInterrupt:
        warn("Interrupted.")
        sys.exit(INTERRUPTED)
    sys.exit(WELL)


if __name__ == "__main__":
    main()
