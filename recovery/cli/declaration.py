"""A verb of the command line is a function: the annotations of its parameters declare arguments and options.

    def tail(store: Store, lines: Annotated[int, Option("--lines", "-n", min=0, metavar="N", help="...")] = 10) -> None:

A parameter without a default is required, a `bool` is a flag, a list may be repeated, an enumeration is a choice of its
values, a `float` a time in seconds. click parses, reports what is wrong with the words, and completes them in a shell.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import click
from click.exceptions import Abort as Abort
from click.exceptions import BadParameter as BadParameter
from click.exceptions import ClickException as ClickException
from click.exceptions import Exit as Exit
from click.shell_completion import CompletionItem

from recovery.durations import parse_duration

Verb = Callable[..., Any]

_LINE_MAX = 400  # characters that a list of verbs shows of each

# Arguments and values of options that a shell completes with the names of files.
_FILES = {"STORE", "STORE...", "OUT", "FILE", "DIR", "PATH"}


class Option:
    """An option: `Option("--from", metavar="N", help="...")`. Without a name it has that of its parameter."""

    def __init__(
        self, *names: str, metavar: str | None = None, help: str = "",  # noqa: A002 - as click calls it
        min: float | None = None, max: float | None = None,  # noqa: A002
        envvar: str | None = None, hidden: bool = False, is_eager: bool = False,
        callback: Callable[[Any], Any] | None = None,
    ) -> None:  # fmt: skip
        self.names, self.metavar, self.help = names, metavar, help
        self.min, self.max = min, max
        self.envvar, self.hidden, self.is_eager = envvar, hidden, is_eager
        self.callback = callback


@dataclass(frozen=True)
class Argument:
    """A positional argument."""

    metavar: str
    help: str


class VerbCommand(click.Command):
    """A verb, with the group that `checkback --help` lists it in."""

    panel = ""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Usage, what it does, arguments, options, examples."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        arguments = [one for one in self.get_params(ctx) if isinstance(one, click.Argument)]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl([(one.make_metavar(ctx), _help_of(one)) for one in arguments])
        self.format_options(ctx, formatter)
        self.format_epilog(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The lines of the examples as they are: they are for copying."""
        if self.epilog:
            formatter.write(f"\n{self.epilog}\n")


class VerbGroup(click.Group):
    """Verbs: at the top of the program, and below one verb, as in `ledger doctor`."""

    panel = ""

    def __init__(self, name: str | None = None, **attributes: Any) -> None:
        """See click.Group."""
        super().__init__(name, **{"subcommand_metavar": "VERB ...", **attributes})

    def verb(
        self,
        function: Verb,
        name: str | None = None,
        *,
        epilog: str = "",
        panel: str = "",
        short_help: str | None = None,
    ) -> None:
        """Add a verb. `panel` and `short_help`: see `recovery.cli.shared.listing`."""
        parameters = _parameters(function)
        command = VerbCommand(
            name or function.__name__.replace("_", "-"),
            callback=_called(function, parameters),
            params=[parameter for parameter, _ in parameters],
            help=inspect.getdoc(function),
            epilog=epilog,
            short_help=short_help,
        )
        command.panel = panel
        self.add_command(command)

    def add_group(self, group: VerbGroup, *, panel: str, short_help: str) -> None:
        """Add a verb that has verbs of its own."""
        group.panel, group.short_help = panel, short_help
        self.add_command(group)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The verbs in the order in which they were added."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A section for each group of verbs, with columns of the same width."""
        commands = [one for one in (self.get_command(ctx, name) for name in self.list_commands(ctx)) if one]
        width = max(len(one.name or "") for one in commands)
        for panel in dict.fromkeys(getattr(one, "panel", "") for one in commands):
            rows = [
                ((one.name or "").ljust(width), one.get_short_help_str(limit=_LINE_MAX))
                for one in commands
                if getattr(one, "panel", "") == panel
            ]
            with formatter.section(panel or "Verbs"):
                formatter.write_dl(rows)


class _Choice(click.Choice):  # type: ignore[type-arg] # not generic before click 8.4
    """The values of an enumeration; the function gets its member."""

    def __init__(self, kind: type[StrEnum]) -> None:
        super().__init__([member.value for member in kind])
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self._kind(super().convert(str(value), param, ctx))


class _Seconds(click.types.FloatParamType):
    """A time, in seconds or with a unit: 3, 3s, 500ms. NaN is refused: it would pass every comparison."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number = float(value)
        except ValueError:
            try:
                number = parse_duration(value) / 1000
            except ValueError as error:
                self.fail(f"{value!r}: {error}", param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return super().convert(number, param, ctx)


class _SecondsBetween(_Seconds, click.FloatRange):
    """The same, between limits."""


class _Place(click.types.StringParamType):
    """A file or a directory. An empty text would be this directory to some verbs and / to others."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:
            self.fail("it is empty: a variable of the shell is not set, perhaps.", param, ctx)
        return super().convert(value, param, ctx)


