"""The asynchronous FastAPI shop with the routes that only the tests have: what fails, savepoints, two COMMITs."""

from fastapi import Request
from fastapi.responses import JSONResponse
from sqlalchemy.ext.asyncio import AsyncSession

import broker
from tests.frameworks.shops.fastapi_async_shop import Order, RequestSession, app, producer
from tests.frameworks.wishes import OutOfStock, order_body

__all__ = ["app"]


async def announce(session: AsyncSession, item: str) -> None:
    session.add(order := Order(item=item))
    await session.flush()
    await producer.send_async(broker.Message("orders", order_body(order.id, item)), session)


@app.post("/fail/{item}")
async def fail(item: str, session: RequestSession) -> None:
    await announce(session, item)
    raise OutOfStock


@app.post("/savepoint/{item}", status_code=201)
async def savepoint(item: str, session: RequestSession) -> None:
    await announce(session, item)
    gift = await session.begin_nested()
    await announce(session, f"{item}-gift")
    await gift.rollback()


@app.post("/kept/{item}", status_code=201)
async def kept(item: str, session: RequestSession) -> None:
    await announce(session, item)
    async with session.begin_nested():
        await announce(session, f"{item}-gift")


@app.post("/twice/{item}", status_code=201)
async def twice(item: str, session: RequestSession) -> None:
    await announce(session, item)
    await session.commit()
    await announce(session, f"{item}-gift")


@app.exception_handler(OutOfStock)
async def out_of_stock(_: Request, __: Exception) -> JSONResponse:
    return JSONResponse({}, 409)
