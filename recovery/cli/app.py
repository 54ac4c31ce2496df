"""The command line: `checkback VERB STORE`. It ends the process, and maps errors to exit codes.

Exit codes: 0 ok, 1 findings (verify), 2 usage, 3 locked, 4 corrupt, 70 a defect of checkback, 130 interrupted, 141
the reader of the output went away.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from broker.errors import BrokerError, CorruptStore, StoreLocked
from recovery.cli import analytics as verbs_spark
from recovery.cli import checkback as verbs_check
from recovery.cli import consumer as verbs_consume
from recovery.cli import copies as verbs_copy
from recovery.cli import ledger as verbs_ledger
from recovery.cli import read as verbs_read
from recovery.cli import repair as verbs_repair
from recovery.cli import write as verbs_write
from recovery.cli.run import answer as verbs_answer
from recovery.cli.run import follow as verbs_follow
from recovery.cli.run import move as verbs_move
from recovery.cli.run import page as verbs_page
from recovery.cli.run import serve as verbs_serve
from recovery.cli.run import torture as verbs_torture
from recovery.cli.run import up as verbs_up
from recovery.cli.run import work as verbs_work
from recovery.cli.shared import CORRUPT, DEBUG, DEFECT, INTERRUPTED, LOCKED, PIPE_CLOSED, USAGE, VERBS, WELL, fail
from recovery.cli.terminal.output import warn

# Typer's own way to end: click's classes, which newer versions of typer bring along under another name.
_TYPERS_OWN: tuple[type[Exception], ...] = (
    typer.Exit,
    typer.Abort,
    next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"),
)


class _Verbs(TyperGroup):
    """The verbs; whatever one of them raises becomes a sentence and an exit code."""

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


app = typer.Typer(
    cls=_Verbs,
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
        print(f"checkback {verbs_read.installed_version()}")
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


for _room in (
    verbs_read,
    verbs_write,
    verbs_repair,
    verbs_copy,
    verbs_move,
    verbs_check,
    verbs_answer,
    verbs_ledger,
    verbs_consume,
    verbs_spark,
    verbs_serve,
    verbs_follow,
    verbs_work,
    verbs_page,
    verbs_up,
    verbs_torture,
):
    _room.register(app)


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
