"""The page without Airflow: who may read, what may write, what becomes of it."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import broker
from broker.errors import NotAStore
from recovery import hanging
from recovery.cli.declaration import VerbGroup
from recovery.cli.run import page as verbs_page
from recovery.page import facts
from recovery.page.app import OperationsPage, PageStore, make_page_app
from recovery.page.sessions import SESSIONS_MAX, PageRefusal, Sessions
from recovery.views.overview import overview, story
from tests.cli.command import command
from tests.jobs.shops import bodies, shop, tree
from tests.page.asgi import TestClient
from tests.page.shown_shop import HOSTILE, page_over, shown_shop

TOKEN = "a-token-for-this-test"  # noqa: S105
URL = "http://127.0.0.1:8090"
GROUP = "/api/stores/shop/dlq/billing"


@pytest.fixture(params=["state-table", "half-op"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return shown_shop(tmp_path / "shop", request.param)


@pytest.fixture
def client(path: Path) -> TestClient:
    page = OperationsPage([PageStore("shop", str(path))], Sessions(TOKEN), cookie="checkback_page_8090")
    return TestClient(make_page_app(page, ["127.0.0.1"]), base_url=URL)


def logged_in(client: TestClient) -> dict[str, str]:
    """The headers of the page's own requests."""
    answer = client.post("/api/login", json={"token": TOKEN}, headers={"Origin": URL})
    assert answer.status_code == 200, answer.text
    return {"Origin": URL, "X-Checkback-CSRF": answer.json()["csrf"]}


def parked(client: TestClient) -> int:
    return int(client.get("/api/stores/shop").json()["parked"][0]["commitlog_offset"])


