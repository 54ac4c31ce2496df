"""A shop on FastAPI with an AsyncSession: POST /orders saves an order and announces it; both happen, or neither."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import broker


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


class NewOrder(BaseModel):
    item: str


engine = create_async_engine(os.environ["SHOP_DATABASE"])
sessions = async_sessionmaker(engine, expire_on_commit=False)
ledger = broker.Ledger(engine)
store = broker.open(os.environ["SHOP_STORE"])
producer = store.producer("shop", topics=["orders"], ledger=ledger)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    await ledger.create_all_async()  # with Alembic: ledger.metadata
    yield
    await engine.dispose()


async def session_of_request() -> AsyncIterator[AsyncSession]:
    async with sessions() as session:
        yield session
        await session.commit()  # when the view has returned; the order and its message


# scope="function": COMMIT comes before the response is sent. FastAPI's default commits after it, when the client
# already believes that the order is placed.
RequestSession = Annotated[AsyncSession, Depends(session_of_request, scope="function")]

app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def place_order(new: NewOrder, session: RequestSession) -> dict[str, int]:
    order = Order(item=new.item)
    session.add(order)
    await session.flush()  # gives the order its id
    body = json.dumps({"id": order.id, "item": order.item}).encode()
    await producer.send_async(broker.Message("orders", body), session)
    return {"id": order.id}


async def create_tables() -> None:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)


if __name__ == "__main__":  # once, before the first start; or with Alembic
    asyncio.run(create_tables())
