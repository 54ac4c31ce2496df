"""From `shop:app` on the command line to the application: the module is imported as `python -m` would."""

from __future__ import annotations

import importlib
import os
import sys
import traceback

from broker.app.application import App
from broker.errors import BrokerError


def load_app(target: str) -> App:
    """The application that a target names, `module:attribute`. Raises BrokerError with the line that failed."""
    module_name, _, attribute = target.partition(":")
    if not module_name or not all(part.isidentifier() for part in [*module_name.split("."), *attribute.split(".")]):
        raise BrokerError(f"{target!r:.80} does not name an application: write module:attribute, for example shop:app")
    directory = os.getcwd()
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        found: object = importlib.import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module runs at its import: one that exits would end this process
        raise BrokerError(f"{target}: {_why(error, module_name, directory)}") from error
    for name in attribute.split("."):
        found = getattr(found, name, None)
    if not isinstance(found, App):
        what = "there is no such attribute" if found is None else f"{found!r:.60} is not a broker.App"
        raise BrokerError(f"{target}: {what} in {module_name}")
    return found


def _why(error: BaseException, module_name: str, directory: str) -> str:
    """Why a module cannot be imported, with the place in the application's own code."""
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module_name}.".startswith(f"{error.name}."):
        return f"there is no module {error.name} in {directory}: run it in the directory of the application"
    if isinstance(error, SyntaxError):
        return f"{error.filename} line {error.lineno}: {error.msg}"
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.startswith(directory) and "site-packages" not in frame.filename
    ]  # fmt: skip
    place = f"{frames[-1].filename} line {frames[-1].lineno}" if frames else module_name
    return f"{place}: {type(error).__name__}: {' '.join(str(error).split())}"
