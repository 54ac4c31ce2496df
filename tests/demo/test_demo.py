"""The flash sale in short: it adds up, and it would not without each of its safeguards."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import URL, create_engine, delete, select, update
from sqlalchemy.orm import Session

import broker
from recovery.cli import consumer as verbs_consume
from recovery.cli.declaration import VerbGroup
from recovery.cli.terminal.tables_consumer import reconciliation
from recovery.demo import roles, runner, shop
from recovery.demo.crashes import ALL, KILLED_BEFORE_DISPATCH, Crashes, counted, of_producers
from recovery.demo.reconcile import CountCheck, Reconciliation, reconcile
from recovery.demo.runner import Demo
from recovery.verify.verifier import verify

SECONDS, LONGER = 5, 20  # the longer on a machine that is too busy to sell anything in the shorter
FEW = 1  # in so short a sale; the long ones are in tests/torture


def sale_that(is_enough: Callable[[Reconciliation], bool], path: Path, **options: Any) -> Reconciliation:
    """A short sale, or a longer one where the short one had too little to show; its store is at `path / "store"`."""
    result = Demo(str(path), seconds=SECONDS, **options).run()
    if not is_enough(result):
        shutil.rmtree(path)
        path.mkdir()
        result = Demo(str(path), seconds=LONGER, **options).run()
    return result


def test_it_adds_up_whatever_crashes(tmp_path: Path) -> None:
    """And the store that all the killed processes left is whole, too."""
    result = sale_that(lambda one: bool(one.faults or not one.rare), tmp_path, seed=1, least=FEW)
    assert result.ok, (result.faults, result.rare)
    assert min(result.crashes.values()) >= FEW
    report = verify(str(tmp_path / "store"))
    assert report.ok, [str(finding) for finding in report.findings]


def test_it_adds_up_on_postgresql(tmp_path: Path, postgres_url: URL) -> None:
    url = postgres_url.render_as_string(hide_password=False)
    result = Demo(str(tmp_path), database=url, seed=2, seconds=SECONDS, least=0).run()
    assert result.ok, result.faults
    assert sum(result.crashes.values()) >= FEW


@pytest.mark.sample("dispatch-0.6", "tombstone-0.05")
@pytest.mark.parametrize(
    ("switched_off", "rate"),
    [("check-back", 0.6), ("dedup", 0.6), ("dispatch", 0.6), ("tombstone", 0.05)],  # it is for those that do commit
)
def test_it_does_not_add_up_without(switched_off: str, rate: float, tmp_path: Path) -> None:
    """A reconciliation that cannot fail proves nothing. What goes wrong is what the safeguard prevents."""

    def is_shown(result: Reconciliation) -> bool:
        return any(switched_off != "dedup" or " 2 times " in fault for fault in result.faults)

    assert is_shown(sale_that(is_shown, tmp_path, seed=3, least=0, rate=rate, off=[switched_off]))


def test_without_deduplication_each_delivery_takes_effect(session: Session, checkback_store: broker.LiveStore) -> None:
    """The consumers of such a sale failed at each message, since the note that they do not make was looked for."""
    table = roles.processed()
    table.metadata.create_all(session.get_bind())
    table.first_time = roles._always_the_first_time  # type: ignore[method-assign]
    checkback_store.producer("web").send(broker.Message("orders", b"1"))
    with checkback_store.consumer("points", "orders", processed=table) as consumer:
        message = consumer.receive(5)
        for points in range(2):
            with Session(session.get_bind()) as effects, consumer.process(message, effects) as is_first:
                assert is_first
                effects.add(shop.Effect(lock_id="1", kind=f"delivery {points}"))
    kinds = session.scalars(select(shop.Effect.kind).where(shop.Effect.kind.startswith("delivery"))).all()
    assert kinds == ["delivery 0", "delivery 1"]


def test_the_verb_shows_the_sums(tmp_path: Path) -> None:
    """In a second not every crash hits often enough: that is a fault, too."""
    app = VerbGroup()
    verbs_consume.register(app)
    done = CliRunner().invoke(
        app, ["demo", "--seconds", "1", "--seed", "4", "--json", "--keep", str(tmp_path / "kept")]
    )
    said = json.loads(done.output)
    assert done.exit_code == (0 if said["ok"] else 1)
    assert set(said["crashes"]) == set(ALL)
    assert (tmp_path / "kept/store/commitlog").is_dir()
    assert said["faults"] == []
    assert bool(said["rare"]) is not said["ok"]


def test_what_cannot_be_switched_off_is_said(tmp_path: Path) -> None:
    with pytest.raises(broker.BrokerError, match=r"only check-back, dedup, tombstone, dispatch"):
        Demo(str(tmp_path), off=["luck"])


def test_a_sale_over_a_cluster_has_time_for_the_kills_that_it_needs() -> None:
    """With half of that time checkback demo --broker said, however fast the machine: too few crashes hit."""
    seconds = inspect.signature(Demo).parameters["seconds"].default
    assert runner._LONGER * seconds > runner.LEAST * runner._CLUSTER_KILL_EVERY_S


@pytest.mark.parametrize("in_cluster", [True, False])
def test_no_kind_of_crash_waits_for_one_that_cannot_come(in_cluster: bool, tmp_path: Path) -> None:
    """Over a cluster each stopped at 4, before the one that only a store has: no demo --broker could prove anything."""
    there = of_producers(in_cluster=in_cluster)
    assert (KILLED_BEFORE_DISPATCH in there) != in_cluster
    for number in range(200):  # each a new process
        crashes = Crashes(str(tmp_path / "crashes"), seed=number, rate=1.0)
        crashes.draw(there)
        assert crashes.strikes(crashes.fate)
    found = counted(str(tmp_path / "crashes"))
    assert min(found[kind] for kind in there) >= runner.LEAST


@pytest.fixture
def session(tmp_path: Path) -> Session:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    shop.Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(shop.Product(sku="a", first_stock=2, stock=1))
        session.add(shop.Lock(id="1", customer="c", sku="a", state="ordered"))
        session.add(shop.Order(lock_id="1", sku="a", state="paid"))
        session.add(shop.Shipment(lock_id="1"))
        session.add(shop.Points(lock_id="1", points=shop.POINTS))
        for kind in ("locked", "created", "cart emptied", "paid", "deducted", "shipped", "points"):
            session.add(shop.Effect(lock_id="1", kind=kind))
        session.commit()
        yield session
    engine.dispose()


def faults(session: Session) -> list[str]:
    session.commit()
    return reconcile(session.get_bind(), dict.fromkeys(ALL, 20), least=20).faults


def test_one_order_with_one_effect_of_each_kind_is_right(session: Session) -> None:
    assert faults(session) == []


@pytest.mark.parametrize("kind", ["created", "paid", "deducted", "shipped", "points", "released"])
def test_an_effect_too_many_is_a_fault(session: Session, kind: str) -> None:
    session.add(shop.Effect(lock_id="1", kind=kind))
    assert faults(session)


@pytest.mark.parametrize("kind", ["locked", "created", "cart emptied", "paid", "deducted", "shipped", "points"])
def test_an_effect_too_few_is_a_fault(session: Session, kind: str) -> None:
    session.execute(delete(shop.Effect).where(shop.Effect.kind == kind))
    assert faults(session)


def test_all_faults_are_counted(session: Session) -> None:
    """It said that there were 21, however many there were."""
    session.add_all(shop.Lock(id=f"lost {number}", customer="d", sku="a") for number in range(40))
    session.commit()
    result = reconcile(session.get_bind(), {})
    lines = [str(line) for line in reconciliation(result)]
    assert f"NOT reconciled: {len(result.faults)} faults" in lines[-1]
    assert f"... and {len(result.faults) - 20} more" in lines


def test_an_effect_without_an_order_is_a_fault(session: Session) -> None:
    session.add(shop.Effect(lock_id="2", kind="shipped"))
    assert any("without a lock" in fault for fault in faults(session))


def test_a_lock_that_nobody_heard_of_is_a_fault(session: Session) -> None:
    session.add(shop.Lock(id="2", customer="d", sku="a"))
    session.add(shop.Effect(lock_id="2", kind="locked"))
    assert any("became no order" in fault for fault in faults(session))


def test_overselling_is_a_fault(session: Session) -> None:
    session.execute(update(shop.Product).values(first_stock=0, stock=-1))
    assert "products oversold: expected 0, found 1" in faults(session)


def test_a_second_order_for_a_lock_is_a_fault(session: Session) -> None:
    session.add(shop.Order(lock_id="1", sku="a", state="paid"))
    assert any("2 orders" in fault for fault in faults(session))


def test_too_few_crashes_prove_nothing(session: Session) -> None:
    crashes = {**dict.fromkeys(ALL, 20), ALL[0]: 19}
    result = reconcile(session.get_bind(), crashes, least=20)
    assert result.faults == []
    assert result.rare == [f"{ALL[0]}: only 19 times, which proves little"]
    assert not result.ok
    assert result.counts[0] == CountCheck("locks", 1, 1)
