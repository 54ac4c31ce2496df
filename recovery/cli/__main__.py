"""`python -m recovery.cli`: the same as the console script `checkback`."""

from recovery.cli.app import main

if __name__ == "__main__":
    main()
