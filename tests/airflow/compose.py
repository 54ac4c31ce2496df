"""The parts of docker/, read."""

from __future__ import annotations

import runpy
from typing import Any

import yaml

from tests.house.tree import ROOT

DOCKER = ROOT / "docker"

COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))

SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]

DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")

PARTS = {"airflow-api", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer"}


def made_secrets(ledger_url: str = "") -> dict[str, str]:
    """What docker/make_secrets.py would write, by the names of the files."""
    made: dict[str, str] = runpy.run_path(str(DOCKER / "make_secrets.py"))["wanted"](ledger_url)
    return made
