"""What a cluster can say of its ledgers: the newest transactions that it delivered. Their rows must be there.

A store on this machine remembers its ledgers in files; a cluster has no such place. What takes it: each half message
names its binding, the database's row says which database that binding was made in, and the newest messages of the
group in its topics are transactions that committed. A backup that was put back, and an old copy, lack their rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import replace

from broker.cluster.live_cluster import LiveCluster
from broker.cluster.membership.holdings import READY_BYTES_MAX
from broker.database.ledger_binding import LEDGER_BINDING, Binding, KnownLedger, RememberedLedgers
from broker.enlisting.ledger_key import LEDGER_KEY
from broker.errors import BrokerError
from broker.format import properties as names
from broker.log_fields import event
from broker.transaction.events import BY
from recovery.checkback.ledgers.proof import CommittedKey

_NEWEST, _FARTHER = 32, 512  # of each queue; no more of the second than one look brings
_LOOK_S = 10.0  # for so long a look at the topics counts
_KEYS = 64
_log = logging.getLogger("recovery")

_Keys = dict[str, tuple[str, CommittedKey]]  # by key of a ledger's row: the binding that its message names


class ClusterEvidence:
    """Implements `recovery.checkback.ledgers.proof.Evidence` for one producer group of a cluster."""

    def __init__(self, cluster: LiveCluster, group: str, *, accepted_ms: int = 0) -> None:
        """`accepted_ms`: a person accepted that rows of keys made before this time may be missing."""
        self._cluster, self._group, self._accepted_ms = cluster, group, accepted_ms
        self.store_id = cluster.store_id
        self.known = RememberedLedgers()
        self._topics: dict[str, float] = {}  # when each was looked at
        self._newest: dict[str, _Keys] = {}  # by topic
        self._sizes: dict[str, int] = {}  # by topic, bytes of a body, on average
        self._seen: dict[str, list[CommittedKey]] = {}  # by binding, what was known of it last
        self._searched: dict[str, set[str]] = {}  # by binding, the topics that were searched for it farther back

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
        mine = _of(binding_id, self._newest.values())
        if not mine and binding_id not in self._seen:
            mine = _of(binding_id, self._farther_back(binding_id))
        if mine:
            self._seen[binding_id] = mine  # which others may hide from the next look
        return self._seen.get(binding_id, [])

    def _farther_back(self, binding_id: str) -> list[_Keys]:
        """More messages of each topic, read once: those of other groups and ledgers may be the newest."""
        searched = self._searched.setdefault(binding_id, set())
        topics = sorted(self._sizes.keys() - searched)  # those that could be read
        searched.update(topics)
        limits = {topic: min(_FARTHER, READY_BYTES_MAX // self._sizes[topic]) for topic in topics}
        return [self._read(topic, limit) or {} for topic, limit in limits.items() if limit > _NEWEST]

    def _look(self, topic: str) -> None:
        if (keys := self._read(topic, _NEWEST)) is not None:
            self._newest[topic] = keys

    def _read(self, topic: str, limit: int) -> _Keys | None:
        """The keys of the group in the newest messages of a topic; None where it cannot be read."""
        try:
            newest = self._cluster.newest(topic, limit, partial=True)
        except BrokerError as error:
            _log.warning(
                "the topic %s could not be read, so it proves nothing about the ledger: %s",
                topic,
                error,
                extra=event("topics-unreadable", topic=topic),
            )
            return None
        self._sizes[topic] = sum(len(one.body) for one in newest) // max(1, len(newest)) + 1
        keys: _Keys = {}
        for message in newest:
            properties = message.properties
            key, binding_id = properties.get(LEDGER_KEY), properties.get(LEDGER_BINDING)
            by_hand = BY in properties  # a person or a policy committed it in the store that it was moved from
            if key and binding_id and properties.get(names.PGROUP) == self._group and not by_hand:
                keys[key] = binding_id, CommittedKey(key, message.commitlog_offset)
        return keys

    def is_by_hand(self, commitlog_offset: int) -> bool:  # noqa: ARG002
        """A broker does not say who ended a transaction."""
        return False


def _of(binding_id: str, found: Iterable[_Keys]) -> list[CommittedKey]:
    """The newest keys of a binding; one key once."""
    mine = {key: one for keys in found for key, (named, one) in keys.items() if named == binding_id}
    return sorted(mine.values(), reverse=True)[:_KEYS]
