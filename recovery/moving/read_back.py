"""Read what was sent back from the cluster: each message once and the same, and where each group goes on."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Mapping

from broker.format.commitlog import Record
from recovery.moving.catalog import MoveCatalog, QueueProgress
from recovery.moving.contents import QueueContent, StoreContents
from recovery.moving.conversion import CarriedMessage, carried, difference, fingerprint, origin_of
from recovery.moving.report import MoveReport, TopicReport
from recovery.moving.sending import Sending
from recovery.moving.target import MoveTarget

_INDEX_S, _INDEX_EVERY_S = 15.0, 0.2  # a broker's index is a moment behind its log


class GroupPlaces:
    """Where the groups of one queue go on in the cluster: before the first message that a group has not had. Pure."""

    def __init__(self, positions: Mapping[str, int]) -> None:
        """`positions` are queue offsets in the store, by group."""
        self._waiting = dict(positions)
        self.places: dict[str, int] = {}

    def see(self, target_offset: int, queue_offset: int | None) -> None:
        """The cluster's queue has a message: that of the store's queue offset, or another one (None)."""
        for group, position in list(self._waiting.items()):
            if queue_offset is None or queue_offset >= position:
                self.places[group] = target_offset
                del self._waiting[group]

    def finish(self, target_end: int) -> dict[str, int]:
        """The places of all groups; one that had every message goes on at the end."""
        return {**self.places, **dict.fromkeys(self._waiting, target_end)}


class ReadBack:
    """One verification. Its coroutines run in the target's loop."""

    def __init__(self, contents: StoreContents, target: MoveTarget, catalog: MoveCatalog, report: MoveReport) -> None:
        self._contents, self._target, self._catalog, self._report = contents, target, catalog, report

    async def queues(self) -> dict[tuple[str, str], dict[int, int]]:
        """Compare every queue; by topic and group where the group goes on in each queue."""
        positions, places = self._contents.positions(), dict[tuple[str, str], dict[int, int]]()
        digests: dict[str, tuple[list[bytes], list[bytes]]] = {}
        for queue in self._contents.queues():
            state = self._catalog.queue(queue.topic, queue.queue_id)
            assert state is not None  # sending noted it
            held = {group: at[queue.queue_id] for (topic, group), at in positions.items()
                    if topic == queue.topic and queue.queue_id in at}  # fmt: skip
            ours, theirs, found = await self._queue(queue, state, GroupPlaces(held))
            both = digests.setdefault(queue.topic, ([], []))
            both[0].append(ours)
            both[1].append(theirs)
            for group, place in found.items():
                places.setdefault((queue.topic, group), {})[queue.queue_id] = place
        for topic, (ours_of, theirs_of) in digests.items():
            one = self._report.topics.setdefault(topic, TopicReport())
            one.digest = hashlib.sha256(b"".join(ours_of)).hexdigest()
            one.read_back_digest = hashlib.sha256(b"".join(theirs_of)).hexdigest()
        return places

    async def _queue(
        self, queue: QueueContent, state: QueueProgress, groups: GroupPlaces
    ) -> tuple[bytes, bytes, dict[str, int]]:
        """(digest of the store's messages, of the cluster's, places of the groups) of one queue."""
        report = self._report.topics.setdefault(queue.topic, TopicReport())
        source, ours, theirs = (
            _RecordCursor(self._contents.records(queue, queue.first)),
            hashlib.sha256(),
            hashlib.sha256(),
        )
        store_id, place = self._contents.store_id, f"{queue.topic}, queue {queue.queue_id}"

        def skip(until: int | None) -> None:
            """Go on to a record of the store; those before it are missing in the cluster."""
            while source.record is not None and (until is None or source.record.commitlog_offset < until):
                self._take(queue, source.record, ours, report)
                where = f"CommitLog offset {source.record.commitlog_offset}"
                self._report.note("missing", f"{place}: the message at {where}")
                source.advance()

        async for target_offset, message in self._target.read(state.target, state.target_base, state.target_next):
            origin = origin_of(message, store_id)
            if origin is None or self._catalog.single(origin) is not None:
                self._report.among_others += 1
                groups.see(target_offset, None)
                continue
            skip(origin)
            if source.record is None or source.record.commitlog_offset != origin:
                text = f"{place}: the message at CommitLog offset {origin}, again at {target_offset}"
                self._report.note("twice", text)
                continue
            sent = self._take(queue, source.record, ours, report)
            theirs.update(fingerprint(queue.topic, queue.queue_id, message.properties, message.body))
            report.read_back += 1
            if what := difference(sent, message):
                self._report.note("different", f"{place}: {what}, of the message at CommitLog offset {origin}")
            groups.see(target_offset, source.queue_offset)
            source.advance()
        skip(None)
        return ours.digest(), theirs.digest(), groups.finish(state.target_next)

    def _take(self, queue: QueueContent, record: Record, ours: hashlib._Hash, report: TopicReport) -> CarriedMessage:
        """A message of the store: into its digest and count."""
        sent = carried(record, self._contents.store_id)
        ours.update(fingerprint(queue.topic, queue.queue_id, sent.properties, sent.plain_body))
        report.messages += 1
        return sent

    async def put_positions(self, places: Mapping[tuple[str, str], Mapping[int, int]]) -> None:
        """Let each group go on where it stood; one that is further in the cluster already stays there."""
        for (topic, group), queues in places.items():
            for queue_id, place in queues.items():
                state = self._catalog.queue(topic, queue_id)
                assert state is not None
                now = await self._target.position(group, state.target)
                if now is None or now < place:
                    await self._target.put_position(group, state.target, place)
                self._report.positions += 1

    async def singles(self, sending: Sending, messages: list[CarriedMessage]) -> None:
        """Look every delayed message and every half message up by its unique key."""
        for message in messages:
            known = self._catalog.single(message.commitlog_offset)
            deadline_s = asyncio.get_running_loop().time() + _INDEX_S
            while known is None or not await sending.is_there(message, known[0]):
                if known is None or asyncio.get_running_loop().time() > deadline_s:
                    kind = "half message" if message.is_half else "delayed message"
                    self._report.note("missing", f"the {kind} at CommitLog offset {message.commitlog_offset}")
                    break
                await asyncio.sleep(_INDEX_EVERY_S)


class _RecordCursor:
    """The records of a queue, one at a time."""

    def __init__(self, records: Iterator[tuple[int, Record]]) -> None:
        self._records = records
        self.queue_offset = 0
        self.record: Record | None = None
        self.advance()

    def advance(self) -> None:
        self.queue_offset, self.record = next(self._records, (0, None))
