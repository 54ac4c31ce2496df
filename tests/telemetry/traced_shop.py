"""An application with spans: `checkback work tests.telemetry.traced_shop:app --otlp URL` runs its handlers.

python -m tests.telemetry.traced_shop order URL        an order, in a span of the application's own
python -m tests.telemetry.traced_shop die URL          the same, and dies between COMMIT and the end
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any, NoReturn

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import broker
from broker import telemetry
from broker.testing.crash_disk import SMALL

engine = create_engine(f"sqlite:///{os.environ['DATABASE']}", connect_args={"timeout": 30})
app = broker.App(
    os.environ["STORE"], engine=engine, name="shop", topics=["orders", "invoices"], layout=SMALL,
    transactions=os.environ["TRANSACTIONS"],
)  # fmt: skip


class Base(DeclarativeBase):
    pass


class Charge(Base):
    __tablename__ = "charges"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]


@app.on("orders", group="billing", retry=broker.Retry(3, delays_s=(0.05,)))
def charge(order_id: int, session: Session, message: broker.ReceivedMessage) -> None:
    if order_id == 13 and message.reconsume_times == 0:
        raise RuntimeError("the card reader hangs")
    session.add(Charge(order_id=order_id))
    app.send("invoices", order_id, keys=[str(order_id)])


def main(action: str, url: str, order_id: int) -> None:
    """The application sets OpenTelemetry up itself, as applications do."""
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": "web"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{url}/v1/traces")))
    trace.set_tracer_provider(provider)
    telemetry.switch_on()
    Base.metadata.create_all(engine)
    app.start()
    if action == "die":
        app.producer._destination.transactions.commit = partial(_die, provider)  # type: ignore[method-assign]
    with trace.get_tracer("shop").start_as_current_span("checkout"), app.transaction():
        app.send("orders", order_id, keys=[str(order_id)])
    app.close()
    provider.shutdown()


def _die(provider: Any, *_: object, **__: object) -> NoReturn:
    """Its spans are out, and its end never is."""
    provider.force_flush()
    os._exit(9)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
