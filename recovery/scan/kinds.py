"""What each record of a batch is for: its topic, and the kind of event it stands for.

The meaning comes from `broker.transaction.events`; this module asks it for many records at a time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from broker.store.disk.paths import is_topic_directory
from broker.transaction.events import EVENTS, topic_kind
from recovery.scan.records import Records

_EVENTS = np.array(EVENTS, np.uint8)


class Kinds:
    """Topic and event kind of each record."""

    def __init__(self, records: Records) -> None:
        self.codes, self.topics = records.topic_codes
        kinds = [topic_kind(topic.decode("utf-8", "replace")) for topic in self.topics]
        self.topic_kinds = np.array(kinds, np.uint8)[self.codes] if len(self.codes) else np.zeros(0, np.uint8)
        self.types = (records.sys_flags & 0xC) >> 2
        self.events = _EVENTS[self.topic_kinds, self.types]

    @property
    def without_directory(self) -> npt.NDArray[np.bool_]:
        """Whether the topic of each record cannot name the directory of a queue."""
        wrong = [not is_topic_directory(topic.decode("utf-8", "replace")) for topic in self.topics]
        return np.array(wrong, np.bool_)[self.codes] if any(wrong) else np.zeros(len(self.codes), np.bool_)
