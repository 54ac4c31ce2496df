"""A shop on Flask-SQLAlchemy: POST /orders saves an order and announces it; both happen, or neither."""

import json
import os

from flask import Flask, request
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import broker


class Base(DeclarativeBase):
    pass


app = Flask(__name__)
app.config["SQLALCHEMY_DATABASE_URI"] = os.environ["SHOP_DATABASE"]
db = SQLAlchemy(app, model_class=Base)


class Order(db.Model):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


with app.app_context():
    ledger = broker.Ledger(db.engine)
    ledger.create_all()  # with Alembic: ledger.metadata
    store = broker.open(os.environ["SHOP_STORE"])
    producer = store.producer("shop", topics=["orders"], ledger=ledger)
    db.engine.dispose()  # gunicorn --preload forks after this line: no database connection may be open then


@app.post("/orders")
def place_order() -> tuple[dict[str, int], int]:
    order = Order(item=request.get_json()["item"])
    db.session.add(order)
    db.session.flush()  # gives the order its id
    body = json.dumps({"id": order.id, "item": order.item}).encode()
    producer.send(broker.Message("orders", body), db.session)
    db.session.commit()  # the order and its message
    return {"id": order.id}, 201


if __name__ == "__main__":  # once, before the first start; or with Alembic
    with app.app_context():
        db.create_all()
