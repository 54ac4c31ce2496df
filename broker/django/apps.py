"""The application that INSTALLED_APPS names: it brings the migrations of the ledger's tables."""

from __future__ import annotations

from django.apps import AppConfig


class CheckbackConfig(AppConfig):
    """`broker.django`; its label, which `manage.py migrate checkback` takes, is `checkback`."""

    name = "broker.django"
    label = "checkback"
    verbose_name = "checkback: transactional messages"
