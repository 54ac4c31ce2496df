"""What others see of a copy."""

from __future__ import annotations

from pathlib import Path

import pytest

import broker
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from recovery.following.copied_log import FollowedStore
from recovery.following.standing import CopyStanding, copy_standing

_ODD = ["{", "[]", "{}", '{"bytes":"x"}', '{"bytes":null}', '{"bytes":1e999}', pytest.param("[" * 200_000, id="deep")]


@pytest.mark.parametrize("text", _ODD)
def test_a_file_that_is_no_report_of_a_loss_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "copy.store"
    broker.open(path).close()
    paths = Paths(str(path))
    FollowedStore("192.0.2.7:10912", 1 << 20).write(paths, Disk())
    lost = Path(paths.lost)
    lost.mkdir()
    (lost / "a.json").write_text('{"bytes":5}')
    assert copy_standing(path) == CopyStanding("192.0.2.7:10912", is_followed=False, lost_bytes=5, losses=1)
    (lost / "b.json").write_text(text)
    with pytest.raises(broker.StoreError, match=f"{lost}/b.json is not a report of what the master lost"):
        copy_standing(path)
