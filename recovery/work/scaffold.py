"""`checkback new shop`: a small application with its tests, which runs as it stands."""

from __future__ import annotations

import keyword
import os
import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from importlib.resources import files

from broker.errors import BrokerError

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_OF_PYTEST = re.compile(r"conftest|test_.*|.*_test")  # it loads them before a test has a database of its own
_FILES = {"application.py.txt": "{name}.py", "tests.py.txt": "test_{name}.py", "readme.md.txt": "README.md"}


def make_application(directory: str) -> Iterator[str]:
    """Make the files in a new or empty directory; yields a line for each, and the next steps.

    Raises BrokerError when the directory holds anything, and for a name that no module can have, or that is taken.
    """
    name = os.path.basename(os.path.normpath(directory))
    if not _NAME.fullmatch(name):
        raise BrokerError(f"{name!r:.60} cannot name an application: use a to z, digits and _, as in shop")
    if keyword.iskeyword(name):
        raise BrokerError(f"{name!r} cannot name an application: it is a word of Python's own. Use another, as shop")
    if name in ("broker", "recovery", "test") or name in sys.stdlib_module_names or name in packages_distributions():
        text = f"{name!r:.60} cannot name an application: Python has a module {name}, which it would hide"
        raise BrokerError(f"{text}. Use another name, as shop")
    if _OF_PYTEST.fullmatch(name):
        text = f"{name!r:.60} cannot name an application: pytest would load {name}.py as a file of tests"
        raise BrokerError(f"{text}. Use another name, as shop")
    os.makedirs(directory, exist_ok=True)
    if held := sorted(os.listdir(directory)):
        raise BrokerError(f"{directory} is not empty (it holds {held[0]}): nothing was made. Name another directory")
    templates = files("recovery.work") / "template"  # in a zip, too
    for template, file_name in _FILES.items():
        text = (templates / template).read_text(encoding="utf-8")
        path = os.path.join(directory, file_name.format(name=name))
        with open(path, "x", encoding="utf-8") as file:
            file.write(text.replace("__NAME__", name))
        yield f"made {path}"
    yield ""
    yield "Next:"
    yield f"  cd {directory}"
    yield "  pip install pytest                      checkback brings its fixtures, and not pytest itself"
    yield "  python -m pytest                        its tests; one kills the workers"
    yield f"  python {name}.py lamp chair               place two orders"
    yield f"  checkback work {name}:app --processes 2   charge them; Ctrl-C stops it"
