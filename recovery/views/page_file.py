"""The HTML page that a verb writes where a person said: whole or not at all, and over nothing but an older page.

    check_page(file)                   before the work, so that a wrong path is said at once
    write_page(file, html)

What is not a regular file, such as /dev/stdout, gets the page as it is.
"""

from __future__ import annotations

import contextlib
import os
import tempfile

from broker.errors import StoreError
from broker.store.disk.os_errors import not_written
from broker.store.read.detect import check_outside_stores

_BEGINS = b"<!doctype html>"
_UNWRITABLE = "backslashreplace"  # a path may hold bytes that do not decode: they are shown as on a terminal


def check_page(path: str) -> None:
    """Raises StoreError for a place where no page is written: in a store, a directory, a file that is not a page."""
    if os.path.isdir(path):
        text = f"{path} is a directory. Give the file to write, such as {os.path.join(path, 'store.html')}"
        raise StoreError(text, path=path)
    check_outside_stores(path)
    above = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(above):
        text = f"{path} cannot be made: there is no directory {above}. Make it, or give another file"
        raise StoreError(text, path=path)
    try:
        if os.path.isfile(path) and os.path.getsize(path) > 0:
            with open(path, "rb") as file:
                is_page = file.read(len(_BEGINS)).lower() == _BEGINS
            if not is_page:
                raise StoreError(f"{path} is there already, and is not an HTML page. Give another file", path=path)
    except OSError as error:
        raise not_written(error, path) from error


def write_page(path: str, html: str) -> None:
    """Put a page in place in one step. Raises what `check_page` raises, and StoreFull."""
    check_page(path)
    target = os.path.realpath(path)
    try:
        if os.path.exists(path) and not os.path.isfile(path):  # such as /dev/stdout: nothing to replace
            with open(path, "w", encoding="utf-8", errors=_UNWRITABLE) as stream:
                stream.write(html)
            return
        beside, new = tempfile.mkstemp(prefix=f".{os.path.basename(target)[:200]}.", dir=os.path.dirname(target))
        try:
            with os.fdopen(beside, "w", encoding="utf-8", errors=_UNWRITABLE) as file:
                file.write(html)
            os.chmod(new, _mode(target))
            os.replace(new, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.remove(new)
            raise
    except OSError as error:
        raise not_written(error, path) from error


def _mode(path: str) -> int:
    """That of the page that is replaced, else what the umask leaves: mkstemp lets nobody else read."""
    try:
        return os.stat(path).st_mode & 0o777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
