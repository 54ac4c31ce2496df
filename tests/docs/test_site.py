"""The site builds without a warning, and every link and anchor in it leads somewhere; nothing comes from elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.house.tree import ROOT


class Page(HTMLParser):
    """What a page links to, loads and names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value is not None}
        self.names |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in {"script", "img", "iframe", "source"} and "src" in values:
            self.loaded.append(values["src"])
        if tag == "link" and values.get("rel") in {"stylesheet", "icon", "preload", "preconnect"}:
            self.loaded.append(values["href"])


pytestmark = pytest.mark.xdist_group("site")  # it takes half a minute to build: once, not in each worker


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    """Every page of a strict build, by its path."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return {path: Page(path.read_text(encoding="utf-8")) for path in out.rglob("*.html")}


def test_links_and_anchors_lead_somewhere(site: dict[Path, Page]) -> None:
    wrong = []
    for path, page in site.items():
        for link in page.links if path.name != "404.html" else []:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                wrong.append(f"{path.name}: {link}")
            elif parts.fragment and unquote(parts.fragment) not in site[target].names | {"__codelineno"}:
                wrong.append(f"{path.name}: {link}: there is no such anchor")
    assert not wrong, "\n".join(wrong)


def test_nothing_comes_from_another_host(site: dict[Path, Page]) -> None:
    """The site works without a network, and tells nobody who reads it."""
    foreign = [f"{path.name}: {url}" for path, page in site.items() for url in page.loaded if urlsplit(url).netloc]
    assert not foreign, "\n".join(foreign)


def test_every_page_can_be_found(site: dict[Path, Page]) -> None:
    """The navigation of the first page leads to each page."""
    (start,) = [path for path in site if path.name == "index.html" and path.parent.joinpath("tutorial.html").exists()]
    listed = {(start.parent / urlsplit(link).path).resolve() for link in site[start].links if not urlsplit(link).netloc}
    missing = [path for path in site if path.resolve() not in listed and path.name != "404.html"]
    assert not missing, f"not in the navigation: {[str(path) for path in missing]}"
