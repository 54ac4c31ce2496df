"""The table of orders."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations: ClassVar = [
        migrations.CreateModel(
            "Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("item", models.TextField()),
            ],
            options={"db_table": "orders"},
        )
    ]