def test_nothing_is_read_without_the_token(client: TestClient) -> None:
    """The page itself holds no data; each other route asks."""
    assert "shop" not in client.get("/").text.lower().split("<script")[0]
    for route in ("session", "stores", "stores/shop", "stores/shop/transactions/0", "stores/shop/dlq/billing"):
        assert client.get(f"/api/{route}").status_code == 401, route
    for token in ("", "wrong", TOKEN[:-1], "\ud800", None, 1, ["x"]):
        body, headers = json.dumps({"token": token}), {"Origin": URL, "Content-Type": "application/json"}
        assert client.post("/api/login", content=body, headers=headers).status_code == 401
    assert client.get("/api/stores", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert client.get("/api/stores", headers={"Authorization": f"Basic {TOKEN}"}).status_code == 401


def test_another_site_and_another_name_are_refused(client: TestClient, path: Path) -> None:
    """A form, a fetch of another site, DNS that leads here: nothing is done."""
    headers, before = logged_in(client), tree(path)
    route, body = f"/api/stores/shop/transactions/{parked(client)}/decision", {"decision": "commit", "why": "x"}
    wrong: list[tuple[dict[str, str], int]] = [
        ({**headers, "X-Checkback-CSRF": "forged"}, 403),
        ({"Origin": URL}, 403),
        ({**headers, "Origin": "http://evil.example"}, 403),
        ({**headers, "Origin": "null"}, 403),
        ({**headers, "Origin": "http://["}, 403),
        ({"X-Checkback-CSRF": headers["X-Checkback-CSRF"]}, 403),
        ({**headers, "Content-Type": "text/plain"}, 415),
        ({**headers, "Host": "evil.example"}, 400),
    ]
    for given, status in wrong:
        answer = client.post(route, content=json.dumps(body), headers={"Content-Type": "application/json", **given})
        assert answer.status_code == status, (given, answer.text)
    form = {"Content-Type": "application/x-www-form-urlencoded", "Origin": URL}
    assert client.post("/api/login", content=f"token={TOKEN}", headers=form).status_code == 415
    assert client.get(route).status_code == 405
    assert tree(path) == before


def test_the_cookie_and_the_page_are_closed(client: TestClient) -> None:
    """No script reads the cookie, no other site sends it, no foreign script runs, nothing is kept or framed."""
    answer = client.post("/api/login", json={"token": TOKEN}, headers={"Origin": URL})
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    page = client.get("/")
    policy = page.headers["content-security-policy"]
    nonce = policy.split("'nonce-")[1].split("'")[0]
    assert f'<script nonce="{nonce}">' in page.text
    assert "script-src 'nonce-" in policy
    assert "frame-ancestors 'none'" in policy
    assert page.headers["cache-control"] == "no-store"
    assert "https://" not in page.text
    assert client.get("/").headers["content-security-policy"] != policy, "a nonce is used once"


def test_sessions_end(client: TestClient) -> None:
    """By logging out, and the oldest when there are too many."""
    headers = logged_in(client)
    assert client.get("/api/session").json()["csrf"] == headers["X-Checkback-CSRF"]
    assert client.post("/api/logout", headers=headers).status_code == 200
    assert client.get("/api/stores").status_code == 401
    sessions = Sessions(TOKEN)
    first, _ = sessions.log_in(TOKEN)
    for _ in range(SESSIONS_MAX):
        sessions.log_in(TOKEN)
    with pytest.raises(PageRefusal):
        sessions.check_reads(first, None)


def test_it_shows_everything_and_changes_nothing(client: TestClient, path: Path) -> None:
    """Counts, waiting ones, lag, dead letters, the verification, the story of one; never a body."""
    logged_in(client)
    before = tree(path)
    (line,) = client.get("/api/stores").json()
    assert (line["counts"]["in_doubt"], line["counts"]["parked"], line["error"]) == (3, 2, None)
    assert line["lag"] == 3
    shown = client.get("/api/stores/shop")
    store = shown.json()
    assert store["dead_letters"] == {"billing": 1}
    assert {(one["group"], one["topic"]): one["lag"] for one in store["consumers"]}["billing", "paid"] == 3
    assert store["report"]["ok"]
    assert {one["why"] for one in store["parked"]} == {"asked 15 times: the till was closed"}
    steps = client.get(f"/api/stores/shop/transactions/{parked(client)}").json()["steps"]
    assert [step["what"] for step in steps] == ["prepared", "parked"]
    letters = client.get(GROUP).json()["letters"]
    assert [(one["topic"], one["keys"], one["resent"]) for one in letters] == [("paid", ["paid-0"], False)]
    assert "a body" not in shown.text
    assert client.get("/api/stores/nobody").status_code == 404
    assert client.get("/api/stores/shop/transactions/1").status_code == 404
    assert tree(path) == before


def test_a_decision_needs_its_reason_and_is_done_once(client: TestClient, path: Path) -> None:
    """Reason and author are in the record that ends it; a contrary decision is refused."""
    headers = logged_in(client)
    commitlog_offset = parked(client)
    route = f"/api/stores/shop/transactions/{commitlog_offset}/decision"

    def decide(**body: Any) -> Any:
        return client.post(route, json=body, headers=headers)

    for body in ({"decision": "commit"}, {"decision": "commit", "why": "  "}, {"decision": "leave", "why": "x"}, {}):
        assert decide(**body).status_code == 400, body
    assert overview(str(path), 0).counts["parked"] == 2
    assert decide(decision="commit", why="paid in cash", by="ada").json()["result"] == "committed"
    assert decide(decision="rollback", why="no").json()["result"] == "refused"
    assert bodies(path) == [b"order 100"]
    end = story(str(path), commitlog_offset)[-1]
    assert end["why"] == "paid in cash"
    assert end["by"].startswith("page:ada (")
    as_json = {**headers, "Content-Type": "application/json"}
    assert client.post(route, content="x" * 70_000, headers=as_json).status_code == 413
    assert client.post(route, content="[]", headers=as_json).status_code == 400
    assert client.post(route, content="[" * 60_000, headers=as_json).status_code == 400
    half_a_pair = r'{"decision": "commit", "why": "M\udcfcller"}'
    refused = client.post(
        f"/api/stores/shop/transactions/{parked(client)}/decision", content=half_a_pair, headers=as_json
    )
    assert (refused.status_code, "UTF-8" in refused.json()["detail"]) == (409, True)


@pytest.mark.parametrize(
    "digits", ["9" * 5_000, "9" * 20, "-1", "1.5", "\u0661"], ids=["5,000", "20", "negative", "point", "Arabic"]
)
def test_what_is_not_a_commitlog_offset_is_a_sentence(client: TestClient, digits: str) -> None:
    """Starlette turned digits into a number before the token was looked at, and failed at 4,301 of them."""
    route = f"/api/stores/shop/transactions/{digits}"
    assert client.get(route).status_code == 401
    assert client.post(f"{route}/decision", json={}).status_code == 401
    logged_in(client)
    assert client.get(route).status_code == 404
    assert "is not a CommitLog offset" in client.get(route).json()["detail"]


def test_dead_letters_are_sent_again_once(client: TestClient, path: Path) -> None:
    """With a reason, which a report keeps."""
    headers = logged_in(client)
    (letter,) = client.get(GROUP).json()["letters"]
    assert client.post(f"{GROUP}/resend", json={"ids": []}, headers=headers).status_code == 400
    assert client.post(f"{GROUP}/resend", json={"ids": ["nobody"], "why": "x"}, headers=headers).status_code == 409
    sent = {**headers, "Content-Type": "application/json"}
    answer = client.post(f"{GROUP}/resend", content=b'{"ids": ["\\ud800"], "why": "x"}', headers=sent)
    assert (answer.status_code, "\ud800" in answer.json()["detail"]) == (409, True)
    body = {"ids": [letter["message_id"]], "why": "the till works again", "by": "ada"}
    assert client.post(f"{GROUP}/resend", json=body, headers=headers).json()["resent"] == 1
    assert client.post(f"{GROUP}/resend", json={"why": "again"}, headers=headers).json()["resent"] == 0
    assert client.get(GROUP).json()["letters"][0]["resent"]
    (first, _) = sorted((path / "checkback/reports").glob("resend-1*.json"))
    assert json.loads(first.read_text())["why"] == "the till works again"


def test_a_verification_of_the_command_line_may_be_kept(
    golden: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where there is no Airflow the page said "not verified yet" for good. Of a foreign store it is kept elsewhere."""
    monkeypatch.setenv("CHECKBACK_STATE", str(tmp_path / "state"))
    path, foreign = shop(tmp_path / "shop", orders=2), golden("rocketmq-5.3.3-killed")
    before = tree(foreign)
    for store, code in ((path, 0), (foreign, 1)):
        command(capsys, "verify", store)
        assert facts.report_of(str(store)) is None
        assert command(capsys, "verify", store, "--keep", "--limit", "0").code == code
        report = facts.store_of("shop", str(store))["report"]
        assert (report["ok"], report["engine"]) == (code == 0, "local")
    assert tree(foreign) == before
    (path / "checkback/reports/.verify-latest.json.new").mkdir()
    ran = command(capsys, "verify", path, "--keep")
    why = f"the report is not kept: {path}/checkback/reports"
    assert (ran.code, why in ran.err, "Is a directory" in ran.err) == (2, True, True), "it advised to be another user"
    assert "2 records" in ran.out, "what an hour's verification found is shown all the same"


def test_a_store_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    """And hides no other."""
    page = OperationsPage([PageStore("gone", str(tmp_path / "gone"))], Sessions(TOKEN), cookie="c")
    client = TestClient(make_page_app(page, ["127.0.0.1"]), base_url=URL)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert "no such directory" in client.get("/api/stores", headers=headers).json()[0]["error"]
    assert client.get("/api/stores/gone", headers=headers).status_code == 409


def test_a_mistake_in_a_table_of_the_settings_hides_no_other_store(tmp_path: Path) -> None:
    """A typo, or a connection in place of a path, as in the example of docs/airflow.md, was the end of the page."""
    file = tmp_path / "stores.json"
    shop(tmp_path / "shop", orders=1)
    tables: dict[str, dict[str, Any]] = {
        "typo": {"path": "x"},
        "billing": {"connection": "billing"},
        "shop": {"path": str(tmp_path / "shop")},
    }
    tables["shop"]["resolvers"] = {"shop": {"call": "a:b"}, "mail": {"ledger_connection": "db"}}
    file.write_text(json.dumps({"stores": tables}))
    stores = list(verbs_page._configured(str(file)))
    assert [one.asked for one in stores if one.name == "shop"] == [{"resolvers": {"shop": {"call": "a:b"}}}]
    page = OperationsPage(stores, Sessions(TOKEN), cookie="c")
    client = TestClient(make_page_app(page, ["127.0.0.1"]), base_url=URL)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    errors = {one["name"]: one["error"] for one in client.get("/api/stores", headers=headers).json()}
    assert errors["shop"] is None
    assert "give the whole path" in errors["typo"]
    assert "no path but a connection" in errors["billing"]
    assert client.get("/api/stores/billing", headers=headers).status_code == 409


def test_the_verb_refuses_before_it_listens(tmp_path: Path) -> None:
    """No store, an open address without TLS, half a certificate, a weak token: a sentence each."""
    app = VerbGroup()
    verbs_page.register(app)
    shop = str(shown_shop(tmp_path / "shop"))
    for words, sentence in (
        ([], "give the directory of a store"),
        ([shop, "--listen", "0.0.0.0:0"], "without TLS the token could be read"),
        ([shop, "--cert", "x"], "give --cert and --key together"),
        ([shop, "--listen", "8090"], "is not HOST:PORT"),
    ):
        ran = CliRunner().invoke(app, ["page", *words])
        assert ran.exit_code == 2, ran.output
        assert sentence in " ".join(ran.output.replace("│", " ").split()), ran.output
    (tmp_path / "no.pem").write_text("no certificate")
    for file in ("missing.pem", "no.pem"):
        ran = CliRunner().invoke(app, ["page", shop, "--cert", str(tmp_path / file), "--key", str(tmp_path / file)])
        assert f"--cert {tmp_path / file} and --key" in str(ran.exception)
        assert "token=" not in ran.output
    ran = CliRunner().invoke(app, ["page", shop], env={"CHECKBACK_PAGE_TOKEN": "short"})
    assert "at least 16" in str(ran.exception)


def test_markup_in_keys_stays_text(client: TestClient) -> None:
    """The script appends text nodes only: the page has no way to write HTML."""
    logged_in(client)
    assert HOSTILE in json.dumps(client.get("/api/stores/shop").json())
    script = client.get("/").text
    for danger in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert danger not in script


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_with_0(tmp_path: Path, number: int) -> None:
    """As a supervisor expects of what was asked to stop; a browser's idle connection does not hold it up."""
    broker.open(tmp_path / "shop").close()
    begun = time.monotonic()
    with page_over(str(tmp_path / "shop"), ended_by=number) as (url, _):
        host, port = url.removeprefix("http://").split(":")
        idle = socket.create_connection((host, int(port)))
    idle.close()
    assert time.monotonic() - begun < 30


def test_a_store_whose_disk_hangs_is_one_line(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other was shown, and each look took another thread of the server, until it answered nobody."""
    monkeypatch.setattr(hanging, "WITHIN_S", 0.2)
    gone, comes_back, looks = shop(tmp_path / "gone"), threading.Event(), list[str]()

    def looked(where: str, *arguments: Any, **options: Any) -> Any:
        if where == str(gone):
            looks.append(where)
            comes_back.wait(20)
        return overview(where, *arguments, **options)

    monkeypatch.setattr(facts, "overview", looked)
    stores = [PageStore("gone", str(gone)), PageStore("shop", str(path))]
    client = TestClient(
        make_page_app(OperationsPage(stores, Sessions(TOKEN), cookie="page"), ["127.0.0.1"]), base_url=URL
    )
    headers = {"Authorization": f"Bearer {TOKEN}"}
    monkeypatch.setattr(hanging, "_hanging", {})
    for _ in range(3):
        first, second = client.get("/api/stores", headers=headers).json()
        assert "does not answer within 0.2 s" in first["error"]
        assert second["error"] is None
    assert client.get("/api/stores/gone", headers=headers).status_code == 409
    assert len(looks) == 1
    comes_back.set()
    hanging._hanging[str(gone)].result(20)
    assert client.get("/api/stores/gone", headers=headers).status_code == 200


def test_a_report_of_another_kind_takes_no_store_off_the_page(client: TestClient, path: Path) -> None:
    """As one of another version: the list of all stores was an error without a sentence."""
    (path / "checkback/reports/verify-latest.json").write_text('{"counts": {}}')
    headers = {"Authorization": f"Bearer {TOKEN}"}
    (line,) = client.get("/api/stores", headers=headers).json()
    assert (line["error"], line["report"]) == (None, None)
    assert client.get("/api/stores/shop", headers=headers).json()["report"] is None


def test_a_store_of_the_command_line_whose_disk_hangs_keeps_no_page_from_starting(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for that disk before it printed a link, without a word; what is no store is refused all the same."""
    monkeypatch.setattr(hanging, "WITHIN_S", 0.2)
    gone, comes_back, opened = tmp_path / "gone", threading.Event(), broker.open

    def opens(where: str, **options: Any) -> Any:
        _ = where != str(gone) or comes_back.wait(20)
        return opened(where, **options)

    monkeypatch.setattr(broker, "open", opens)
    begun = time.monotonic()
    try:
        shown = list(verbs_page._given([str(gone), str(path)], None))
    finally:
        comes_back.set()
    assert ([one.path for one in shown], time.monotonic() - begun < 15) == ([str(gone), str(path)], True)
    with pytest.raises(NotAStore, match="no such directory"):
        list(verbs_page._given([str(tmp_path / "none")], None))
