"""What a cluster can say of its ledgers: the newest transactions that it delivered. Their rows must be there.

A store on this machine remembers its ledgers in files; a cluster has no such place. What takes it: each half message
names its binding, the database's row says which database that binding was made in, and the newest messages of the
group in its topics are transactions that committed. A backup that was put back, and an old copy, lack their rows.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from broker.cluster.live_cluster import LiveCluster
from broker.database.ledger_binding import LEDGER_BINDING, Binding, KnownLedger, RememberedLedgers
from broker.enlisting.ledger_key import LEDGER_KEY
from broker.errors import BrokerError
from broker.format import properties as names
from broker.log_fields import event
from broker.transaction.events import BY
from recovery.checkback.ledgers.proof import CommittedKey

_NEWEST = 32  # of each queue
_LOOK_S = 10.0  # for so long a look at the topics counts
_KEYS = 64
_log = logging.getLogger("recovery")


class ClusterEvidence:
    """Implements `recovery.checkback.ledgers.proof.Evidence` for one producer group of a cluster."""

    def __init__(self, cluster: LiveCluster, group: str, *, accepted_ms: int = 0) -> None:
        """`accepted_ms`: a person accepted that rows of keys made before this time may be missing."""
        self._cluster, self._group, self._accepted_ms = cluster, group, accepted_ms
        self.store_id = cluster.store_id
        self.known = RememberedLedgers()
        self._topics: dict[str, float] = {}  # when each was looked at
        self._newest: dict[str, dict[str, tuple[str, CommittedKey]]] = {}  # by topic, then key; each with its binding

    def known_of(self, row: Binding) -> KnownLedger | None:
        """What is known of the ledger with a row's binding: what was seen first, as long as this process lives."""
        held = self.known.get(row.binding_id)
        if held is None:
            held = KnownLedger(row, "", self._accepted_ms)
            self.known.put(held)
        elif row.opened > held.binding.opened:
            self.known.put(replace(held, binding=replace(held.binding, opened=row.opened)))
        return held

    def saw(self, topic: str) -> None:
        """A half message of this topic is checked: what was delivered there is evidence."""
        self._topics.setdefault(topic, -_LOOK_S)

    def committed(self, binding_id: str) -> list[CommittedKey]:
        """The newest transactions of the group that were delivered and name this binding."""
        now_s = time.monotonic()
        for topic, looked_s in list(self._topics.items()):
            if now_s - looked_s >= _LOOK_S:
                self._topics[topic] = now_s
                self._look(topic)
        found = {key: one for keys in self._newest.values() for key, one in keys.items()}
        mine = [one for named, one in found.values() if named == binding_id]
        return sorted(mine, reverse=True)[:_KEYS]

    def _look(self, topic: str) -> None:
        try:
            newest = self._cluster.newest(topic, _NEWEST, partial=True)
        except BrokerError as error:
            _log.warning(
                "the topic %s could not be read, so it proves nothing about the ledger: %s",
                topic,
                error,
                extra=event("topics-unreadable", topic=topic),
            )
            return
        keys: dict[str, tuple[str, CommittedKey]] = {}
        for message in newest:
            properties = message.properties
            key, binding_id = properties.get(LEDGER_KEY), properties.get(LEDGER_BINDING)
            by_hand = BY in properties  # a person or a policy committed it in the store that it was moved from
            if key and binding_id and properties.get(names.PGROUP) == self._group and not by_hand:
                keys[key] = binding_id, CommittedKey(key, message.commitlog_offset)
        self._newest[topic] = keys

    def is_by_hand(self, commitlog_offset: int) -> bool:  # noqa: ARG002
        """A broker does not say who ended a transaction."""
        return False
