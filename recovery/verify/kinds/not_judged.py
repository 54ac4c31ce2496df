"""What a verification does not compare, and why: no finding, but nobody should take it for verified.

The inventory of the store (`broker.store.read.inventory`) says which entries no comparison reads; what a broker writes
that is newer than checkback knows is among them.
"""

from __future__ import annotations

from broker.store.read.inventory import inventory
from recovery.findings import NotJudged
from recovery.scan.store_files import StoreFiles


def not_judged(files: StoreFiles) -> tuple[NotJudged, ...]:
    """Everything in a store that is not compared with its log: where, what it is, why."""
    entries = inventory(files.path, files.disk).unjudged()
    found = [NotJudged(one.path, one.what, one.why) for one in entries if one.path not in files.log_directories]
    if files.commitlog.begin and files.watermark is None:
        what = f"the records below CommitLog offset {files.commitlog.begin}"
        why = "their segments are not there: retention removed them, or they were lost"
        found.append(NotJudged(files.commitlog.segments[0].path, what, why))
    return tuple(found)
