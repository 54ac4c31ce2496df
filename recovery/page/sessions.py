"""Who may use the page that runs alone: a token, then a cookie; and what keeps other sites from using it.

    POST /api/login {"token": "..."}     the cookie of a session, and the CSRF token of its writing requests
    Authorization: Bearer TOKEN          instead of a session, for programs: no cookie, so nothing to forge

A request that writes must come from the page itself: JSON, the Origin of this host, and the CSRF token of its session
in a header, which no other site can read.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import urlsplit

SESSIONS_MAX = 100  # the oldest ends when another begins
CSRF_HEADER = "x-checkback-csrf"


class PageRefusal(Exception):
    """A request that is not carried out: its status, and the sentence for the user."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


@dataclass(slots=True)
class Sessions:
    """The token of the page, and the sessions that were begun with it; they end with the process."""

    token: str
    _csrf: dict[str, str] = field(default_factory=dict)  # the id of a session -> its CSRF token

    def log_in(self, token: object) -> tuple[str, str]:
        """Begin a session: (its id, its CSRF token). Raises PageRefusal."""
        if not (isinstance(token, str) and _same(token, self.token)):
            raise PageRefusal(HTTPStatus.UNAUTHORIZED, "this is not the token that `checkback page` printed")
        while len(self._csrf) >= SESSIONS_MAX:
            del self._csrf[next(iter(self._csrf))]
        session, csrf = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self._csrf[session] = csrf
        return session, csrf

    def log_out(self, session: str | None) -> None:
        """End a session."""
        self._csrf.pop(session or "", None)

    def csrf_of(self, session: str | None) -> str | None:
        """The CSRF token of a session; None without one."""
        return self._csrf.get(session or "")

    def check_reads(self, session: str | None, authorization: str | None) -> None:
        """Raises PageRefusal unless the request has a session or the token."""
        if not (self._is_program(authorization) or self.csrf_of(session)):
            raise PageRefusal(HTTPStatus.UNAUTHORIZED, "log in with the token that `checkback page` printed")

    def check_writes(
        self,
        session: str | None,
        authorization: str | None,
        *,
        csrf: str | None,
        origin: str | None,
        host: str | None,
        content_type: str | None,
    ) -> None:
        """Raises PageRefusal unless the request comes from the page itself, or from a program with the token."""
        self.check_reads(session, authorization)
        check_json(content_type)
        if self._is_program(authorization):
            return
        check_origin(origin, host)
        if not _same(csrf or "", self.csrf_of(session) or ""):
            raise PageRefusal(HTTPStatus.FORBIDDEN, "the CSRF token is missing or wrong: load the page again")

    def _is_program(self, authorization: str | None) -> bool:
        scheme, _, token = (authorization or "").partition(" ")
        return scheme.lower() == "bearer" and _same(token.strip(), self.token)


def check_json(content_type: str | None) -> None:
    """Raises PageRefusal for what a form of another site could send."""
    if (content_type or "").partition(";")[0].strip().lower() != "application/json":
        raise PageRefusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be application/json")


def check_origin(origin: str | None, host: str | None) -> None:
    """Raises PageRefusal for a request of another site; a browser sends the header with each POST."""
    try:
        site = urlsplit(origin or "").netloc.lower()
    except ValueError:  # such as http://[
        site = ""
    if not host or site != host.lower():
        raise PageRefusal(HTTPStatus.FORBIDDEN, "this request comes from another site")


def _same(one: str, other: str) -> bool:
    # JSON may hold half of a surrogate pair, which UTF-8 does not take.
    return bool(other) and hmac.compare_digest(one.encode(errors="surrogatepass"), other.encode())
