"""POST /orders saves an order and announces it; both happen, or neither."""

import json

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt

import broker
from tests.frameworks.django_shop.announcements import producer
from tests.frameworks.django_shop.models import Order


@csrf_exempt
@transaction.atomic
def place_order(request: HttpRequest) -> JsonResponse:
    order = Order.objects.create(item=json.loads(request.body)["item"])
    body = json.dumps({"id": order.id, "item": order.item}).encode()
    producer().send(broker.Message("orders", body))  # joins the transaction of atomic()
    return JsonResponse({"id": order.id}, status=201)
