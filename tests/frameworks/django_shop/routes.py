"""The Django shop with the routes that only the tests have: what fails, savepoints, two COMMITs, an async view."""

from __future__ import annotations

from collections.abc import Callable

from asgiref.sync import sync_to_async
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import URLPattern, path
from django.views.decorators.csrf import csrf_exempt

import broker
from tests.frameworks.django_shop.announcements import producer
from tests.frameworks.django_shop.models import Order
from tests.frameworks.django_shop.urls import urlpatterns as urls_of_the_shop
from tests.frameworks.wishes import OutOfStock, order_body


def announce(item: str) -> None:
    order = Order.objects.create(item=item)
    producer().send(broker.Message("orders", order_body(order.id, item)))


def fail(item: str) -> None:
    with transaction.atomic():
        announce(item)
        raise OutOfStock


def savepoint(item: str) -> None:
    with transaction.atomic():
        announce(item)
        try:
            with transaction.atomic():
                announce(f"{item}-gift")
                raise OutOfStock
        except OutOfStock:
            pass


def kept(item: str) -> None:
    with transaction.atomic():
        announce(item)
        with transaction.atomic():
            announce(f"{item}-gift")


def twice(item: str) -> None:
    with transaction.atomic():
        announce(item)
    with transaction.atomic():
        announce(f"{item}-gift")


def route(action: Callable[[str], None]) -> URLPattern:
    """The view of an action; it commits by itself, whatever ATOMIC_REQUESTS says."""

    @csrf_exempt
    @transaction.non_atomic_requests
    def view(_: HttpRequest, item: str) -> JsonResponse:
        try:
            action(item)
        except OutOfStock:
            return JsonResponse({}, status=409)
        return JsonResponse({}, status=201)

    return path(f"{action.__name__}/<item>", view)


@csrf_exempt
def by_request(_: HttpRequest, item: str) -> JsonResponse:
    """Commits because of ATOMIC_REQUESTS alone."""
    announce(item)
    return JsonResponse({}, status=201)


@csrf_exempt
@transaction.non_atomic_requests
async def in_async_view(_: HttpRequest, item: str) -> JsonResponse:
    await sync_to_async(kept)(item)
    return JsonResponse({}, status=201)


urlpatterns = [
    *urls_of_the_shop,
    *map(route, (fail, savepoint, kept, twice)),
    path("request/<item>", by_request),
    path("async/<item>", in_async_view),
]
