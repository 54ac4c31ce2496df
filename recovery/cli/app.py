"""The command line: `checkback VERB STORE`. It ends the process, and maps errors to exit codes.

Exit codes: 0 ok, 1 findings (verify), 2 usage, 3 locked, 4 corrupt, 70 a defect of checkback, 130 interrupted, 141
the reader of the output went away.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import click

from broker.errors import BrokerError, CorruptStore, StoreLocked
from broker.store.disk.os_errors import FULL
from recovery.cli.declaration import Abort, ClickException, Exit, Option, VerbCommand, VerbGroup, program
from recovery.cli.shared import (
    ANALYSE,
    CORRUPT,
    DEBUG,
    DEFECT,
    INTERRUPTED,
    LOCKED,
    LOOK,
    PIPE_CLOSED,
    REPAIR,
    USAGE,
    VERBS,
    WELL,
    fail,
)
from recovery.cli.terminal.extras import missing_extra
from recovery.cli.terminal.output import warn

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# NumPy's OpenBLAS starts a thread for each core when it loads: a third of the time of `import numpy`, and of what these
# verbs run nothing multiplies matrices. The handlers of an application may.
_WITHOUT_CODE_OF_USERS = {LOOK, REPAIR, ANALYSE}

# click's own way to end.
_CLICKS_OWN = (Exit, Abort, ClickException)


class SafeVerbs(VerbGroup):
    """Verbs; whatever one of them raises becomes a sentence and an exit code."""

    def invoke(self, ctx: click.Context) -> None:
        with _sentences():
            super().invoke(ctx)
            sys.stdout.flush()


class _AllVerbs(SafeVerbs):
    """The verbs of `shared.VERBS`: the module of one is imported when it is called, lists of verbs need none."""

    _is_listing = False

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        """The program's own options are read here, and its help and version are written."""
        with _sentences():
            return super().make_context(*arguments, **options)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The verbs in the order of their groups."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """One verb; None when there is no such verb."""
        if cmd_name not in VERBS:
            return None
        if self._is_listing:
            return _line(cmd_name)
        if VERBS[cmd_name][0] in _WITHOUT_CODE_OF_USERS:
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        self.load([cmd_name])
        return self.commands[cmd_name]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb of these words; for one that does not exist, the nearest that does."""
        name = args[0]
        if name not in VERBS and not name.startswith("-"):
            from difflib import get_close_matches

            nearest = get_close_matches(name, VERBS, n=1)
            ctx.fail(f"No such verb {name!r}." + (f" Did you mean {nearest[0]!r}?" if nearest else ""))
        return super().resolve_command(ctx, args)

    def load(self, verbs: Iterable[str]) -> None:
        """Import the modules of these verbs."""
        for name in verbs:
            if name not in self.commands:
                import_module(f"recovery.cli.{VERBS[name][1]}").register(self)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The help of the program: groups and lines of the verbs."""
        with self._listing():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """What a shell may complete to a verb or an option of the program."""
        with self._listing():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _listing(self) -> Iterator[None]:
        self._is_listing = True
        try:
            yield
        finally:
            self._is_listing = False


def _line(name: str) -> click.Command:
    """A verb as the list of verbs shows it."""
    panel, _, line = VERBS[name]
    command = VerbCommand(name, short_help=line)
    command.panel = panel
    return command


app = _AllVerbs(
    "checkback",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Transactional messages in Apache RocketMQ's store format: look, write, settle, repair, analyse, run.",
    epilog="Exit codes: 0 ok, 1 findings, 2 usage, 3 locked, 4 corrupt, 70 a defect of checkback (details: --debug)",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from recovery.cli.read import installed_version

        print(f"checkback {installed_version()}")
        raise Exit


def _show_completion(wanted: bool) -> None:
    if wanted:
        from recovery.cli.terminal import completion

        with _sentences():
            print(completion.script(app, completion.shell_of(os.environ)))
        raise Exit


def _install_completion(wanted: bool) -> None:
    if wanted:
        from recovery.cli.terminal import completion

        with _sentences():
            print(completion.install(app, completion.shell_of(os.environ), os.path.expanduser("~")))
        raise Exit


def _before_the_verb(
    _version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, Option("--debug", help="Show the traceback of an error.")] = False,
    _installs: Annotated[
        bool,
        Option(
            "--install-completion",
            callback=_install_completion,
            is_eager=True,
            help="Let your shell ($SHELL) complete verbs and options.",
        ),
    ] = False,
    _shows: Annotated[
        bool,
        Option(
            "--show-completion", callback=_show_completion, is_eager=True, help="Print what that installs, to copy it."
        ),
    ] = False,
) -> None:
    if debug:
        os.environ[DEBUG] = "1"


program(_before_the_verb, app)


def whole_command_line() -> VerbGroup:
    """The program with every verb loaded: what its documentation is written from."""
    app.load(VERBS)
    return app


# The way out


@contextmanager
def _sentences() -> Iterator[None]:
    """Whatever is raised inside becomes a sentence and an exit code."""
    try:
        with _ended_as_by_ctrl_c():
            yield
    except _CLICKS_OWN:
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
        fail(_system_error(error), USAGE)
    except Exception as error:  # noqa: BLE001 - the last resort: nobody sees a traceback unasked
        if isinstance(error.__cause__, KeyboardInterrupt):  # of Python 3.11, in a class that was being made
            fail("Interrupted.", INTERRUPTED)
        needed = missing_extra(error) if isinstance(error, ModuleNotFoundError) else None
        if needed is not None:
            fail(needed, USAGE)
        if isinstance(error, RuntimeError) and "start new thread" in str(error):
            fail("The system gives this process no more threads: see ulimit -u, and pids.max of its cgroup.", DEFECT)
        text = f"checkback has a defect here: {type(error).__name__}: {error}. See the details with {DEBUG}=1"
        fail(text, DEFECT)


def _system_error(error: OSError) -> str:
    """What the system refused; what has no file and does not fit went to standard output."""
    reason = str(error.strerror or error)
    if error.filename:
        return f"{error.filename}: {reason}"
    return f"standard output: {reason}. What was done before stays done" if error.errno in FULL else reason


@contextmanager
def _ended_as_by_ctrl_c() -> Iterator[None]:
    """SIGTERM as Ctrl-C: by default it leaves temporary files, processes, and half of what was to be there."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


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
    except OSError as error:  # of click: it cannot write how the command is used
        warn(_system_error(error))
        sys.exit(USAGE)
    sys.exit(WELL)


if __name__ == "__main__":
    main()
