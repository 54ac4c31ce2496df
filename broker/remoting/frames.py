"""From a stream of bytes to frames. Nothing is allocated that has not arrived."""

from __future__ import annotations

from broker.errors import ProtocolError

FRAME_BYTES_MAX = (4 << 20) + (1 << 20)
"""The largest frame here: a body of 4 MiB, its header, and room for the heads of a batch. RocketMQ's default is
16 MiB, of which a broker with its default settings uses no more than this."""
_LENGTH = 4
_LEAST = 4  # the mark


class FrameSplitter:
    """Collects what arrives on one connection."""

    def __init__(self, size_max: int = FRAME_BYTES_MAX) -> None:
        self._size_max = size_max
        self._held = bytearray()

    @property
    def held_bytes(self) -> int:
        """What has arrived of a frame that is not whole."""
        return len(self._held)

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are whole now, without their lengths. Raises ProtocolError for a length out of range."""
        held = self._held
        held += data
        frames, at, end = [], 0, len(held)
        while end - at >= _LENGTH:
            length = int.from_bytes(held[at : at + _LENGTH], "big", signed=True)
            if not _LEAST <= length <= self._size_max - _LENGTH:
                raise ProtocolError(f"a frame has from 8 to {self._size_max} bytes, not {length + _LENGTH}")
            if end - at < _LENGTH + length:
                break
            frames.append(bytes(held[at + _LENGTH : at + _LENGTH + length]))
            at += _LENGTH + length
        if at:
            del held[:at]
        return frames
