"""What the shop keeps."""

from django.db import models


class Order(models.Model):
    item = models.TextField()

    class Meta:
        db_table = "orders"
