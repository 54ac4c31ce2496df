"""The C module, for tests: left out, or built with a look behind each of its steps."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

from broker import compiled

ROOT = Path(__file__).parents[1]
# Where a function of the module is kept: by module and name, and what it is called in C.
PLACES = {
    "broker.store.write.pending_record.fast_draft": "draft",
    "broker.store.engines.state_table.fast_draft": "draft",
    "broker.store.write.pending_record._fast_codes": "index_codes",
    "broker.store.write.compose._fast_properties": "stored_properties",
    "broker.message._fast_message": "message",
    "broker.store.write.presence._fast_stand": "stand",
    "broker.store.disk.maps._start_write": "start_write",
    "broker.server.requests.records._sent_records": "sent_records",
    "broker.server.requests.plain_sends._read": "request_message",
    "broker.server.requests.ends._read": "request_end",
}


def use(patch: pytest.MonkeyPatch, module: ModuleType | None) -> None:
    """Have stores that are opened from now on use this module; None: the Python alone."""
    patch.setattr(compiled, "fast", module)
    for place, name in PLACES.items():
        patch.setattr(place, getattr(module, name) if module else None)


def build(directory: Path, *flags: str) -> Path:
    """The module built with these flags of the compiler; skips the test where it cannot be built."""
    compiler, headers = shutil.which("cc"), Path(sysconfig.get_path("include"))
    if compiler is None or not (headers / "Python.h").exists():
        pytest.skip("there is no C compiler, or no headers of Python")
    library = directory / "_fast.abi3.so"
    words = [compiler, "-std=c11", "-O1", "-g", "-fPIC", "-shared", "-fno-strict-aliasing", f"-I{headers}", *flags]
    fixed = ["-DPy_LIMITED_API=0x030b0000", "-DCHECKBACK_SOURCES=0UL", "-o", str(library), str(ROOT / "broker/_fast.c")]
    subprocess.run([*words, *fixed], check=True)
    return library


def load(library: Path) -> ModuleType:
    """The module in a file."""
    spec = importlib.util.spec_from_file_location("broker._fast", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def watched_module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The module that calls a function behind each step of an append: `watch(function)`; None: no longer."""
    return load(build(tmp_path_factory.mktemp("compiled"), "-DCHECKBACK_STEPS"))
