"""The page alone, as an ASGI application: reading routes for a session, two writing routes.

    GET  /                                                  the page; it holds no data
    POST /api/login, /api/logout    GET /api/session
    GET  /api/stores[/NAME[/transactions/OFFSET | /dlq/GROUP | /report]]
    POST /api/stores/NAME/transactions/OFFSET/decision      {"decision": "commit", "why": "paid", "by": "ada"}
    POST /api/stores/NAME/dlq/GROUP/resend         {"ids": [...], "why": "repaired", "by": "ada"}

A decision is carried out by `recovery.jobs.tasks.resolve`, as Airflow's: one compare-and-set, the ledger first.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from recovery.page import actions, facts
from recovery.page.sessions import CSRF_HEADER, PageRefusal, Sessions, check_json, check_origin

BODY_MAX = 1 << 16
_DIGITS = 20  # fewer, in a number of 63 bits
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class PageStore:
    """A store on the page; `asked` are the arguments of `recovery.jobs.setup.setup` and the catalog, for decisions.

    One that cannot be shown says `why` in its line; the others are shown.
    """

    name: str
    path: str
    asked: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""


Answer = Callable[[Request], Awaitable[Response]]


class OperationsPage:
    """The routes over some stores. `cookie` is the name of the session's: one for each port of a host."""

    def __init__(self, stores: Sequence[PageStore], sessions: Sessions, *, cookie: str, is_tls: bool = False) -> None:
        self._stores = {store.name: store for store in stores}
        self._sessions, self._cookie, self._is_tls = sessions, cookie, is_tls

    def routes(self) -> list[Route]:
        """All of them."""
        store = "/api/stores/{name}"
        reading = {
            "/api/session": self._session,
            "/api/stores": self._list,
            store: self._show,
            f"{store}/transactions/{{commitlog_offset}}": self._transaction,
            f"{store}/report": self._report,
            f"{store}/dlq/{{group}}": self._dead_letters,
        }
        writing = {
            f"{store}/transactions/{{commitlog_offset}}/decision": self._decide,
            f"{store}/dlq/{{group}}/resend": self._resend,
        }
        return [
            Route("/", self._page),
            Route("/api/login", _guarded(self._log_in), methods=["POST"]),
            Route("/api/logout", _guarded(self._log_out), methods=["POST"]),
            *(Route(path, _guarded(self._reads(answer))) for path, answer in reading.items()),
            *(Route(path, _guarded(self._writes(answer)), methods=["POST"]) for path, answer in writing.items()),
        ]

    # Who asks

    def _reads(self, answer: Answer) -> Answer:
        async def checked(request: Request) -> Response:
            self._sessions.check_reads(self._session_of(request), request.headers.get("authorization"))
            return await answer(request)

        return checked

    def _writes(self, answer: Answer) -> Answer:
        async def checked(request: Request) -> Response:
            headers = request.headers
            self._sessions.check_writes(
                self._session_of(request),
                headers.get("authorization"),
                csrf=headers.get(CSRF_HEADER),
                origin=headers.get("origin"),
                host=headers.get("host"),
                content_type=headers.get("content-type"),
            )
            return await answer(request)

        return checked

    def _session_of(self, request: Request) -> str | None:
        return request.cookies.get(self._cookie)

    async def _log_in(self, request: Request) -> Response:
        check_json(request.headers.get("content-type"))
        check_origin(request.headers.get("origin"), request.headers.get("host"))
        session, csrf = self._sessions.log_in((await _body(request)).get("token"))
        answer = _json({"csrf": csrf})
        answer.set_cookie(self._cookie, session, httponly=True, samesite="strict", secure=self._is_tls, path="/")
        return answer

    async def _log_out(self, request: Request) -> Response:
        check_origin(request.headers.get("origin"), request.headers.get("host"))
        self._sessions.log_out(self._session_of(request))
        answer = _json({})
        answer.delete_cookie(self._cookie, path="/")
        return answer

    async def _session(self, request: Request) -> Response:
        return _json({"csrf": self._sessions.csrf_of(self._session_of(request))})

    # What is shown

    async def _page(self, _request: Request) -> Response:
        nonce = secrets.token_urlsafe(16)
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; img-src 'self' data:; "
            "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
        )
        shown = facts.page({"kind": "alone"}, nonce)
        return HTMLResponse(shown, headers={**_HEADERS, "Content-Security-Policy": policy})

    async def _list(self, _request: Request) -> Response:
        lines = [await run_in_threadpool(_line, one) for one in self._stores.values()]
        return _json(lines)

    async def _show(self, request: Request) -> Response:
        store = self._named(request)
        return _json(await run_in_threadpool(facts.store_of, store.name, store.path))

    async def _transaction(self, request: Request) -> Response:
        store, commitlog_offset = self._named(request), _offset_in(request)
        found = await run_in_threadpool(facts.transaction_of, store.name, store.path, commitlog_offset)
        if found is None:
            raise PageRefusal(HTTPStatus.NOT_FOUND, f"no half message begins at CommitLog offset {commitlog_offset}")
        return _json(found)

    async def _report(self, request: Request) -> Response:
        store = self._named(request)
        found = await run_in_threadpool(facts.report_of, store.path)
        if found is None:
            raise PageRefusal(HTTPStatus.NOT_FOUND, f"{store.name} was not verified yet")
        return _json(found)

    async def _dead_letters(self, request: Request) -> Response:
        store = self._named(request)
        group = request.path_params["group"]
        return _json(await run_in_threadpool(facts.dead_letters_of, store.name, store.path, group))

    # What is done

    async def _decide(self, request: Request) -> Response:
        store, body, commitlog_offset = self._named(request), await _body(request), _offset_in(request)
        return _json(await run_in_threadpool(actions.decide, store.path, store.asked, commitlog_offset, body))

    async def _resend(self, request: Request) -> Response:
        store, body = self._named(request), await _body(request)
        return _json(
            await run_in_threadpool(actions.resend_dead_letters, store.path, request.path_params["group"], body)
        )

    def _named(self, request: Request) -> PageStore:
        name = request.path_params["name"]
        if name not in self._stores:
            raise PageRefusal(HTTPStatus.NOT_FOUND, f"this page shows no store {name!r}")
        if self._stores[name].why:
            raise PageRefusal(HTTPStatus.CONFLICT, self._stores[name].why)
        return self._stores[name]


