"""What may be said about one resolver, checked without anything that would ask it: no database, no HTTP is imported.

Airflow checks the settings of its stores with it each time that it parses a DAG file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from broker.errors import BrokerError
from recovery.checkback.time_limit import ANSWER_WITHIN_S
from recovery.durations import parse_duration

_KINDS = ("ledger", "http", "call")
_OF_KIND = {
    "ledger": ("ledger", "table", "schema"),
    "http": ("http", "headers_file", "token_file", "answer_within"),
    "call": ("call", "answer_within"),
}
_LISTS = ("ledger", "schema")

Spec = Mapping[str, Any]
"""One resolver: texts, and for `ledger` and `schema` a text or a list of them."""


def check_spec(spec: Any, where: str) -> None:
    """Raises BrokerError unless exactly one kind of resolver is named, with what belongs to it."""
    kinds = [kind for kind in _KINDS if kind in spec] if isinstance(spec, Mapping) else []
    if len(kinds) != 1:
        raise BrokerError(f"{where} names one of {', '.join(_KINDS)}")
    for name, value in spec.items():
        names = _OF_KIND[kinds[0]]
        if name not in names:
            raise BrokerError(f"{where} has no {name!r} of this kind; the names are {', '.join(names)}")
        texts = value if name in _LISTS and isinstance(value, list | tuple) else [value]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise BrokerError(f"{where}: {name} is a text" + (", or a list of them" if name in _LISTS else ""))
    if not is_http_url(spec.get("http", "http://localhost")):
        raise BrokerError(f"{where}: http is an http(s) URL with a host, as http://127.0.0.1:8080/check-back")
    answer_within_s(spec, where)


def is_http_url(url: str) -> bool:
    """Whether a question can go there: http or https, a host, and no port that cannot be."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is not a number, or too large; half an address of IPv6
        return False


def answer_within_s(spec: Spec, where: str = "") -> float:
    """How long an answer may take, in seconds. Raises BrokerError for what is not a duration."""
    try:
        return parse_duration(spec["answer_within"]) / 1000 if "answer_within" in spec else ANSWER_WITHIN_S
    except ValueError as error:
        raise BrokerError(f"{where}: answer_within: {error}") from None
