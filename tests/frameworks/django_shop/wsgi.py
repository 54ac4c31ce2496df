"""What gunicorn serves."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.frameworks.django_shop.settings")
application = get_wsgi_application()

from tests.frameworks.django_shop.announcements import producer  # noqa: E402 - after Django's settings are there

producer()  # before the first request: on SQLite it cannot bind its ledger while a transaction writes
