"""A few thousand calls of the C module with hostile arguments; tests/torture/test_sanitizers.py makes many more."""

from __future__ import annotations

import subprocess
import sys
from ast import literal_eval
from pathlib import Path

import pytest

from broker.compiled import fast


@pytest.mark.skipif(fast is None, reason="the C module was not built, or CHECKBACK_PURE=1 leaves it out")
def test_hostile_arguments_are_refused() -> None:
    assert fast is not None
    program = [sys.executable, str(Path(__file__).with_name("hostile_arrays.py")), str(fast.__file__), "6000", "1"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answered = literal_eval(done.stdout)
    assert all(count > 50 for count in answered.values()), f"hardly any call was answered: {answered}"
