"""The common END_TRANSACTION: the C module reads from it what the declared header does, or leaves it to that."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker import compiled
from broker.errors import ProtocolError
from broker.remoting.message_headers import EndTransactionRequestHeader
from broker.server.requests import ends

pytestmark = pytest.mark.skipif(compiled.fast is None, reason="there is no C module")

COMMON = {
    "producerGroup": "shop", "tranStateTableOffset": "7", "commitLogOffset": "123456789012", "commitOrRollback": "8",
    "fromTransactionCheck": "false", "msgId": "K1", "transactionId": "K1", "topic": "orders", "bname": "b",
}  # fmt: skip
VALUES = st.one_of(
    st.none(),
    st.sampled_from(["", "0", "8", "12", "08", "-1", "+8", " 8", "8\n", "1_0", "\u0668", "x", "8.0", "\ud800", "grün"]),
    st.integers(1, 24).map(lambda digits: "9" * digits),
    st.text(st.sampled_from("0189-\x00"), max_size=20),
)


def read(ext: dict[str, str]) -> tuple[int, int, str, int] | None:
    assert ends._read is not None
    return ends._read(ext)


@settings(max_examples=1500, deadline=None)
@given(changes=st.dictionaries(st.sampled_from(list(COMMON)), VALUES, max_size=3))
def test_it_says_what_the_declared_header_says(changes: dict[str, str | None]) -> None:
    ext = {name: value for name, value in {**COMMON, **changes}.items() if value is not None}
    common = read(ext)
    try:
        header = EndTransactionRequestHeader.decode(ext)
    except ProtocolError:
        assert common is None
        return
    said = (
        header.commit_log_offset, header.tran_state_table_offset, header.producer_group, header.commit_or_rollback
    )  # fmt: skip
    assert common in (None, said)
    assert common is None or common[3] in (ends.COMMIT, ends.ROLLBACK)


@pytest.mark.parametrize("decision", [ends.COMMIT, ends.ROLLBACK])
@pytest.mark.parametrize("left_out", [(), ("topic", "bname"), tuple(list(COMMON)[4:])])
def test_what_clients_send_is_common(decision: int, left_out: tuple[str, ...]) -> None:
    ext = {name: value for name, value in COMMON.items() if name not in left_out}
    assert read(ext | {"commitOrRollback": str(decision)}) == (123456789012, 7, "shop", decision)


def test_a_producer_that_does_not_know_is_not_common() -> None:
    assert read(COMMON | {"commitOrRollback": str(ends.NOT)}) is None
