"""STORE/checkback/store.json: the id that a store got when it was made, and the sizes of its files.

{"version": 1, "id": "32 hexadecimal digits", "layout": {"segment_bytes": ...}}
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass

from broker.errors import StoreError
from broker.store.disk.files import Disk, Missing
from broker.store.disk.paths import Paths
from broker.store.write.layout import StoreLayout

_VERSION = 1


@dataclass(frozen=True, slots=True)
class StoreFile:
    """What store.json states. `store_id`: 32 hexadecimal digits; the ledger's rows carry it, too."""

    store_id: str
    layout: StoreLayout

    @classmethod
    def new(cls, layout: StoreLayout) -> StoreFile:
        """The file of a store that is made now."""
        return cls(secrets.token_hex(16), layout)

    @classmethod
    def decode(cls, raw: bytes, path: str) -> StoreFile:
        """Raises StoreError for bytes that are damaged, or of a version that this one does not know."""
        try:
            content = json.loads(raw)
            version, store_id = content["version"], f"{int(content['id'], 16):032x}"
            layout = StoreLayout(**content["layout"])
        except (KeyError, TypeError, ValueError) as error:
            text = f"{path} is damaged ({error!r}). Put it back from a copy of the store"
            raise StoreError(text, path=path) from error
        if version != _VERSION:
            text = f"{path} was made by a version of checkback that this one does not know ({version}): update it"
            raise StoreError(text, path=path)
        return cls(store_id, layout)

    def encode(self) -> bytes:
        """The bytes of the file."""
        content = {"version": _VERSION, "id": self.store_id, "layout": asdict(self.layout)}
        return json.dumps(content, indent=1).encode()


def read_store_file(disk: Disk, paths: Paths) -> StoreFile | None:
    """The file of a store; None when checkback did not make the store. Raises StoreError when it is damaged."""
    try:
        raw = disk.read(paths.store_json)
    except Missing:
        return None
    return StoreFile.decode(raw, paths.store_json)


def two_words(number: int) -> tuple[int, int]:
    """A 128-bit number as the control page holds it: the high and the low 64 bits."""
    return number >> 64, number & ((1 << 64) - 1)


def boot_words(disk: Disk) -> tuple[int, int]:
    """This boot's id in the same form; (0, 0) where the system does not tell it."""
    return two_words(int(disk.boot_id().replace("-", "") or "0", 16))
