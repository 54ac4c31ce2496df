"""Chromium without a window, driven by its own protocol: open a page, wait until a text is there, take a picture."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

WAIT_S = 60.0
SIZE = (1280, 800)

# The text of a page and of the frames in it that are its own.
TEXT = """
(() => {
  const frames = (w) => Array.from({ length: w.frames.length }, (_, number) => w.frames[number]);
  const seen = (w) => { try { return text(w) } catch { return "" } };
  const text = (w) => [w.document.body ? w.document.body.innerText : "", ...frames(w).map(seen)].join("\\n");
  return text(window);
})()
"""


class Browser:
    """One Chromium with one page."""

    def __init__(self, width: int = SIZE[0], height: int = SIZE[1]) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        places = [
            f"--user-data-dir={self._directory.name}",
            "--remote-debugging-port=0",
            f"--window-size={width},{height}",
        ]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(["chromium", *options, *places, "about:blank"], **quiet)  # type: ignore[call-overload]
        self._number = 0
        self._held = contextlib.ExitStack()
        self._socket: ClientConnection = self._held.enter_context(connect(self._address(), max_size=1 << 26))

    def close(self) -> None:
        """End it."""
        self._held.close()
        self._process.terminate()
        self._process.wait(20)
        self._directory.cleanup()

    def size(self, width: int, height: int) -> None:
        """Show the page as wide as that, narrower than a window can be."""
        self._do("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, url: str) -> None:
        """Go there."""
        self._do("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """What a piece of JavaScript says, a promise by its result."""
        said = self._do("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        return said["result"].get("value")

    def wait_for(self, text: str) -> str:
        """All that the page shows, once it shows a text."""
        deadline = time.monotonic() + WAIT_S
        while True:
            shown = str(self.run(TEXT) or "")
            if text in shown:
                return shown
            assert time.monotonic() < deadline, f"{text!r} is not in {shown[:2000]!r}"
            time.sleep(0.3)

    def picture(self, path: Path) -> None:
        """What it looks like."""
        shot = self._do("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _address(self) -> str:
        deadline = time.monotonic() + WAIT_S
        told = Path(self._directory.name) / "DevToolsActivePort"
        while not told.exists() or not told.read_text().strip():
            assert time.monotonic() < deadline, "Chromium does not start"
            time.sleep(0.1)
        port = told.read_text().splitlines()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
            pages = [one for one in json.load(answer) if one["type"] == "page"]
        return str(pages[0]["webSocketDebuggerUrl"])

    def _do(self, method: str, **params: Any) -> Any:
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            said = json.loads(self._socket.recv(WAIT_S))
            if said.get("id") == self._number:
                assert "error" not in said, said
                return said["result"]

    def remember(self, url: str, name: str, value: str) -> None:
        """Keep a cookie for a site."""
        self._do("Network.setCookie", url=url, name=name, value=value)


def look(url: str, picture: Path, text: str, token: str) -> str:
    """Open a page of Airflow with a login, wait for a text, take a picture; all that the page shows."""
    browser = Browser()
    try:
        browser.remember(url, "_token", token)
        browser.open(url)
        shown = browser.wait_for(text)
        browser.picture(picture)
        return shown
    finally:
        browser.close()
