"""A shop on Starlette with an AsyncSession: POST /orders saves an order and announces it; both happen, or neither."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import broker


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


engine = create_async_engine(os.environ["SHOP_DATABASE"])
sessions = async_sessionmaker(engine, expire_on_commit=False)
ledger = broker.Ledger(engine)
store = broker.open(os.environ["SHOP_STORE"])
producer = store.producer("shop", topics=["orders"], ledger=ledger)


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    await ledger.create_all_async()  # with Alembic: ledger.metadata
    yield
    await engine.dispose()


async def place_order(request: Request) -> JSONResponse:
    order = Order(item=(await request.json())["item"])
    async with sessions.begin() as session:  # commits at the end of the block, before the response
        session.add(order)
        await session.flush()  # gives the order its id
        body = json.dumps({"id": order.id, "item": order.item}).encode()
        await producer.send_async(broker.Message("orders", body), session)
    return JSONResponse({"id": order.id}, status_code=201)


app = Starlette(routes=[Route("/orders", place_order, methods=["POST"])], lifespan=lifespan)


async def create_tables() -> None:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)


if __name__ == "__main__":  # once, before the first start; or with Alembic
    asyncio.run(create_tables())
