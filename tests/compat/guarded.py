"""The command line of checkback under guard: `python -m tests.compat.guarded STORE VERB...` dies if STORE is written.

An audit hook sees every file that Python opens, removes, renames or makes. A broker writes a live store all the
time, so its files cannot be compared; who reads it can be watched.
"""

from __future__ import annotations

import os
import sys

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {
    "os.chmod",
    "os.chown",
    "os.link",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.setxattr",
    "os.symlink",
    "os.truncate",
    "os.utime",
}
EXIT_WRITTEN = 99


def guard(store: str) -> None:
    """From now on, end this process at once when it is about to change something below `store`."""
    root = os.path.realpath(store)

    def below(path: object) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        where = os.path.realpath(os.fsdecode(path))
        return where == root or where.startswith(root + os.sep)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES
        if (writes or event in CHANGES) and any(below(argument) for argument in arguments[:2]):
            sys.stderr.write(f"the store is about to be changed: {event} {arguments}\n")
            sys.stderr.flush()
            os._exit(EXIT_WRITTEN)

    sys.addaudithook(hook)


if __name__ == "__main__":
    from recovery.cli.app import main

    guard(sys.argv[1])
    del sys.argv[1]
    sys.exit(main())