class _Positional(click.Argument):
    """An argument with its help, which older versions of click do not take."""

    help: str | None

    def make_metavar(self, ctx: click.Context) -> str:  # noqa: ARG002
        """Its name, in brackets when it may be left out."""
        metavar = self.metavar or ""
        return metavar if self.required or metavar.startswith("[") else f"[{metavar}]"

    def get_error_hint(self, ctx: click.Context | None) -> str:  # noqa: ARG002
        return f"'{self.metavar}'"


def program(function: Verb, group: VerbGroup) -> None:
    """Give a group the options of a function, which is called before the verb."""
    parameters = _parameters(function)
    group.params = [parameter for parameter, _ in parameters]
    group.callback = _called(function, parameters)


# From a function's parameter to click's


def _parameters(function: Verb) -> list[tuple[click.Parameter, Any]]:
    """click's parameters, each with the default of the function's, which is what it gets for an empty list."""
    hints = get_type_hints(function, include_extras=True)
    signature = inspect.signature(function).parameters.values()
    return [(_parameter(one.name, hints[one.name], one.default), one.default) for one in signature]


def _parameter(name: str, hint: Any, default: Any) -> click.Parameter:
    kind, declared = get_args(hint) if get_origin(hint) is Annotated else (hint, None)
    kind, is_list = _plain(kind)
    attributes: dict[str, Any] = {"metavar": declared.metavar}
    if default is inspect.Parameter.empty:
        attributes["required"] = True
    elif not is_list:
        attributes["default"] = (
            f"{default:g}s" if kind is float and default is not None else getattr(default, "value", default)
        )
        attributes["required"] = False
    if kind is str and (declared.metavar or "") in _FILES:
        attributes["shell_complete"] = _complete_files
        attributes["type"] = _Place()
    if isinstance(declared, Argument):
        attributes.setdefault("type", _type(kind, None, None))
        argument = _Positional([name], nargs=-1 if is_list else 1, **attributes)
        argument.help = declared.help
        return argument
    return _option(name, kind, declared, is_list, attributes)


def _option(name: str, kind: Any, declared: Option, is_list: bool, attributes: dict[str, Any]) -> click.Option:
    callback = declared.callback
    if kind is bool:
        attributes["is_flag"] = True
        attributes.pop("metavar")
    else:
        attributes.setdefault("type", _type(kind, declared.min, declared.max))
    return click.Option(
        [name, *(declared.names or ("--" + name.replace("_", "-"),))],
        help=declared.help,
        multiple=is_list,
        hidden=declared.hidden,
        is_eager=declared.is_eager,
        envvar=declared.envvar,
        show_envvar=True,
        show_default=attributes.get("default") not in (None, "", False),
        callback=None if callback is None else lambda _ctx, _parameter, value: callback(value),
        **attributes,
    )


def _plain(kind: Any) -> tuple[Any, bool]:
    """The type of one value, and whether there may be several: `list[str] | None` is (str, True)."""
    if get_origin(kind) in (types.UnionType, Union):
        kind = next(one for one in get_args(kind) if one is not type(None))
    return (get_args(kind)[0], True) if get_origin(kind) is list else (kind, False)


def _type(kind: Any, low: float | None, high: float | None) -> Any:
    if issubclass(kind, StrEnum):
        return _Choice(kind)
    is_limited = low is not None or high is not None
    if kind is float:
        return _SecondsBetween(low, high) if is_limited else _Seconds()
    return click.IntRange(_whole(low), _whole(high)) if is_limited else click.types.convert_type(kind)


def _whole(limit: float | None) -> int | None:
    return None if limit is None else int(limit)


def _called(function: Verb, parameters: Iterable[tuple[click.Parameter, Any]]) -> Verb:
    """The function, which gets lists as lists, and its own default for one that was not given."""
    lists = {one.name: default for one, default in parameters if one.multiple or one.nargs == -1}

    def call(**values: Any) -> Any:
        values.update({name: list(values[name] or ()) or default for name, default in lists.items() if name})
        return function(**values)

    return call


def _complete_files(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


def _help_of(argument: click.Argument) -> str:
    help_text = getattr(argument, "help", None) or ""
    has_default = isinstance(argument.default, str) and argument.default  # click marks "none" by an object of its own
    return f"{help_text}  [default: {argument.default}]" if has_default else help_text
