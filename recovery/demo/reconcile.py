"""Whether it adds up: from the shop's database alone, never from what the store or the processes believe.

For every order exactly one effect of each kind, none without an order; every lock became an order or was released;
nothing was promised or sold twice.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from recovery.demo.shop import POINTS, CartEntry, Effect, Lock, Order, Points, Product, Shipment

OF_AN_ORDER = ("locked", "created", "cart emptied", "paid", "deducted", "shipped", "points")
OF_A_RELEASE = ("locked", "released")


class CountCheck(NamedTuple):
    """A thing that was counted in two places."""

    what: str
    expected: int
    found: int


@dataclass(frozen=True)
class Reconciliation:
    """What the database says in the end, and how often which crash hit on the way there."""

    crashes: Mapping[str, int]
    counts: list[CountCheck]
    faults: list[str]
    rare: list[str] = field(default_factory=list)  # crashes that hit too seldom for the sums to prove much
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.faults and not self.rare

    def as_json(self) -> dict[str, Any]:
        counts = [line._asdict() for line in self.counts]
        return {**asdict(self), "counts": counts, "ok": self.ok}


def reconcile(engine: Engine, crashes: Mapping[str, int], seconds: float = 0.0, *, least: int = 0) -> Reconciliation:
    """Read everything and compare. `least` is how often each kind of crash must have hit for it to prove anything."""
    with Session(engine) as session:
        counts = list(_counts(session))
        faults = list(_of_locks(session))
    faults += [f"{line.what}: expected {line.expected}, found {line.found}" for line in counts if line[1] != line[2]]
    rare = [f"{kind}: only {hits} times, which proves little" for kind, hits in crashes.items() if hits < least]
    return Reconciliation(dict(crashes), counts, faults, rare, seconds)


def _of_locks(session: Session) -> Iterator[str]:
    """Each lock against its effects and its orders."""
    effects: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for lock_id, kind in session.execute(select(Effect.lock_id, Effect.kind)):
        effects[lock_id][kind] += 1
    orders = Counter(session.scalars(select(Order.lock_id)))
    states = {lock.id: lock.state for lock in session.scalars(select(Lock))}
    for lock_id, state in states.items():
        if state == "locked":
            yield f"lock {lock_id} became no order and was not released"
            continue
        expected = OF_AN_ORDER if state == "ordered" else OF_A_RELEASE
        for kind in sorted({*expected, *effects[lock_id]}):
            if effects[lock_id][kind] != (kind in expected):
                yield f"lock {lock_id}, {state}: {effects[lock_id][kind]} times {kind!r}"
        if orders[lock_id] != (state == "ordered"):
            yield f"lock {lock_id}, {state}: {orders[lock_id]} orders"
    yield from (f"an effect without a lock: {one} {dict(effects[one])}" for one in effects if one not in states)
    yield from (f"an order without a lock: {lock_id}" for lock_id in orders if lock_id not in states)


def _counts(session: Session) -> Iterator[CountCheck]:
    """The tables against each other."""
    kinds = Counter(session.scalars(select(Effect.kind)))
    orders, paid = _count(session, Order), len(session.scalars(select(Order.id).where(Order.state == "paid")).all())
    products = session.scalars(select(Product)).all()
    pieces = Counter(session.scalars(select(Order.sku)))
    yield CountCheck("locks", orders + kinds["released"], _count(session, Lock))
    yield CountCheck("orders", kinds["created"], orders)
    yield CountCheck("paid orders", orders, paid)
    yield CountCheck("shipments", orders, _count(session, Shipment))
    yield CountCheck("points", orders * POINTS, sum(session.scalars(select(Points.points))))
    yield CountCheck("pieces that left the stock", orders, sum(one.first_stock - one.stock for one in products))
    yield CountCheck("pieces still locked", 0, sum(abs(one.locked) for one in products))
    yield CountCheck(
        "products oversold", 0, sum(pieces[one.sku] > one.first_stock or one.stock < 0 for one in products)
    )
    yield CountCheck("products miscounted", 0, sum(one.first_stock - pieces[one.sku] != one.stock for one in products))
    yield CountCheck("cart entries left", 0, _count(session, CartEntry))


def _count(session: Session, table: Any) -> int:
    return len(session.scalars(select(table)).all())
