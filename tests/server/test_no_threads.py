"""A server that gets too few threads does not start, and leaves nothing behind."""

from __future__ import annotations

import threading

import pytest

import broker


@pytest.mark.parametrize("name", ["append", "fsync", "group_0", "read_0", "read_1", "loop", "tick", "check"])
def test_a_server_that_gets_too_few_threads_leaves_none_behind(
    store: broker.LiveStore, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Nor a port, nor a member of the groups: the next one on the store starts as if nothing had been.

    The threads for groups and reads were begun by requests: one that came meanwhile was called a defect, and the next
    ones of its connection had no answer, ever.
    """
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if thread.name == f"checkback-serve-{name}":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", limited)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            broker.serve(store, "127.0.0.1:0")
    assert not [one.name for one in threading.enumerate() if one.name.startswith("checkback-serve")]
    broker.serve(store, "127.0.0.1:0").close()
