"""Whatever the API reference shows has a docstring, which names what it raises, and the unit of each number.

The pages of docs/reference name modules and classes; here they are followed as the site follows them. What is checked
is a fault that a tool can see. Whether a sentence is true, it cannot.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import griffe

import broker
from docs.site_hooks import errors
from tests.house.tree import ROOT, product

INDEX = "docs/reference/index.md"
PART = re.compile(r"^::: (\S+)\n((?:    .*\n)*)", re.MULTILINE)
MEMBERS = re.compile(r"^ +members: \[(.+?)\]$", re.MULTILINE)
CONSTRUCTORS = ("__init__", "__post_init__", "__new__")
NUMBER = re.compile(r"\b(?:int|float)\b")
# "The arguments are those of LiveStore.consumer": then what that says counts here, too.
ELSEWHERE = re.compile(r"(?:those of|as of|[Ss]ee) `?((?:\w+\.)*\w+)`?")
# What a sentence about a number names when it says what the number is.
MEANING = re.compile(
    r"byte|second|how (?:many|often|long)|count|offset|index|slot|milli|hexadecimal|from [01]\b|at least|share|times"
    r"|position|code|number of|bits|\bport\b",
    re.IGNORECASE,
)

Functions = Mapping[str, ast.FunctionDef | ast.AsyncFunctionDef]


@dataclass(frozen=True, eq=False)
class Shown:
    """One heading of the reference: a module, class, function or attribute, with the functions of its file."""

    member: griffe.Object
    functions: Functions

    @property
    def path(self) -> str:
        return self.member.path

    @property
    def text(self) -> str:
        """Its docstring; of a class also that of its constructor, as the site shows them."""
        found = [self.member.docstring.value] if self.member.docstring else []
        constructor = self.member.members.get("__init__") if self.member.is_class else None
        if constructor is not None and constructor.docstring is not None:
            found.append(constructor.docstring.value)
        return "\n".join(found)

    @property
    def bodies(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """The function that it is; of a class those that make an object."""
        name = self.path.removeprefix(f"{self.member.module.path}.")
        names = [f"{name}.{one}" for one in CONSTRUCTORS] if self.member.is_class else [name]
        return [self.functions[one] for one in names if one in self.functions]


def functions_in(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Each function of a module, and each method of its classes, by its dotted name in it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from functions_in(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{node.name}", node


@cache
def visited(module: str) -> tuple[griffe.Module, Functions] | None:
    """A module as mkdocstrings sees it, and its functions; None for a name that is not a module's."""
    file = ROOT.joinpath(*module.split("."))
    path = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    if not path.exists():
        return None
    code = path.read_text(encoding="utf-8")
    return griffe.visit(module, filepath=path, code=code), dict(functions_in(ast.parse(code)))


def named(name: str) -> tuple[griffe.Object, Functions]:
    """What a page names: a module, or something in one."""
    found, inside = visited(name), ""
    while found is None:
        name, _, last = name.rpartition(".")
        found, inside = visited(name), f"{last}.{inside}" if inside else last
    module, functions = found
    member = module[inside] if inside else module
    assert isinstance(member, griffe.Object), f"{name}.{inside}"
    return member, functions


def walk(member: griffe.Object, functions: Functions, only: set[str] | None = None) -> Iterator[Shown]:
    """A member and what the site shows below it: what is public and was defined there."""
    yield Shown(member, functions)
    if member.is_module or member.is_class:
        for name, child in member.members.items():
            is_own = isinstance(child, griffe.Object) and not child.is_module and not name.startswith("_")
            if is_own and (only is None or name in only):
                yield from walk(child, functions)


@cache
def reference() -> tuple[Shown, ...]:
    """What all pages show, each once."""
    pages = [page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs/reference").glob("*.md"))]
    found: dict[str, Shown] = {}
    for name, options in (part for page in [*pages, errors()] for part in PART.findall(page)):
        member, functions = named(name)
        members = MEMBERS.search(options)
        only = {one.strip() for one in members[1].split(",")} if members else None
        missing = (only or set()) - member.members.keys()
        assert not missing, f"{name} has no {', '.join(sorted(missing))}"
        for one in walk(member, functions, only):
            found.setdefault(one.path, one)
    return tuple(found.values())


# The rules


def undocumented(shown: Shown) -> Iterator[str]:
    """A member without a docstring: the site leaves it out."""
    if not shown.text.strip():
        yield f"{shown.path} has no docstring"


def unnamed_errors(shown: Shown, exceptions: Mapping[str, set[str]]) -> Iterator[str]:
    """An exception that its own body raises, and that the docstring names neither itself nor by a base class."""
    _, _, after = re.sub(r"\b[Rr]aises?\b", "\0", shown.text, count=1).partition("\0")
    for body in shown.bodies:
        for name in sorted(raised_in(body)):
            bases = exceptions.get(name)
            if bases is not None and not bases & set(re.findall(r"\w+", after)):
                yield f"{shown.path} raises {name}, and does not say so after 'Raises'"


@cache
def exceptions_of_the_tree() -> Mapping[str, set[str]]:
    """Each exception by its name, which no other class has, with its own name and those of its bases."""
    classes = {
        node.name: [base.id for base in node.bases if isinstance(base, ast.Name)]
        for module in product()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    }
    built_in = {name: kind for name, kind in vars(builtins).items() if isinstance(kind, type)}

    def names(name: str) -> set[str]:
        own = {base.__name__ for base in built_in[name].__mro__} if name in built_in else {name}
        return own.union(*(names(base) for base in classes.get(name, [])))

    found = {name: names(name) for name in [*classes, *built_in]}
    too_wide = {"object", "BaseException", "Exception"}
    return {name: bases - too_wide for name, bases in found.items() if "BaseException" in bases}


def raised_in(node: ast.AST) -> set[str]:
    """The names of what is raised in a function, not in the functions inside it."""
    found = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Raise) and isinstance(child.exc, ast.Call) and isinstance(child.exc.func, ast.Name):
            found.add(child.exc.func.id)
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            found |= raised_in(child)
    return found


