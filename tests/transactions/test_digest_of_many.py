"""Many transactions at once are summed as one after another, by the C module and by hashlib alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import recovery.transactions.digest
from recovery.transactions.digest import ENTRY, Digest
from tests.scan.effort import tries

offsets = st.lists(st.integers(0, (1 << 63) - 1), max_size=12).map(sorted)


@tries(60)
@given(st.lists(st.tuples(st.binary(min_size=26, max_size=26), offsets), max_size=8))
@example([(bytes(26), list(range(count))) for count in range(14)])  # across the edges of a block of SHA-256
def test_many_are_the_sum_of_each(transactions: list[tuple[bytes, list[int]]]) -> None:
    one_by_one = Digest()
    for entry, delivered in transactions:
        one_by_one.add(entry, delivered)
    entries = np.frombuffer(b"".join(entry for entry, _ in transactions), ENTRY)
    starts = np.cumsum([0, *(len(delivered) for _, delivered in transactions)]).tolist()
    flat = np.array([one for _, delivered in transactions for one in delivered], np.int64)
    for module in (recovery.transactions.digest.fast, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recovery.transactions.digest, "fast", module)
            together = Digest()
            together.add_many(entries, starts, flat)
            assert together.hex() == one_by_one.hex()
