"""A process that places orders until it is killed: `python -m tests.workers.customer`."""

import time

from tests.workers.killed_shop import place

PAUSE_S = 0.15  # the handlers keep up with it

if __name__ == "__main__":
    while True:
        place()
        time.sleep(PAUSE_S)
