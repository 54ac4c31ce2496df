"""The pages of the site that are generated from the code when it is built, so that they cannot be stale.

MkDocs calls `on_config` and `on_files` (see `hooks` in mkdocs.yml). Each page is a function that returns Markdown.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import broker.errors
from recovery.airflow.settings import StoreSettings
from recovery.checkback.policy import PRESETS, Rule
from recovery.cli.app import whole_command_line
from recovery.findings import KINDS
from recovery.verify.remedies import WITH_STATE_TABLE, next_step

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[1]
DECISIONS = "decisions/"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the entry `Decisions: decisions/` of the navigation with the pages of that directory."""
    pages = sorted((ROOT / "docs" / DECISIONS).glob("*.md"), key=lambda page: (page.name != "index.md", page.name))
    for entry in config.nav or []:
        for title, target in entry.items():
            if target == DECISIONS:
                entry[title] = [f"{DECISIONS}{page.name}" for page in pages]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    for path, page in PAGES.items():
        files.append(File.generated(config, path, content=page()))
    return files


# The command line


def command_line() -> str:
    """Every verb with its arguments, options and examples, in the groups of `checkback --help`."""
    group = whole_command_line()
    panels: dict[str, list[Any]] = {}
    for command in (group.commands[name] for name in group.list_commands(None)):
        panels.setdefault(command.panel or "Commands", []).append(command)
    lines = ["# Command line", "", group.help, "", "Written from the program's own `--help`.", ""]
    lines += [f"**{group.epilog}**", "", "Options of the program itself:", ""]
    lines += [*_table("option", [one for one in group.params if one.name != "help"])]
    for panel, commands in panels.items():
        lines += ["", f"## {panel}", ""]
        for command in commands:
            lines += _verb(command, "checkback")
    return "\n".join(lines) + "\n"


def _verb(command: Any, prefix: str) -> Iterator[str]:
    name = f"{prefix} {command.name}"
    nested = getattr(command, "commands", None)
    if nested:
        for child in nested.values():
            yield from _verb(child, name)
        return
    arguments = [one for one in command.params if not _is_option(one)]
    options = [one for one in command.params if _is_option(one) and one.name != "help"]
    usage = " ".join(one.metavar if one.required else f"[{one.metavar}]" for one in arguments)
    yield from (
        f"### {name.removeprefix('checkback ')}",
        "",
        f"    {name} {usage}{' [OPTIONS]' if options else ''}",
        "",
    )
    yield from (inspect.cleandoc(command.help or ""), "")
    if arguments:
        yield from (*_table("argument", arguments), "")
    if options:
        yield from (*_table("option", options), "")
    examples = [line.strip() for line in (command.epilog or "").splitlines() if line.strip().startswith("checkback ")]
    if examples:
        yield from ("Examples:", "", *(f"    {line}" for line in examples), "")


def _is_option(parameter: Any) -> bool:
    return bool(parameter.opts and parameter.opts[0].startswith("-"))


