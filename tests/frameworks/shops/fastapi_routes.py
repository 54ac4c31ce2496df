"""The FastAPI shop with the routes that only the tests have: what fails, and savepoints."""

from fastapi import Request
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

import broker
from tests.frameworks.shops.fastapi_shop import Order, RequestSession, app, producer
from tests.frameworks.wishes import OutOfStock, order_body

__all__ = ["app"]


def announce(session: Session, item: str) -> None:
    session.add(order := Order(item=item))
    session.flush()
    producer.send(broker.Message("orders", order_body(order.id, item)), session)


@app.post("/fail/{item}")
def fail(item: str, session: RequestSession) -> None:
    announce(session, item)
    raise OutOfStock


@app.post("/savepoint/{item}", status_code=201)
def savepoint(item: str, session: RequestSession) -> None:
    announce(session, item)
    gift = session.begin_nested()
    announce(session, f"{item}-gift")
    gift.rollback()


@app.post("/kept/{item}", status_code=201)
def kept(item: str, session: RequestSession) -> None:
    announce(session, item)
    with session.begin_nested():
        announce(session, f"{item}-gift")


@app.exception_handler(OutOfStock)
def out_of_stock(_: Request, __: Exception) -> JSONResponse:
    return JSONResponse({}, 409)
