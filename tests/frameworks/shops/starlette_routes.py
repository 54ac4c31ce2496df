"""The Starlette shop with the routes that only the tests have: what fails, savepoints, two COMMITs in one request."""

from sqlalchemy.ext.asyncio import AsyncSession
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import broker
from tests.frameworks.shops.starlette_shop import Order, app, producer, sessions
from tests.frameworks.wishes import OutOfStock, order_body

__all__ = ["app"]


async def announce(session: AsyncSession, item: str) -> None:
    session.add(order := Order(item=item))
    await session.flush()
    await producer.send_async(broker.Message("orders", order_body(order.id, item)), session)


async def fail(request: Request) -> JSONResponse:
    async with sessions.begin() as session:
        await announce(session, request.path_params["item"])
        raise OutOfStock


async def savepoint(request: Request) -> JSONResponse:
    item = request.path_params["item"]
    async with sessions.begin() as session:
        await announce(session, item)
        gift = await session.begin_nested()
        await announce(session, f"{item}-gift")
        await gift.rollback()
    return JSONResponse({}, 201)


async def twice(request: Request) -> JSONResponse:
    item = request.path_params["item"]
    async with sessions() as session:
        await announce(session, item)
        await session.commit()
        await announce(session, f"{item}-gift")
        await session.commit()
    return JSONResponse({}, 201)


async def out_of_stock(_: Request, __: Exception) -> JSONResponse:
    return JSONResponse({}, 409)


app.add_exception_handler(OutOfStock, out_of_stock)
app.router.routes += [Route(f"/{one.__name__}/{{item}}", one, methods=["POST"]) for one in (fail, savepoint, twice)]