def _table(title: str, parameters: list[Any]) -> Iterator[str]:
    yield from (f"| {title} | |", "|---|---|")
    for one in parameters:
        value = "" if getattr(one, "is_flag", False) or not _is_option(one) else f" {one.metavar or 'TEXT'}"
        names = one.metavar if not _is_option(one) else ", ".join(f"`{name}{value}`" for name in one.opts)
        shown = getattr(one.default, "value", one.default)
        default = (
            "" if shown is False or shown == "" or not isinstance(shown, str | int | float) else f" Default: `{shown}`."
        )
        environment = f" Environment: `{one.envvar}`." if one.envvar else ""
        yield f"| {names} | {_cell(one.help or '')}{environment}{default} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("[", "\\[")


# Findings


def findings() -> str:
    """Every kind of finding with an anchor of its own."""
    lines = ["# Findings", "", "What `checkback verify` can report. Written from `recovery.findings.KINDS` and", ""]
    lines[-2] += " `recovery.verify.remedies`, which the program itself uses."
    lines += [
        "In the JSON each finding has `kind`, `commitlog_offset`, `file`, `text` and further facts of its kind.",
        "",
    ]
    for kind, sentence in KINDS.items():
        lines += [
            f"## {kind}",
            "",
            f"{sentence[0].upper()}{sentence[1:]}.",
            "",
            f"**What to do:** {next_step(kind, 'half-op')}.",
        ]
        if kind in WITH_STATE_TABLE:
            lines += ["", f"**With a state table (3.0–3.1.4):** {WITH_STATE_TABLE[kind]}."]
        lines.append("")
    return "\n".join(lines)


# Settings


def settings() -> str:
    """Every setting of a store in Airflow, of the check-back policy, and of the environment."""
    lines = ["# Settings", "", "Written from the code that reads them.", "", "## A store in Airflow", ""]
    lines += ["One table of the TOML file that `[checkback] stores` names: [Airflow](../airflow.md#the-stores).", ""]
    lines += _airflow_settings()
    lines += ["", "## The check-back policy of a topic", ""]
    lines += [
        'A table `[policy.TOPIC]` or `[policy."*"]`: [check-back](../check-back.md). Durations are written as text,',
        "",
    ]
    lines[-2] += " such as `30s`; `never` stands for no limit. `preset` names one of: "
    lines[-2] += ", ".join(f"`{name}`" for name in PRESETS) + "."
    lines += _fields(Rule)
    lines += ["", "## The environment", "", "| variable | what it does |", "|---|---|"]
    group = whole_command_line()
    seen: dict[str, str] = {}
    for command in group.commands.values():
        for one in command.params:
            if one.envvar:
                seen.setdefault(one.envvar, f"the default of `{one.opts[0]}`: {_cell(one.help or '')}")
    lines += [f"| `{name}` | {text} |" for name, text in seen.items()]
    lines += ["| `CHECKBACK_DEBUG` | set to `1`: show the traceback of an error, as `--debug` does |"]
    lines += [
        "| `AIRFLOW__CHECKBACK__STORES` | the path of the TOML file with the stores, or the settings as JSON |",
        "",
    ]
    return "\n".join(lines)


def _airflow_settings() -> Iterator[str]:
    """The types and defaults are those of the code; the sentences those of docs/airflow.md, which a test completes."""
    page = (ROOT / "docs" / "airflow.md").read_text(encoding="utf-8")
    said = {}
    for names, by_default, text in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|([^|]*)\|([^|]*)\|$", page, re.MULTILINE):
        said.update(dict.fromkeys(re.findall(r"\w+", names), (by_default.strip(), text.strip())))
    yield from ("| setting | default | what it is |", "|---|---|---|")
    for one in fields(StoreSettings):
        if one.name == "name":
            continue
        by_default, text = said[one.name]
        default = (
            by_default
            if one.default in (None, "", MISSING)
            else f"`{str(one.default).lower() if one.default is False else one.default}`"
        )
        linked = re.sub(r"\]\(([\w-]+\.md)", r"](../\1", text)  # the page is in a directory below
        yield f"| `{one.name}` | {default} | {linked} |"


def _fields(kind: Any) -> Iterator[str]:
    docstrings = dict(_docstrings(kind))
    yield from ("| setting | default | what it is |", "|---|---|---|")
    for one in fields(kind):
        default = "{}" if one.default is MISSING else one.default
        name, shown = (
            one.name.removesuffix("_ms"),
            "" if default in (None, "") else f"`{getattr(default, 'value', default)}`",
        )
        if one.name.endswith("_ms"):
            shown = "`never`" if default is None else f"`{default / 1000:g}s`"
        elif default is None and kind is Rule:
            shown = "`never`"
        yield f"| `{name}` | {shown} | {_cell(docstrings[one.name]).replace('None:', '`never`:')} |"


def _docstrings(kind: type) -> Iterator[tuple[str, str]]:
    """Each field of a dataclass with the docstring below it."""
    (declared,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(declared, ast.ClassDef)
    for before, after in pairwise(declared.body):
        if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            yield ast.unparse(before.target), " ".join(str(after.value.value).split())


def errors() -> str:
    """The tree of errors as its module draws it, and each of them."""
    sentence, _, tree = inspect.cleandoc(broker.errors.__doc__ or "").partition("\n\n")
    kinds = [name for name, kind in vars(broker.errors).items() if inspect.isclass(kind)]
    lines = ["# broker.errors", "", sentence, "", "```text", tree, "```", ""]
    for name in kinds:
        lines += [f"::: broker.errors.{name}", "    options:", "      heading_level: 2", ""]
    return "\n".join(lines)


def changelog() -> str:
    """CHANGELOG.md of the repository."""
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


PAGES = {
    "reference/command-line.md": command_line,
    "reference/errors.md": errors,
    "reference/findings.md": findings,
    "reference/settings.md": settings,
    "changelog.md": changelog,
}
