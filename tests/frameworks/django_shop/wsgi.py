"""What gunicorn serves: Django, with the producer made before the first request."""

import os

from django.core.wsgi import get_wsgi_application

from tests.frameworks.django_shop.announcements import producer

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.frameworks.django_shop.settings")
application = get_wsgi_application()
producer()  # binds the ledger to the store; on SQLite it could not while a transaction writes
