"""The page as people use it: in a browser, wide and narrow, down to the click that decides."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from shlex import quote

import pytest

from recovery.views.overview import overview
from tests.airflow.browser import Browser
from tests.jobs.shops import shop
from tests.page.shown_shop import HOSTILE, page_over, shown_shop

pytestmark = [
    pytest.mark.skipif(not shutil.which("chromium"), reason="no chromium here"),
    pytest.mark.timeout(120),
]


# The answer to a request for PATH is held back until `release()`, which gives a promise: the page has dealt with it.
HELD = """
{ let open, settled;
  const gate = new Promise((yes) => { open = yes }), done = new Promise((yes) => { settled = yes }), ask = window.fetch;
  window.release = () => { open(); return done; };
  window.fetch = async (url, options) => {
    const answer = await ask(url, options);
    if (!String(url).endsWith("PATH")) return answer;
    const value = await answer.json();
    await gate;
    return { ok: true, status: 200, json: async () => { setTimeout(settled); return value; } };
  }; }
"""
# The place is gone to, and what it shows was asked for.
GO = "location.hash = 'PLACE'; new Promise((yes) => addEventListener('hashchange', yes, { once: true }))"


def test_a_parked_transaction_is_decided_by_clicks(tmp_path: Path) -> None:
    """The printed link logs in and does not keep the token; the form demands a reason; nothing overflows at 400 px."""
    path, foreign = shown_shop(tmp_path / "shop"), shown_shop(tmp_path / "foreign", "half-op")
    shutil.rmtree(foreign / "checkback")
    with page_over(str(path), str(foreign)) as (url, token):
        browser = Browser()
        try:
            browser.size(400, 800)
            browser.open(f"{url}/#token={token}")
            browser.wait_for("Stores of transactional messages")
            assert browser.run("location.hash") == ""
            assert browser.run("document.documentElement.scrollWidth") <= 400
            browser.run("location.hash = 'shop'")
            shown = browser.wait_for("Parked: a person decides")
            assert HOSTILE in shown
            assert browser.run("document.documentElement.scrollWidth") <= 400
            browser.run("[...document.querySelectorAll('button')].find((one) => one.textContent === 'Decide…').click()")
            browser.wait_for("How did this transaction end?")
            browser.run("document.querySelector('input[value=commit]').checked = true")
            browser.run("document.querySelector('dialog form').requestSubmit()")
            time.sleep(0.5)
            assert overview(str(path), 0).counts["parked"] == 2, "without a reason nothing is sent"
            browser.run("document.getElementById('why').value = 'paid in cash'")
            browser.run("document.querySelector('dialog form').requestSubmit()")
            browser.wait_for(": committed")
            assert overview(str(path), 0).counts["parked"] == 1
            browser.run("location.hash = 'foreign'")
            assert "only read: not our store" in browser.wait_for("Its broker alone can end them")
            assert browser.run("document.querySelectorAll('td button').length") == 0
            browser.run("location.hash = 'foreign/dead/billing'")
            browser.wait_for("its broker sends them again")
            browser.open(f"{url}/?other")
            browser.wait_for("Stores of transactional messages")
            damaged_ms = 4611687813656022229  # as a flipped bit makes it: no calendar has that time
            assert browser.run(f"time('{damaged_ms}')") == f"{damaged_ms} ms"
        finally:
            browser.close()


def test_an_answer_that_comes_late_is_not_put_over_what_was_clicked_since(tmp_path: Path) -> None:
    """Of a store that is slow to read, as on a busy disk: under its neighbour's name stood its transactions."""
    slow, quick = shown_shop(tmp_path / "slow"), shown_shop(tmp_path / "quick")
    with page_over(str(slow), str(quick)) as (url, token):
        browser = Browser()
        try:
            browser.open(f"{url}/#token={token}")
            browser.wait_for("Stores of transactional messages")
            browser.run(HELD.replace("PATH", "api/stores/slow"))
            browser.run(GO.replace("PLACE", "slow"))
            browser.run(GO.replace("PLACE", "quick"))
            browser.wait_for("Parked: a person decides")
            browser.run("window.release()")
            assert browser.run("document.querySelector('h1 .path').textContent") == str(quick)
        finally:
            browser.close()


def test_what_waits_and_cannot_be_read_is_named(tmp_path: Path) -> None:
    """The page counted three in doubt and listed one: of the two that are damaged it said nothing."""
    stores = tmp_path / "ada's stores"
    stores.mkdir()
    path = shop(stores / "shop", orders=3)
    first, *_ = overview(str(path), 0).in_doubt
    log = path / "commitlog" / f"{0:020d}"
    with log.open("r+b") as file:
        file.seek(first.commitlog_offset + 40)
        file.write(b"\xff" * 40)
    seen = overview(str(path), 0)
    assert (seen.counts["in_doubt"], len(seen.in_doubt), seen.unreadable) == (3, 2, 1)
    with page_over(str(path)) as (url, token):
        browser = Browser()
        try:
            browser.open(f"{url}/#token={token}")
            browser.wait_for("Stores of transactional messages")
            browser.run("location.hash = 'shop'")
            shown = browser.wait_for("Parked: a person decides")
            assert "The half messages of 1 that wait cannot be read. See where: checkback verify" in shown
            assert f"checkback verify {quote(str(path))}" in shown, "to be copied into a shell"
        finally:
            browser.close()
