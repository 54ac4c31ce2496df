"""By which of RocketMQ's rules an index is made, which differs from version to version, and in which sizes."""

from __future__ import annotations

from collections import Counter

from broker.format.index import ITEM_COUNT, SLOT_COUNT
from broker.format.sysflag import TransactionType
from recovery.findings import Findings
from recovery.scan.kinds import Kinds
from recovery.scan.scanner import Scan
from recovery.scan.store_files import StoreFiles
from recovery.verify.index_files import open_index
from recovery.verify.index_items import IndexingRule, expected_items


def index_rule(files: StoreFiles, *, ours: bool = False) -> IndexingRule:
    """By which rule a store is indexed: by that of which the last file of its index holds more; else by its records.

    3.x knows no unique key; 4.x and 5.x write one into every message that their clients send. Without an index,
    prepared records without slots show that it is not 3.1.4 or older. Where a broker of 5.4 or later went on
    with a store of ours, the items of tags are made for all records: a query finds more than before.
    """
    held: set[tuple[int, int]] = set()
    files_of_index = [file for file in open_index(files.index, Findings()) if file.used]
    first = 0
    for file in files_of_index[-1:]:
        rows = file.read(1, min(file.used, 1 << 16))
        held = set(zip(rows["commitlog_offset"].tolist(), rows["key_hash"].tolist(), strict=True))
        first = int(rows["commitlog_offset"].min())
    begin, end = files.commitlog.begin, files.commitlog.begin + files.commitlog_bytes
    for records in Scan(files.commitlog, first if begin <= first < end else begin):
        kinds, fits = Kinds(records), dict[IndexingRule, int]()
        for rule in (IndexingRule.V5, IndexingRule.V54, *(() if ours else (IndexingRule.V3, IndexingRule.V32))):
            items = expected_items(records, kinds, rule)
            made = set(zip(items["commitlog_offset"].tolist(), items["key_hash"].tolist(), strict=True))
            fits[rule] = len(made & held) - len(made - held)
        if held:
            return max(fits, key=lambda rule: fits[rule])
        keyed = bool((records.values("UNIQ_KEY").lengths > 0).any())
        slots = records.field("queue_offset")[kinds.types << 2 == TransactionType.PREPARED]
        has_slots = len(slots) < 2 or bool(slots.any())
        return IndexingRule.V5 if keyed or ours else IndexingRule.V3 if has_slots else IndexingRule.V32
    return IndexingRule.V5


def index_counts(files: StoreFiles) -> tuple[int, int]:
    """How many slots and items a file of the index has: as in the newest size of several files, or the first's.

    A broker that is set otherwise than before takes its present numbers for those of all files. A size that one file
    alone has may be of a file that was cut. RocketMQ: IndexService.load (5.3.3).
    """
    held = open_index(files.index, Findings())
    sizes = Counter(file.segment.size for file in held)
    newest = next((file for file in reversed(held) if sizes[file.segment.size] > 1), held[0] if held else None)
    return (newest.slots, newest.items) if newest else (SLOT_COUNT, ITEM_COUNT)