def _line(store: PageStore) -> dict[str, Any]:
    if store.why:
        return {"name": store.name, "path": store.path, "error": store.why}
    return facts.line_of(store.name, store.path)


def make_page_app(page: OperationsPage, hosts: Sequence[str]) -> Starlette:
    """The application. `hosts` are the names by which it may be reached; requests for others are refused."""
    return Starlette(routes=page.routes(), middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))])


def _guarded(answer: Answer) -> Answer:
    """The answer, or a sentence with its status: no traceback reaches a user."""

    async def guarded(request: Request) -> Response:
        try:
            return await answer(request)
        except PageRefusal as error:
            return _json({"detail": error.sentence}, error.status)
        except facts.UNREADABLE as error:
            return _json({"detail": str(error)}, HTTPStatus.CONFLICT)

    return guarded


def _offset_in(request: Request) -> int:
    """The CommitLog offset in the path; not by Starlette, whose `int` raises for thousands of digits."""
    text = request.path_params["commitlog_offset"]
    if not (text.isascii() and text.isdigit() and len(text) < _DIGITS):
        raise PageRefusal(HTTPStatus.NOT_FOUND, f"{text[:40]} is not a CommitLog offset")
    return int(text)


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object of a request, of at most `BODY_MAX` bytes. Raises PageRefusal."""
    raw = b""
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > BODY_MAX:
            raise PageRefusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is larger than {BODY_MAX} bytes")
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):  # not JSON; too deep
        found = None
    if not isinstance(found, dict):
        raise PageRefusal(HTTPStatus.BAD_REQUEST, "the body must be a JSON object")
    return found


def _json(value: Any, status: int = HTTPStatus.OK) -> Response:
    # Escaped, where Starlette writes UTF-8: half a surrogate, as a request may have, is none.
    return Response(json.dumps(value), int(status), headers=_HEADERS, media_type="application/json")
