"""The C module under the sanitizers for addresses and undefined behaviour, called with hostile arguments."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compiled_module import build

SECONDS = os.environ.get("FUZZ_SECONDS", "60")


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", [1, 2])
def test_no_argument_crashes_the_interpreter(tmp_path: Path, seed: int) -> None:
    library = build(tmp_path, "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
    compiler = shutil.which("cc")
    assert compiler is not None
    runtime = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    environment = {
        **os.environ,
        "LD_PRELOAD": runtime.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",  # else the sanitizer sees one large block
        "CHECKBACK_PURE": "1",
    }
    words = [sys.executable, "-m", "tests.store.compiled_fuzz", str(library), SECONDS, str(seed)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    made = ast.literal_eval(done.stdout)
    names = [
        "append", "send", "end", "prepare", "draft", "index_codes", "message", "crc32", "sent_records",
        "request_message", "request_end", "flush_begin",
    ]  # fmt: skip
    assert min(made[f"{name} did"] for name in names) > 50, made
