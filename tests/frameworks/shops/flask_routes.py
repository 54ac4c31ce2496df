"""The Flask shop with the routes that only the tests have: what fails, savepoints, two COMMITs in one request."""

import broker
from tests.frameworks.shops.flask_shop import Order, app, db, place_order, producer
from tests.frameworks.wishes import OutOfStock, order_body

__all__ = ["app", "place_order"]


def announce(item: str) -> None:
    db.session.add(order := Order(item=item))
    db.session.flush()
    producer.send(broker.Message("orders", order_body(order.id, item)), db.session)


@app.post("/fail/<item>")
def fail(item: str) -> tuple[dict[str, str], int]:
    announce(item)
    raise OutOfStock


@app.post("/savepoint/<item>")
def savepoint(item: str) -> tuple[dict[str, str], int]:
    announce(item)
    gift = db.session.begin_nested()
    announce(f"{item}-gift")
    gift.rollback()
    db.session.commit()
    return {}, 201


@app.post("/kept/<item>")
def kept(item: str) -> tuple[dict[str, str], int]:
    announce(item)
    with db.session.begin_nested():
        announce(f"{item}-gift")
    db.session.commit()
    return {}, 201


@app.post("/twice/<item>")
def twice(item: str) -> tuple[dict[str, str], int]:
    announce(item)
    db.session.commit()
    announce(f"{item}-gift")
    db.session.commit()
    return {}, 201


@app.errorhandler(OutOfStock)
def out_of_stock(_: OutOfStock) -> tuple[dict[str, str], int]:
    return {}, 409
