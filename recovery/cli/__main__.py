"""`python -m recovery.cli`, and the console script `checkback`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, and end. An interrupt while it loads, a third of a second, ends it as a later one does."""
    try:
        from recovery.cli.app import main as run

        run()
    except (KeyboardInterrupt, RuntimeError) as error:
        # Python 3.11 makes a RuntimeError of one that comes while a class gets its attributes: in an import, say.
        if not isinstance(error, KeyboardInterrupt) and not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        print("checkback: Interrupted.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
