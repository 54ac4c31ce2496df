"""The exporter of an application: right numbers over HTTP, and nothing is timed before and after it."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import broker
from broker.testing.fixtures import SMALL
from recovery.metrics.metrics_exporter import MetricsExporter


def read(address: str, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        return str(answer.read().decode())


def histogram(text: str, name: str) -> tuple[dict[str, float], float, float]:
    """Buckets, count and sum of a histogram, by Prometheus's own parser."""
    (family,) = [one for one in text_string_to_metric_families(text) if one.name == name]
    assert family.type == "histogram"
    buckets = {one.labels["le"]: one.value for one in family.samples if one.name == f"{name}_bucket"}
    (count,) = [one.value for one in family.samples if one.name == f"{name}_count"]
    (total_s,) = [one.value for one in family.samples if one.name == f"{name}_sum"]
    return buckets, count, total_s


@pytest.mark.parametrize("engine", ["state-table", "half-op"])
def test_appends_and_fsyncs_are_timed(tmp_path: Path, engine: str) -> None:
    with broker.open(tmp_path / "store", layout=SMALL, sync="each", transactions=engine) as store:
        store.append(broker.Message("carts", b"before"))
        untimed = dict(vars(store.writer.appender)), dict(vars(store.writer.syncer))
        with MetricsExporter(store, port=0) as exporter:
            for number in range(7):
                half = store.transactions.prepare(broker.Message("orders", b"%d" % number), "shop")
                store.transactions.commit(half)
            store.append(broker.Message("carts", b"within"))
            text = read(exporter.address)
            assert read(exporter.address, "/healthz").startswith("ok")
            with pytest.raises(urllib.error.HTTPError, match="404"):
                read(exporter.address, "/")
        store.append(broker.Message("carts", b"after"))
        assert (vars(store.writer.appender).keys(), vars(store.writer.syncer).keys()) == tuple(
            one.keys() for one in untimed
        )
    buckets, count, total_s = histogram(text, "checkback_append_seconds")
    assert count == 15  # a commit with its op message is one
    assert list(buckets.values()) == sorted(buckets.values())
    assert buckets["+Inf"] == count
    assert 0 < total_s < 60
    assert histogram(text, "checkback_sync_seconds")[1] >= 1  # the background may flush for several
    values = {one.name: one.value for family in text_string_to_metric_families(text) for one in family.samples}
    assert values["checkback_transactions_in_doubt"] == 0
    assert values["checkback_transactions_total"] >= 7


def test_a_port_that_is_taken_is_refused_and_nothing_is_timed(tmp_path: Path) -> None:
    with (
        broker.open(tmp_path / "store", layout=SMALL, sync="os") as store,
        MetricsExporter(store, port=0) as first,
    ):
        before = dict(vars(store.writer.appender))
        with pytest.raises(broker.BrokerError, match="cannot listen on 127"):
            MetricsExporter(store, port=int(first.address.rpartition(":")[2]))
        assert vars(store.writer.appender) == before
