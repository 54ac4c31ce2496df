"""What the house rules look at: the files of the project, its modules and what they import."""

from __future__ import annotations

import ast
import gc
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("broker", "recovery")


@cache
def files() -> tuple[Path, ...]:
    """Every file that is committed or would be, relative to the root; from an unpacked archive, every file in it."""
    git = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    if (ROOT / ".git").exists():
        names = subprocess.run(git, check=True, capture_output=True, text=True).stdout.split("\0")
        return tuple(sorted(Path(name) for name in names if name and (ROOT / name).is_file()))
    directories = {".venv", "build", "dist"}
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file() and "cache" not in str(path))
    return tuple(sorted(path for path in found if path.parts[0] not in directories))


def texts() -> Iterator[tuple[Path, str]]:
    """Every file that people read or write, with its text; the golden truth is left out, for its size."""
    for path in files():
        content = b"\0" if path.suffix == ".jsonl" else (ROOT / path).read_bytes()
        if b"\0" not in content:
            yield path, content.decode("utf-8")


@dataclass(frozen=True, eq=False)
class Module:
    """A Python file: its dotted name, its path and its syntax tree."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def room(self) -> str:
        """The first directory, which is how the rules speak about a module."""
        return self.name.split(".")[0]


@cache
def modules() -> tuple[Module, ...]:
    """Every Python file of the project, tests included."""
    found = []
    gc.disable()  # of a million nodes none is garbage, and to search them takes longer than to parse them
    for path in files():
        if path.suffix == ".py":
            parts = path.with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
            found.append(Module(name, path, ast.parse((ROOT / path).read_text(encoding="utf-8"), str(path))))
    gc.freeze()
    gc.enable()
    return tuple(found)


def product() -> list[Module]:
    """The modules that users get: everything outside of tests."""
    return [module for module in modules() if module.room != "tests"]


@cache
def imports(module: Module, *, at_load: bool = False, types: bool = False) -> tuple[tuple[str, int], ...]:
    """(dotted name, line) of all that a module imports; with `at_load` only what loads together with it.

    `from broker.store import segments` imports `broker.store.read.segments` where that is a module, else
    `broker.store`. `import_module("pyarrow")` is an import too; what only the type checker sees is one with `types`.
    """
    return tuple(_imports(module, at_load=at_load, types=types))


@cache
def _names() -> frozenset[str]:
    return frozenset(module.name for module in modules())


def _imports(module: Module, *, at_load: bool, types: bool) -> Iterator[tuple[str, int]]:
    known = _names()
    for node in _walk(module.tree, into_functions=not at_load, types=types):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield (submodule if submodule in known else node.module), node.lineno
        elif isinstance(node, ast.Call) and _called(node) in {"import_module", "__import__"}:
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant):
                    yield str(argument.value), node.lineno


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _walk(node: ast.AST, *, into_functions: bool, types: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not types and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield child
        if into_functions or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _walk(child, into_functions=into_functions, types=types)


def under(name: str, prefixes: set[str]) -> bool:
    """Whether a dotted name is one of `prefixes` or lies below one."""
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)