def unexplained_numbers(shown: Shown, units: re.Pattern[str], elsewhere: Mapping[str, str]) -> Iterator[str]:
    """A number whose name has no unit of the table in the index: a parameter that the docstring does not mention, an
    attribute of which it does not say what is counted, as its class may do for all ("numbers of checks")."""
    text = with_references(shown.text, shown.path.rpartition(".")[0], elsewhere)
    for body in shown.bodies if shown.member.is_function or shown.member.is_class else []:
        for argument in [*body.args.posonlyargs, *body.args.args, *body.args.kwonlyargs]:
            is_unclear = is_number(argument.annotation) and not units.search(argument.arg)
            attribute = shown.member.members.get(argument.arg) if shown.member.is_class else None
            is_explained = attribute is not None and attribute.docstring is not None
            if is_unclear and not is_explained and not re.search(rf"\b{argument.arg}\b", text):
                yield f"{shown.path}: the docstring does not say what the number {argument.arg} is"
    if isinstance(shown.member, griffe.Attribute) and not units.search(shown.member.name):
        kind = shown.member.annotation
        of_class = shown.member.parent.docstring if shown.member.parent else None
        text += "how many" if of_class and "numbers of" in of_class.value else ""
        if kind is not None and is_number(ast.parse(str(kind), mode="eval").body) and not MEANING.search(text):
            yield f"{shown.path}: the docstring does not say what the number counts"


def with_references(text: str, inside: str, elsewhere: Mapping[str, str], depth: int = 3) -> str:
    """A docstring, and those that it refers to for its arguments: of the same class, or by a longer name."""
    for name in ELSEWHERE.findall(text) if depth else []:
        other = elsewhere.get(f"{inside}.{name}", elsewhere.get(name, ""))
        text += "\n" + with_references(other, inside, elsewhere, depth - 1)
    return text


def is_number(annotation: ast.AST | None) -> bool:
    """Whether a value may be a number itself; one that holds numbers has a name for them."""
    text = "" if annotation is None else ast.unparse(annotation)
    while (shorter := re.sub(r"\[[^\[\]]*\]", "", text)) != text:
        text = shorter
    return bool(NUMBER.search(text))


@cache
def units() -> re.Pattern[str]:
    """The names and endings of names that the index of the reference gives a unit."""
    text = (ROOT / INDEX).read_text(encoding="utf-8").partition("## Units and names")[2].partition("\n## ")[0]
    names = [name for row in re.findall(r"^\| (`.+?) \|", text, re.MULTILINE) for name in re.findall(r"`(.+?)`", row)]
    assert {"…_ms", "slot"} <= set(names)
    patterns = [f"{re.escape(name[1:])}$" if name.startswith("…") else f"^(?:.*_)?{re.escape(name)}$" for name in names]
    return re.compile("|".join(patterns))


# What is shown


def test_every_member_has_a_docstring() -> None:
    found = [fault for shown in reference() for fault in undocumented(shown)]
    assert not found, "\n".join(found)


def test_what_a_function_raises_is_named() -> None:
    found = [fault for shown in reference() for fault in unnamed_errors(shown, exceptions_of_the_tree())]
    assert not found, "\n".join(found)


def test_numbers_have_a_unit() -> None:
    texts = {shown.path: shown.text for shown in reference()}
    for path in list(texts):  # docstrings name them shorter: LiveStore.consumer, broker.open
        parts = path.split(".")
        for first in range(1, len(parts)):
            texts.setdefault(".".join(parts[first:]), texts[path])
    found = [fault for shown in reference() for fault in unexplained_numbers(shown, units(), texts)]
    assert not found, "\n".join(found)


def test_every_public_name_is_in_the_reference() -> None:
    shown = {one.path.rpartition(".")[2] for one in reference()}
    assert not set(broker.__all__) - shown


SAMPLE = '''
class Shop:
    """A shop. `limit`: orders at once. Raises KeyError."""

    opened: int = 0
    """When."""
    closed_ms: int = 0

    def __init__(self, limit: int) -> None:
        raise ValueError("no")

    def sell(self, price: float, wait_s: float) -> None:
        """Sell something. Raises ValueError for nonsense."""
        raise NotSold("no")

    def close(self, code: int) -> None:
        """Close with a `code`. Raises NotSold, or its base."""
        def inner() -> None:
            raise KeyError
        raise NotSold("no")
'''


def test_the_rules_find_what_they_are_for() -> None:
    exceptions = {"NotSold": {"NotSold", "ShopError"}, "ValueError": {"ValueError"}, "KeyError": {"KeyError"}}
    module = griffe.visit("sample", filepath=Path("sample.py"), code=SAMPLE)
    functions = dict(functions_in(ast.parse(SAMPLE)))
    shop = module["Shop"]
    shown = {one.path: one for one in walk(shop, functions)}
    assert [fault for one in shown.values() for fault in undocumented(one)] == [
        "sample.Shop.closed_ms has no docstring"
    ]
    raising = [fault.split(",")[0] for one in shown.values() for fault in unnamed_errors(one, exceptions)]
    assert raising == ["sample.Shop raises ValueError", "sample.Shop.sell raises NotSold"]
    unclear = [fault for one in shown.values() for fault in unexplained_numbers(one, units(), {})]
    assert unclear == [
        "sample.Shop.opened: the docstring does not say what the number counts",
        "sample.Shop.sell: the docstring does not say what the number price is",
    ]
