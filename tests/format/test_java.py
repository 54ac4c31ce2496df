"""What Java did: hashes, the order of maps, hosts, message ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import CorruptRecord
from broker.format import java
from broker.format.java import Host
from tests.format.strategies import hosts, integers


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("d", 100),
        ("TagA", 2598919),
        ("order_producer", 2003292515),
        ("TRAN_MSG", 2063874125),
        ("polygenelubricants", -(1 << 31)),
        ("\xe9", 233),
        ("\U0001f600", 0xD83D * 31 + 0xDE00),
    ],
)
def test_golden_hashes(text: str, code: int) -> None:
    """A.9 of the facts, and String.hashCode's known minimum."""
    assert java.string_hash(text) == code


@given(st.text(st.characters()))
def test_hash_is_the_fold_over_code_units(text: str) -> None:
    code = 0
    wide = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(wide), 2):
        code = 31 * code + int.from_bytes(wide[at : at + 2], "big")
    assert java.string_hash(text) == (code + (1 << 31)) % (1 << 32) - (1 << 31)


def test_a_map_grows() -> None:
    """13 names do not fit in 16 buckets: the order is that of 32."""
    listed = [f"name{number}" for number in range(13)]
    assert java.properties_bucket_order(listed, 16) == java.properties_bucket_order(listed, 32)
    assert java.properties_bucket_order(listed[:12], 16) == java.properties_bucket_order(listed[:12], 10)


@given(hosts)
def test_hosts_round_trip(host: Host) -> None:
    if host.port >= 0:
        assert Host.parse(str(host)) == host


def test_host_as_text() -> None:
    assert str(Host(b"\x7f\0\0\1", 10911)) == "127.0.0.1:10911"
    assert str(Host(b"\0" * 15 + b"\1", 1)) == "[::1]:1"
    assert str(Host(b"abc", 1)) == "616263:1"
    for text in ("", "127.0.0.1", "host:1", "1.2.3.4:x"):
        with pytest.raises(ValueError):
            Host.parse(text)


@given(hosts, integers("i64"))
def test_message_ids_round_trip(host: Host, commitlog_offset: int) -> None:
    text = java.encode_message_id(host, commitlog_offset)
    assert len(text) == (56 if host.is_ipv6 else 32)
    assert java.decode_message_id(text) == java.decode_message_id(text.lower()) == (host, commitlog_offset)


def test_golden_message_id() -> None:
    host = Host(b"\x7f\0\0\1", 10911)
    assert java.encode_message_id(host, 0x266) == "7F00000100002A9F0000000000000266"


@given(st.sampled_from((4, 16)), integers("i64"), integers("i64"), integers("i64"), integers("i64"))
def test_unique_keys_wrap_and_round_trip(size: int, pid: int, loader: int, ms: int, counter: int) -> None:
    key = java.parse_unique_key(java.make_unique_key(b"\x0a" * size, pid, loader, ms, counter))
    assert (key.address, key.pid, key.counter) == (b"\x0a" * size, pid & 0xFFFF, counter & 0xFFFF)
    assert (key.loader_hash, key.ms_of_month) == (loader & 0xFFFFFFFF, ms & 0xFFFFFFFF)


@given(st.text(max_size=60) | st.text("0123456789abcdefXYZ ", min_size=32, max_size=32))
def test_any_text_is_an_id_or_corrupt(text: str) -> None:
    for parse in (java.decode_message_id, java.parse_unique_key):
        try:
            parse(text)
        except CorruptRecord:
            pass


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("127.0.0.1:10911", ("127.0.0.1", 10911)),
        ("[::1]:0", ("[::1]", 0)),
        ("shop:65535", ("shop", 65_535)),
        ("9876", ("", 9876)),
        (":00080", ("", 80)),
        *((text, None) for text in ("", "shop", "shop:", "shop:65536", "shop:-1", "shop:\u00b2", "a:\u0663", "a:1 ")),
    ],
)
def test_an_address_is_split(text: str, found: tuple[str, int] | None) -> None:
    assert java.split_address(text) == found


def test_a_port_of_any_length_is_refused() -> None:
    """Python reads no number of more than some thousands of digits."""
    assert java.split_address(f"shop:{'9' * 5000}") is None


def test_addresses_have_two_lengths() -> None:
    with pytest.raises(ValueError):
        java.encode_message_id(Host(b"abc", 1), 0)
