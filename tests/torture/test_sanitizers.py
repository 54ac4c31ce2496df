"""The C module, compiled with the address and undefined-behaviour sanitizers, called with hostile arguments."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from ast import literal_eval
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[2]
COMPILER = shutil.which("gcc")
FLAGS = ("-std=c11", "-g", "-O1", "-shared", "-fPIC", "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-Werror")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
DEFINED = ("-DPy_LIMITED_API=0x030b0000", "-DCHECKBACK_SOURCES=0")


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The module, and the library of the sanitizer, which must be loaded before the interpreter's own."""
    if COMPILER is None:
        pytest.skip("there is no gcc")
    library = subprocess.run(
        [COMPILER, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not os.path.isabs(library):
        pytest.skip("this gcc has no address sanitizer")
    built = tmp_path_factory.mktemp("sanitized") / "_fast.abi3.so"
    include = sysconfig.get_paths()["include"]
    source = str(TREE / "broker" / "_fast.c")
    subprocess.run([COMPILER, *FLAGS, *SANITIZERS, *DEFINED, f"-I{include}", source, "-o", str(built)], check=True)
    return built, library


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(4))
def test_hostile_arrays(sanitized: tuple[Path, str], seed: int) -> None:
    built, library = sanitized
    environment = {
        **os.environ, "LD_PRELOAD": library, "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1", "UBSAN_OPTIONS": "print_stacktrace=1",
    }  # fmt: skip
    program = [sys.executable, str(TREE / "tests" / "scan" / "hostile_arrays.py"), str(built), "60000", str(seed)]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-20_000:]
    answered = literal_eval(done.stdout)
    assert all(count > 500 for count in answered.values()), f"hardly any call was answered: {answered}"
