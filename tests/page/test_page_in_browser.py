"""The page as people use it: in a browser, wide and narrow, down to the click that decides."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from recovery.views.overview import overview
from tests.airflow.browser import Browser
from tests.page.shown_shop import HOSTILE, page_over, shown_shop

pytestmark = [
    pytest.mark.skipif(not shutil.which("chromium"), reason="no chromium here"),
    pytest.mark.timeout(120),
]


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
        finally:
            browser.close()
