"""Properties as they may stand in a record: well made, or any bytes with the two separators among them."""

from __future__ import annotations

from hypothesis import strategies as st

NAMES = ["KEYS", "K", "UNIQ_KEY", "UNIQ_KEZ", "UNIQ_KEY_", "__transactionId__", "TRANSACTION_CHECK_TIMES", "é"]

bits = st.sampled_from(b"\x01\x02\x00aK\x80\xc3\xff").map(lambda byte: bytes([byte]))
names = st.sampled_from([name.encode() for name in NAMES]) | st.binary(max_size=10)
items = st.builds(
    lambda *parts: b"".join(parts), names, st.sampled_from((b"\x01", b"", b"\x01\x01")), st.binary(max_size=14)
)
listed = st.lists(items, max_size=6).map(b"\x02".join)
raw_properties = st.builds(
    lambda text, tail: text + tail, listed | st.lists(bits, max_size=24).map(b"".join), st.sampled_from((b"", b"\x02"))
)
