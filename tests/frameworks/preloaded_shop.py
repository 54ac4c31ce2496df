"""A Django application that opened its store before it forked, as under `gunicorn --preload`; its own atexit sends too.

python -m tests.frameworks.preloaded_shop        forks three children, which end in three ways; prints what it saw
"""

import atexit
import json
import os
import signal
import subprocess
import sys

import django

django.setup()

from django.db import connections, transaction  # noqa: E402 - Django has to be set up before

import broker  # noqa: E402
from broker.django import open_store  # noqa: E402
from tests.frameworks.django_shop.announcements import producer  # noqa: E402
from tests.frameworks.django_shop.models import Order  # noqa: E402

JOIN = """
import os, sys, broker
from broker.store.disk.store_lock import StoreLock
assert not StoreLock(os.path.join(sys.argv[1], "lock")).try_exclusive(), "the parent does not hold it any more"
broker.open(sys.argv[1]).close()
"""


def order(item: str) -> None:
    with transaction.atomic():
        Order.objects.create(item=item)
        producer().send(broker.Message("orders", item.encode()))


def last_words() -> None:
    """What an application does at the exit of each of its processes, forked ones too."""
    order(f"last words of {'the parent' if os.getpid() == PARENT else 'a child'}")


def child(way: str) -> int:
    """Fork; the child leaves by `sys.exit`, so that what is registered with atexit runs there."""
    connections.close_all()
    pid = os.fork()
    if pid == 0:
        if way == "works":
            order("by a child")
        if way == "is-killed":
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit(0)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def is_in_use(path: str) -> bool:
    """Whether the store still counts as open: a broker of RocketMQ would find `abort`."""
    return os.path.exists(os.path.join(path, "abort"))


PARENT = os.getpid()
if __name__ == "__main__":
    place = os.environ["SHOP_STORE"]
    producer()
    atexit.register(last_words)  # after the store's: it runs before
    order("before")
    seen = []
    for way in ("exits", "works", "is-killed"):
        code = child(way)
        order(f"after the child that {way}")
        joined = subprocess.run([sys.executable, "-c", JOIN, place], check=False).returncode
        seen.append([way, code, is_in_use(place), joined, open_store().writer.lock.held])
    print(json.dumps(seen))
