"""The Flask shop with the enlistment switched off: what reconciliation must find."""

from flask_sqlalchemy.session import Session
from sqlalchemy.orm import scoped_session

import broker
from tests.frameworks.shops import flask_shop

flask_shop.store.create_topic("orders", message_type="MIXED")
plain = flask_shop.store.producer("plain")


class SendsPlain:
    """In place of the transactional producer: what is sent is delivered, whatever becomes of the session."""

    def send(self, message: broker.Message, _session: scoped_session[Session]) -> broker.SendResult:
        return plain.send(message)


flask_shop.producer = SendsPlain()

from tests.frameworks.shops.flask_routes import app  # noqa: E402 - takes the producer that stands there

__all__ = ["app"]
