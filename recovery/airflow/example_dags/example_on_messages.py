"""Starts when messages arrive on a topic, and reads them as a consumer group: an Airflow DAG behind an event."""

from airflow.sdk import DAG, Asset, AssetWatcher, task

from recovery.airflow.triggers import MessageTrigger

STORE = "/srv/shop.store"

watcher = AssetWatcher(name="example orders", trigger=MessageTrigger(path=STORE, topic="orders"))
arrived = Asset("checkback://example/orders", watchers=[watcher])

with DAG("example_on_messages", schedule=[arrived], max_active_runs=1, catchup=False, tags=["example"]):

    @task
    def read_orders() -> int:
        """How many messages the group acknowledged; its position is kept in the store."""
        import broker

        count = 0
        with broker.open(STORE) as store, store.consumer("airflow", "orders") as consumer:
            while (message := consumer.receive(1.0)) is not None:
                consumer.ack(message)
                count += 1
        return count

    read_orders()
