"""The key that one half message and one row of a ledger share: it is made here, and read here. Pure but for chance."""

from __future__ import annotations

import os

LEDGER_KEY = "CHECKBACK_LEDGER_KEY"
"""The property of a half message that names its ledger row; all halves of one transaction have the same."""

KEY_SIZE = 32
_TIME_DIGITS = 12
_CHANCE_BYTES = (KEY_SIZE - _TIME_DIGITS) // 2


def new_key(now_ms: int) -> str:
    """A key for one local transaction: 12 hexadecimal digits of milliseconds, 20 of chance. Keys sort by their time."""
    return f"{now_ms:0{_TIME_DIGITS}x}{os.urandom(_CHANCE_BYTES).hex()}"


def key_time_ms(key: str) -> int | None:
    """When a key was made, by its maker's clock; None when it is not a key."""
    try:
        return int(key[:_TIME_DIGITS], 16) if len(key) == KEY_SIZE and key.isascii() else None
    except ValueError:
        return None
