"""Starlette's client for tests, without its warning that another HTTP library would be newer."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient as TestClient
