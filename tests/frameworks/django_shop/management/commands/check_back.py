"""manage.py check_back: settles what killed workers left in doubt, every 30 s, until it is stopped."""

from django.core.management.base import BaseCommand

from broker.django import open_store
from recovery.checkback.service import for_producers
from tests.frameworks.django_shop.announcements import producer


class Command(BaseCommand):
    help = "Settle the messages that killed workers left in doubt."

    def handle(self, **_: object) -> None:
        try:
            for_producers(open_store(), [producer()]).run()
        except KeyboardInterrupt:
            self.stderr.write("Interrupted.")
            raise SystemExit(130) from None
