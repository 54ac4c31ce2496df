"""What `checkback up` needs of a machine, looked at before anything is started: a sentence for whatever is missing."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import shutil
import socket
from collections.abc import Iterator

from broker.errors import BrokerError
from broker.store.disk.append_lock import AppendLock

LOOPBACK = "127.0.0.1"
NEEDED_BYTES = 1 << 30  # Airflow's database and logs, and the first segments of a store


class NotHere(BrokerError):
    """This machine lacks something, or something is in the way."""


def check_airflow() -> None:
    """Raises NotHere without Airflow."""
    if importlib.util.find_spec("airflow") is None:
        text = "Airflow is not installed: install checkback with its extra 'airflow'. Without it the same work is"
        raise NotHere(f"{text} done manually: checkback check-back, recover, verify, rebuild")


@contextlib.contextmanager
def alone_in(directory: str, port: int) -> Iterator[None]:
    """Hold the directory of Airflow's files. Raises NotHere while another `checkback up` does, whatever its port.

    Both would have one database, and the settings of the second one would take the place of the first one's.
    """
    lease = AppendLock(os.path.join(directory, "up.lock"))
    try:
        if not lease.try_acquire():
            text = f"another `checkback up` has its files in {directory}. Stop that; or give this one its own directory"
            several = "one that is to look after several stores has --stores FILE"
            place = shlex.quote(f"{directory}-{port + 1}")
            raise NotHere(f"{text} and port: --home {place} --port {port + 1}; {several}")
        yield
    finally:
        lease.close()


def check_port(port: int) -> None:
    """Raises NotHere when another program listens there: Airflow would start, and we would talk to the other one."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            text = f"port {port} of {LOOPBACK} cannot be used ({error.strerror}): another program has it, perhaps"
            raise NotHere(f"{text} another `checkback up`. Stop that, or give another one: --port {port + 1}") from None


def check_disk(directory: str) -> None:
    """Raises NotHere when there is not enough room."""
    free = shutil.disk_usage(directory).free
    if free < NEEDED_BYTES:
        text = (
            f"{directory} has {free >> 20} MiB free and {NEEDED_BYTES >> 20} MiB are needed. Make room, or give another"
        )
        raise NotHere(f"{text} directory with --home")


def has_java() -> bool:
    """Whether Spark would find a Java that it can use."""
    from recovery.spark.sessions import SparkNotReady, check_java

    try:
        check_java()
    except SparkNotReady:
        return False
    return True
