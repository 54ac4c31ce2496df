"""Asks an endpoint of the application over HTTP: POST with the transaction as JSON, answered by {"state": "commit"}.

    HttpResolver("http://billing/check-back", headers=read_headers(None, "/run/secrets/billing"))

The states are commit, rollback, unknown and running. The whole exchange has one limit, whatever trickles in, and an
answer has at most 64 KiB. No connection, a limit, a redirect, a page that is not JSON, and the statuses 401, 403, 404,
407, 408, 429 and 500 or above mean that nobody could be asked: an answer comes from the application, and not from what
stands before it. Any other answer without a state counts as unknown. Needs the extra `http`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import tenacity

from broker.errors import BrokerError
from broker.store.disk.files import Disk
from broker.transaction.service import Half
from recovery.checkback.protocol import Answer, Outcome, Question, meaning
from recovery.checkback.time_limit import ANSWER_WITHIN_S, TimedOut, TimeLimit, ask_each

ANSWER_BYTES = 64 * 1024
_NOBODY = frozenset((401, 403, 404, 407, 408, 429))
_BRIEFLY_AWAY = frozenset((502, 503, 504))
_WHY_SIZE = 300
_ATTEMPTS = 3
_WAIT_S = 0.5


class _Away(Exception):
    """The endpoint may be there in a moment; the text says what was wrong."""


class _ShownAlone(logging.Filter):
    """httpx logs each request with its whole URL, a password and a token in it: of ours, what may be shown.

    A request that the application makes in another thread is logged as before.
    """

    def __init__(self) -> None:
        super().__init__()
        self._here = threading.local()

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """While this thread asks. A filter that is there already is not added again."""
        logging.getLogger("httpx").addFilter(self)
        self._here.asks = True
        try:
            yield
        finally:
            self._here.asks = False

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(self._here, "asks", False) and isinstance(record.args, tuple):
            record.args = tuple(shown(str(one)) if "://" in str(one) else one for one in record.args)
        return True


_shown_alone = _ShownAlone()


class HttpResolver:
    """Asks one endpoint. `headers` go with each question; redirects are not followed, so they go nowhere else."""

    def __init__(
        self,
        url: str,
        *,
        answer_within_s: float = ANSWER_WITHIN_S,
        headers: Mapping[str, str] | None = None,
        client: Any = None,
    ) -> None:
        self._url, self._shown, self._headers, self._client = url, shown(url), dict(headers or {}), client
        self._limit = TimeLimit(self._shown, answer_within_s)

    def __repr__(self) -> str:
        return f"http {self._shown}"

    def ask(self, questions: Sequence[Question], now_ms: int) -> list[Answer]:  # noqa: ARG002 - it has its own clock
        if self._client is not None:
            return self._all(self._client, questions)
        try:
            import httpx
        except ImportError:
            raise BrokerError("asking over HTTP needs httpx: install checkback with its extra 'http'") from None
        with httpx.Client(timeout=self._limit.seconds) as client:
            return self._all(client, questions)

    def _all(self, client: Any, questions: Sequence[Question]) -> list[Answer]:
        def one(question: Question) -> Answer:
            deadline = time.monotonic() + self._limit.seconds
            try:
                half = question.half
                return self._limit.run(lambda: self._asked(client, half, deadline), half.commitlog_offset)
            except TimedOut as error:
                return Answer(Outcome.DOWN, str(error)[:_WHY_SIZE])
            except Exception as error:  # noqa: BLE001 - whatever a client raises, nobody answered
                return Answer(Outcome.DOWN, f"{self._shown}: {type(error).__name__}: {error}"[:_WHY_SIZE])

        return ask_each(questions, one, time.monotonic, self._shown)

    def _asked(self, client: Any, half: Half, deadline: float) -> Answer:
        """The answer; who is briefly away is asked again, within the same limit."""
        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_Away),
            stop=tenacity.stop_after_attempt(_ATTEMPTS) | tenacity.stop_after_delay(self._limit.seconds / 2),
            wait=tenacity.wait_random_exponential(multiplier=0.05, max=_WAIT_S),
            reraise=True,
        )
        try:
            return again(self._exchange, client, half, deadline)
        except _Away as error:
            return Answer(Outcome.DOWN, str(error)[:_WHY_SIZE])

    def _exchange(self, client: Any, half: Half, deadline: float) -> Answer:
        """One request and its answer. Raises _Away."""
        import httpx

        headers = {"Accept-Encoding": "identity", **self._headers}
        request = {"json": described(half), "headers": headers, "follow_redirects": False}
        try:
            with _shown_alone.asking(), client.stream("POST", self._url, **request) as response:
                refusal = _refusal(response.status_code)
                body = b"" if refusal else _body(response, deadline)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _Away(f"{self._shown} does not answer: {type(error).__name__}: {error}") from None
        except (httpx.HTTPError, httpx.InvalidURL, TimedOut) as error:
            what = str(error) if isinstance(error, TimedOut) else f"{type(error).__name__}: {error}"
            return Answer(Outcome.DOWN, f"{self._shown} does not answer: {what}"[:_WHY_SIZE])
        if response.status_code in _BRIEFLY_AWAY:
            raise _Away(f"{self._shown} {refusal}")
        if refusal:
            return Answer(Outcome.DOWN, f"{self._shown} {refusal}")
        return self._answer_of(response.status_code, body)

    def _answer_of(self, status: int, body: bytes) -> Answer:
        said: Any = None
        try:
            said = json.loads(body or b"null")
        except (ValueError, RecursionError):
            if status < 300:  # the application was not reached: it answers in JSON
                text = f"{self._shown} answers {status} with what is not JSON, as a login or a proxy's page"
                return Answer(Outcome.DOWN, text[:_WHY_SIZE])
        outcome = meaning(str(said["state"])) if isinstance(said, dict) and "state" in said else None
        if status >= 300 or outcome is None:
            return Answer(Outcome.UNKNOWN, f"{self._shown} answers {status} without a state")
        return Answer(outcome, f"{self._shown} answered {outcome.value}")


def _refusal(status: int) -> str:
    """Why a status is not an answer of the application; empty when it is one."""
    if 300 <= status < 400:
        return f"answers {status}, a redirect, which is not followed: name the address where the answer is"
    if status in (401, 403, 407):
        return f"answers {status}: it wants a token or another one; give it by a file (token_file, headers_file)"
    return f"answers {status}" if status in _NOBODY or status >= 500 else ""


def _body(response: Any, deadline: float) -> bytes:
    """The answer's bytes, as they came. Raises TimedOut when they are too many or too slow."""
    parts, size = [], 0
    for part in response.iter_raw():
        size += len(part)
        if size > ANSWER_BYTES:
            raise TimedOut(f"its answer has more than {ANSWER_BYTES // 1024} KiB")
        if time.monotonic() > deadline:
            raise TimedOut("its answer did not come within the limit")
        parts.append(part)
    return b"".join(parts)


