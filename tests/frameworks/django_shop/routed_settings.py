"""The settings of the shop with the routes of the tests, and a transaction for each request."""

from tests.frameworks.django_shop.settings import *  # noqa: F403
from tests.frameworks.django_shop.settings import DATABASES

DATABASES["default"]["ATOMIC_REQUESTS"] = True
ROOT_URLCONF = "tests.frameworks.django_shop.routes"
