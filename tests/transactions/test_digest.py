"""The digest as docs/format.md says it. `python -m tests.transactions.test_digest` writes the page's example anew."""

from __future__ import annotations

import hashlib
import re
import struct
from itertools import chain
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recovery.transactions.digest import ENTRY, Digest, identities_of_unique_keys
from tests.scan.effort import tries
from tests.transactions.model import GAP, HALF_OP, IN_DOUBT, STATE_TABLE, Entry, Judgement, encoded, identity

PAGE = Path(__file__).resolve().parents[2] / "docs" / "format.md"
BLOCK = re.compile(r"(<!-- digest -->\n)(.*?)(<!-- end digest -->)", re.DOTALL)
KEY = "7F000001ABCD18B4AAC2000000000001"
EXAMPLE: dict[int, Entry] = {
    160: {"generation": STATE_TABLE, "state": 8, "delivered": [404], "key": ""},
    1000: {"generation": HALF_OP, "state": IN_DOUBT, "delivered": [], "key": KEY},
}


def example() -> str:
    """The lines of the worked example, by the model."""
    lines = ["| | |", "|---|---|", f"| UNIQ_KEY of the second | `{KEY}` |"]
    for number, (lowest, told) in enumerate(EXAMPLE.items(), 1):
        raw = encoded(lowest, told)
        lines += [
            f"| bytes {number} | `{raw.hex()}` |",
            f"| hash {number} | `{hashlib.sha256(raw).digest()[:16].hex()}` |",
        ]
    return "\n".join([*lines, f"| digest | `{Judgement(transactions=EXAMPLE).digest}` |"]) + "\n"


def written_anew(text: str) -> str:
    return BLOCK.sub(lambda block: block[1] + example() + block[3], text)


def test_the_page_shows_the_example_that_the_model_computes() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert BLOCK.search(text)
    assert text == written_anew(text), "run: python -m tests.transactions.test_digest"


def entry(lowest: int, told: Entry) -> bytes:
    """The fixed part, as the engine makes it."""
    key = np.frombuffer(told["key"].encode(), np.uint8)
    (high,), (low,) = identities_of_unique_keys(key, np.zeros(1, np.int64), np.array([len(key)]))
    high, low = (high, low) if told["key"] else (0, lowest)
    return np.array((told["generation"], told["state"], high, low, lowest), ENTRY).tobytes()


def test_the_engine_computes_the_example() -> None:
    digest = Digest()
    for lowest, told in EXAMPLE.items():
        digest.add(entry(lowest, told), told["delivered"])
    assert digest.hex() == Judgement(transactions=EXAMPLE).digest
    assert Digest().hex() == "0" * 32 == Judgement().digest


offsets = st.integers(0, (1 << 63) - 1)
keys = st.sampled_from(("", KEY, KEY.lower(), KEY[:-1], "order-1", "é")) | st.text(max_size=40)
transactions = st.dictionaries(
    offsets,
    st.fixed_dictionaries(
        {
            "generation": st.sampled_from((STATE_TABLE, GAP, HALF_OP)),
            "state": st.sampled_from((4, 8, 12, 16)),
            "delivered": st.lists(offsets, max_size=3).map(sorted),
            "key": keys,
        }
    ),
    max_size=8,
)


@tries(50)
@given(transactions, st.integers(0, 8))
def test_any_transactions_in_any_parts_add_up(told: dict[int, Entry], cut: int) -> None:
    """One by one, all at once, and in two parts that are merged."""
    wanted = Judgement(transactions=told).digest
    single, parts = Digest(), [Digest(), Digest()]
    for lowest, facts in reversed(told.items()):
        single.add(entry(lowest, facts), reversed(facts["delivered"]))
    items = list(told.items())
    for digest, part in zip(parts, (items[:cut], items[cut:]), strict=True):
        rows = np.frombuffer(b"".join(entry(*item) for item in part), ENTRY)
        delivered = [facts["delivered"] for _, facts in part]
        starts = np.cumsum([0, *map(len, delivered)])
        digest.add_many(rows, starts.tolist(), np.array(list(chain.from_iterable(delivered)), np.int64))
    parts[0].merge(parts[1])
    assert single.hex() == parts[0].hex() == wanted


def test_the_models_identity_is_what_the_page_says() -> None:
    assert identity(160, "") == struct.pack(">QQ", 0, 160)
    assert identity(160, KEY) == bytes.fromhex(KEY)
    assert identity(160, KEY.lower()) == hashlib.sha256(KEY.lower().encode()).digest()[:16]


if __name__ == "__main__":
    PAGE.write_text(written_anew(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
