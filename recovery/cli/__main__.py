"""`python -m recovery.cli`, and the console script `checkback`."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line. An interrupt while it loads, a third of a second, ends it as a later one does."""
    try:
        from recovery.cli.app import main as run

        run()
    except KeyboardInterrupt:
        print("checkback: Interrupted.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
