"""The routes of the shop."""

from django.urls import path

from tests.frameworks.django_shop.views import place_order

urlpatterns = [path("orders", place_order)]
