"""docs/frameworks.md shows the very applications that are run and killed, and what it says of FastAPI is so."""

from __future__ import annotations

import ast
import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import Depends, FastAPI

from tests.frameworks.shop_kinds import DJANGO
from tests.house.tree import ROOT

ROOM = Path(__file__).parent
PAGE = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
SHOWN = (
    "shops/flask_shop.py",
    "shops/fastapi_shop.py",
    "shops/fastapi_async_shop.py",
    "shops/starlette_shop.py",
    "shops/sqlite3_shop.py",
    "shops/psycopg_shop.py",
    "django_shop/announcements.py",
    "django_shop/views.py",
    "django_shop/wsgi.py",
    "django_shop/management/commands/check_back.py",
)


@pytest.mark.parametrize("path", SHOWN)
def test_the_page_shows_the_tested_file(path: str) -> None:
    """Whole, but for the package that the tests keep it in."""
    shown = (ROOM / path).read_text(encoding="utf-8").replace(DJANGO, "shop")
    assert f"```python\n{shown}```" in PAGE


def test_each_block_of_the_page_is_a_tested_file_or_the_tested_settings() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == len(SHOWN) + 2
    (cluster,) = [block for block in blocks if "rocketmq://" in block]
    (setting,) = ast.parse(cluster).body
    assert isinstance(setting, ast.Assign)
    assert ast.literal_eval(setting.value)["STORE"].startswith("rocketmq://")
    (settings,) = [block for block in blocks if "INSTALLED_APPS" in block]
    shown = {node.targets[0].id: ast.unparse(node.value) for node in ast.parse(settings).body}  # type: ignore[attr-defined]
    tested = ast.parse((ROOM / "django_shop" / "settings.py").read_text(encoding="utf-8").replace(DJANGO, "shop"))
    values = {node.targets[0].id: ast.unparse(node.value) for node in tested.body if isinstance(node, ast.Assign)}  # type: ignore[attr-defined]
    assert shown["INSTALLED_APPS"] == values["INSTALLED_APPS"]
    assert values["CHECKBACK"] == "{'STORE': os.environ['SHOP_STORE']}"
    assert list(ast.literal_eval(shown["CHECKBACK"])) == ["STORE"]


@pytest.mark.parametrize(("scope", "first"), [("function", "commit"), (None, "http.response.start")])
def test_fastapi_commits_before_the_response_with_scope_function_only(scope: Any, first: str) -> None:
    """The order of a dependency's end and the response."""
    events: list[str] = []

    def session() -> Iterator[None]:
        yield
        events.append("commit")

    app = FastAPI()

    @app.get("/")
    def view(_: None = Depends(session, scope=scope)) -> dict[str, int]:
        return {}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: dict[str, Any]) -> None:
        events.append(message["type"])

    request = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
    asyncio.run(app(request, receive, send))
    assert sorted(events) == ["commit", "http.response.body", "http.response.start"], json.dumps(events)
    assert events[0] == first
