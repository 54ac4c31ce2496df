"""The settings of a shop on Django: what every project has, and the two lines that checkback needs."""

import json
import os

DATABASES = {"default": json.loads(os.environ["SHOP_DATABASE"])}
INSTALLED_APPS = ["broker.django", "tests.frameworks.django_shop"]
CHECKBACK = {"STORE": os.environ["SHOP_STORE"]}

ROOT_URLCONF = "tests.frameworks.django_shop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SECRET_KEY = "of a test"  # noqa: S105 - nothing is signed with it
ALLOWED_HOSTS = ["127.0.0.1"]
USE_TZ = True