def described(half: Half) -> dict[str, Any]:
    """What an endpoint gets about a transaction in doubt."""
    return {
        "message_id": half.message_id,
        "unique_key": half.unique_key,
        "producer_group": half.producer_group,
        "topic": half.topic,
        "keys": list(half.keys),
        "born_timestamp_ms": half.born_timestamp_ms,
        "properties": dict(half.properties),
    }


def shown(url: str) -> str:
    """A URL without what may be a secret: user, password, query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def read_headers(headers_file: str | None, token_file: str | None, token: str | None = None) -> dict[str, str]:
    """The headers of each question: lines `Name: value` of a file, and a bearer token from a file or as given.

    Raises BrokerError, which never repeats what is in the files.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(_text(headers_file).splitlines() if headers_file else (), 1):
        name, colon, value = line.partition(":")
        if line.strip() and not line.startswith("#"):
            if not colon or not name.strip():
                raise BrokerError(f"{headers_file}: line {number} is not a header; one looks like `Name: value`")
            found[name.strip()] = value.strip()
    token = _text(token_file).strip() if token_file else (token or "").strip()
    if token_file and not token:
        raise BrokerError(f"{token_file} is empty: it holds the token")
    if token:
        found["Authorization"] = f"Bearer {token}"
    if not all(text.isascii() and text.isprintable() for header in found.items() for text in header):
        raise BrokerError(f"{headers_file or token_file or 'the token'}: a header has signs that HTTP does not take")
    return found


def _text(path: str) -> str:
    try:
        return Disk().read(path).decode("utf-8")
    except UnicodeDecodeError:
        raise BrokerError(f"{path} is not text in UTF-8") from None
