"""A shop on FastAPI with a Session: POST /orders saves an order and announces it; both happen, or neither."""

import json
import os
from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, FastAPI
from pydantic import BaseModel
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import broker


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


class NewOrder(BaseModel):
    item: str


engine = create_engine(os.environ["SHOP_DATABASE"])
ledger = broker.Ledger(engine)
ledger.create_all()  # with Alembic: ledger.metadata
store = broker.open(os.environ["SHOP_STORE"])
producer = store.producer("shop", topics=["orders"], ledger=ledger)
engine.dispose()  # gunicorn --preload forks after this line: no database connection may be open then
sessions = sessionmaker(engine)


def session_of_request() -> Iterator[Session]:
    with sessions.begin() as session:  # commits when the view has returned, rolls back when it raised
        yield session


# scope="function": COMMIT comes before the response is sent. FastAPI's default commits after it, when the client
# already believes that the order is placed.
RequestSession = Annotated[Session, Depends(session_of_request, scope="function")]

app = FastAPI()


@app.post("/orders", status_code=201)
def place_order(new: NewOrder, session: RequestSession) -> dict[str, int]:
    order = Order(item=new.item)
    session.add(order)
    session.flush()  # gives the order its id
    body = json.dumps({"id": order.id, "item": order.item}).encode()
    producer.send(broker.Message("orders", body), session)
    return {"id": order.id}


if __name__ == "__main__":  # once, before the first start; or with Alembic
    Base.metadata.create_all(engine)
