"""What the command line shows to people: tables and lines. It prints nothing; `output.py` does.

A line (`str`) is printed as it is, whatever its length: another program may read it. Tables are for what has few
columns and short cells. Everything that comes from a store goes through `printable`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from broker.format.topics import HALF_TOPIC, TIMER_TOPIC
from recovery.cli.terminal.table import Shown, Styled, Table
from recovery.findings import CAUSES, KINDS, Cause, Finding, Report
from recovery.humanize import count, moment, printable, size, span
from recovery.verify.remedies import next_step

if TYPE_CHECKING:  # each verb imports its own work, and no other's
    from recovery.repair.salvage import SalvageReport
    from recovery.transactions.in_doubt import PendingHalf
    from recovery.views.info import GroupInfo, Info, QueueInfo, TimersInfo

_STATES = ("committed", "rolled_back", "in_doubt", "parked")
_KEY_WIDTH = 40
_SEGMENTS_SHOWN = 8
_LOSSES_SHOWN = 50
_ADVICE = f"{'':10}-> "


def title(text: str) -> Styled:
    return Styled(text, "bold")


def verification(report: Report, limit: int | None) -> Iterator[Shown]:
    """A verification: the store in a line, its transactions, each finding, what that means, and the verdict."""
    rate = f", {size(int(report.bytes / report.seconds))}/s" if report.seconds > 0.1 else ""
    yield title(printable(report.path))
    yield (
        f"{count(report.records, 'record')}, {size(report.bytes)}, CommitLog {report.begin_offset:,} to "
        f"{report.end_offset:,}; generation {report.generation}; read in {span(report.seconds)}{rate}"
    )
    yield ""
    columns = ("transactions", *(name.replace("_", " ") for name in _STATES))
    transactions = Table(*columns, right=columns)
    transactions.add(*(f"{report.transactions[name]:,}" for name in ("total", *_STATES)))
    yield transactions
    if not report.ok:
        yield from _findings(report, limit)
    if report.not_judged:
        yield ""
        yield title(f"Not judged ({len(report.not_judged):,})")
        yield from (printable(str(one)) for one in report.not_judged)
    yield ""
    yield (Styled("ok", "bold green") if report.ok else Styled(_verdict(report), "bold red"))


def _verdict(report: Report) -> str:
    found = count(len(report.findings), "finding")
    return f"{count(len(report.causes), 'cause')}, {found}" if report.causes else found


def _findings(report: Report, limit: int | None) -> Iterator[Shown]:
    yield from _causes(report)
    grouped = defaultdict(list)
    shown = {_cause_key(cause) for cause in report.causes}
    listed = [finding for finding in report.findings.unexplained if _cause_key(finding) not in shown]
    for finding in listed[:limit]:
        grouped[finding.kind].append(finding)
    for kind in KINDS:
        if kind in grouped:
            yield ""
            yield Styled(f"{kind} ({_unexplained(report)[kind]:,})", "bold yellow")
            yield from (printable(str(finding)) for finding in grouped[kind])
    omitted = _unexplained(report).total() - len(listed[:limit])
    if omitted:
        yield ""
        yield f"... and {count(omitted, 'finding')} more, which {'is' if omitted == 1 else 'are'} counted, not listed"
    if _unexplained(report, with_causes=True):
        yield ""
        yield title("What this means, and what to do")
        yield from _meanings(report)


def _cause_key(one: Finding | Cause) -> tuple[str, int, str]:
    return one.kind, one.commitlog_offset, one.file


def _unexplained(report: Report, *, with_causes: bool = False) -> Counter[str]:
    """How many findings of each kind nothing explains; those that are causes themselves are shown apart."""
    counts = Counter(report.findings.counts)
    for cause in report.causes:
        counts -= cause.consequences
        if not with_causes and cause.kind in counts:
            counts[cause.kind] -= 1
    return +counts


def _causes(report: Report) -> Iterator[Shown]:
    """Each cause with what it explains; `--limit` leaves none out."""
    if not report.causes:
        return
    yield ""
    yield title(f"Causes ({len(report.causes):,})")
    for cause in report.causes:
        yield printable(str(cause))
        if cause.consequences.total():
            explained = ", ".join(f"{number:,} {kind}" for kind, number in cause.consequences.most_common())
            yield f"         explains {explained}"
        if cause.kind in CAUSES:
            yield Styled(f"{_ADVICE}{printable(next_step(cause.kind).replace('STORE', report.path))}", "cyan")


def _meanings(report: Report) -> Iterator[Shown]:
    """Each kind with its sentence; kinds that ask for the same step stand together."""
    steps: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for kind, number in _unexplained(report, with_causes=True).most_common():
        steps[next_step(kind, report.generation)].append((kind, number))
    for step, kinds in steps.items():
        for kind, number in kinds:
            yield f"{number:>8,}  {kind}: {KINDS[kind]}"
        yield Styled(f"{_ADVICE}{printable(step.replace('STORE', report.path))}", "cyan")


def traced(found: dict[str, Any]) -> Iterator[Shown]:
    """One transaction, a line for each step."""
    from recovery.views.lookup import details_of  # it loads the writing half of a store

    yield title(printable(f"{found['path']}: {found['id']}"))
    if not found["steps"]:
        yield printable(found["text"])
        return
    table = Table("offset", "time (UTC)", "what", "details", right=("offset",))
    for step in found["steps"]:
        table.add(step.get("commitlog_offset", ""), moment(step["stored_ms"]), step["what"], details_of(step))
    yield table


def pending_halves(found: Iterable[PendingHalf], states: bool) -> Iterator[Shown]:
    """The transactions in doubt, the oldest place first; they are read while they are printed."""
    halves = iter(found)
    if (first := next(halves, None)) is None:
        yield Styled("No transaction is in doubt.", "bold green")
        return
    place = "half queue" if first.queue_offset is not None else "slot"
    columns = ["offset", place, "age", "checks", "group", "topic", "keys"]
    table = Table(*columns, *(["state"] if states else []), right=("offset", place, "age", "checks"))
    numbers: Counter[str] = Counter()

    def row(half: PendingHalf) -> Sequence[object]:
        numbers[half.state] += 1
        number = half.slot if half.queue_offset is None else half.queue_offset
        state = [half.state.replace("_", " ")] if states else []
        keys = " ".join(half.keys) or half.unique_key or ""
        return (
            half.commitlog_offset,
            "none" if number is None else number,
            span(half.age_s),
            half.checks,
            half.producer_group or "(none)",
            half.topic,
            keys if len(keys) <= _KEY_WIDTH else f"{keys[: _KEY_WIDTH - 3]}...",
            *state,
        )

    table.take(map(row, chain((first,), halves)))
    yield table
    yield ""
    parts = [f"{count(numbers['in_doubt'], 'transaction')} in doubt"]
    yield title(", ".join([*parts, *([f"{numbers['parked']:,} parked"] if states else [])]))


def information(info: Info) -> Iterator[Shown]:
    """A store at a glance."""
    yield title(printable(info.path))
    sampled = " (seen in a sample of its records)" if info.generation_from != "all records" else ""
    yield f"generation    {info.generation}{sampled}"
    records = f", {count(info.records, 'record')}" if info.records is not None else ""
    yield f"CommitLog     {info.begin_offset:,} to {info.end_offset:,}{records}"
    yield from _segments(info)
    yield f"state         {_state(info)}"
    if info.checkpoint is not None:
        times = info.checkpoint
        logs = f"log {moment(times.commitlog_timestamp_ms)}, queues {moment(times.queue_timestamp_ms)}"
        yield f"checkpoint    {logs} UTC"
    else:
        yield "checkpoint    none: a broker that starts reads the whole log"
    if info.index:
        items = sum(file.items for file in info.index)
        yield f"index         {count(len(info.index), 'file')}, {count(items, 'item')}"
    for name, units, one in (("state table", info.state_table, "slot"), ("redo log", info.redo_log, "unit")):
        if units is not None:
            used = "cannot be read" if units.used is None else count(units.used, one)
            yield f"{name:<14}{used}, {count(units.files, 'file')} of {size(units.size)} together"
    if info.timers is not None:
        yield f"timers        {_timers(info.timers)}"
    if info.queues_up_to is not None:
        up_to = f"up to CommitLog offset {info.queues_up_to:,}"
        yield f"queues        in a RocksDB, {up_to}: any newer units were in the memory of the broker"
    yield from _queues(info.queues)
    yield from _groups(info.groups)
    if info.damages:
        yield ""
        yield Styled(f"damaged ({len(info.damages):,}): run checkback verify for all of it", "bold red")
        yield from (printable(f"{one.kind}: {one.file}: {one.reason}") for one in info.damages)


def _segments(info: Info) -> Iterator[Shown]:
    total, on_disk = (sum(getattr(one, name) for one in info.segments) for name in ("size", "on_disk"))
    if not info.segments:
        yield "segments      none"
        return
    holes = f", {size(on_disk)} on disk" if on_disk < total else ""
    each = f" of {size(info.segment_size)}" if len(info.segments) > 1 else ""
    yield f"segments      {len(info.segments):,}{each}, {size(total)}{holes}"
    if len(info.segments) <= _SEGMENTS_SHOWN:
        for one in info.segments:
            yield f"              {one.name}  {size(one.size)}, {size(one.on_disk)} on disk"
    else:
        yield f"              {info.segments[0].name} to {info.segments[-1].name}"


def _state(info: Info) -> str:
    """Whether somebody writes to the store, or did until a crash."""
    if info.writers:
        who = ", ".join(f"process {one.pid or 'unknown'} {one.how}" for one in info.writers)
        return f"open now: {who}"
    unseen = " (this system does not say who has files open)" if info.writers is None else ""
    if not info.abort:
        return f"clean shutdown: there is no file abort{unseen}"
    by = f" by process {info.abort_pid}" if info.abort_pid else ""
    return f"not closed{by}: a broker is running on it, or was killed; the next start recovers (file abort){unseen}"


def _timers(timers: TimersInfo) -> str:
    parts, in_time = [], timers.waiting - timers.rolled
    if in_time:
        due = f"due {moment(timers.first_due_ms)} to {moment(timers.last_due_ms)} UTC"
        parts.append(f"{count(in_time, 'message')}, {due}")
    if timers.rolled:
        parts.append(f"{count(timers.rolled, 'message')} put into the wheel again before due")
    if timers.not_in_wheel:
        parts.append(f"{count(timers.not_in_wheel, 'record')} of {TIMER_TOPIC} not in the wheel yet")
    return "; ".join(parts)


def _queues(queues: list[QueueInfo]) -> Iterator[Shown]:
    if not queues:
        return
    table = Table("topic", "queues", "messages", "queue offsets", right=("queues", "messages"))
    topics: dict[str, list[QueueInfo]] = defaultdict(list)
    for queue in queues:
        topics[queue.topic].append(queue)
    for topic, found in topics.items():
        ranges = "  ".join(f"{queue.queue_id}:{queue.min_offset}-{queue.max_offset}" for queue in found[:4])
        messages = sum(queue.max_offset - queue.min_offset for queue in found)
        table.add(topic, len(found), f"{messages:,}", f"{ranges}  ..." if len(found) > 4 else ranges)
    yield ""
    yield table


def _groups(groups: list[GroupInfo]) -> Iterator[Shown]:
    if not groups:
        return
    found: dict[tuple[str, str], list[GroupInfo]] = defaultdict(list)
    for one in groups:
        found[one.group, one.topic].append(one)
    table = Table("consumer group", "topic", "queues", "lag", right=("queues", "lag"))
    for (group, topic), queues in found.items():
        lags = [queue.lag for queue in queues if queue.lag is not None]
        table.add(group, topic, len(queues), f"{sum(lags):,}" if lags else "no queue")
    yield ""
    yield table


def salvaged(report: SalvageReport) -> Iterator[Shown]:
    """What a salvage kept and lost."""
    yield title(f"{printable(report.store)} -> {printable(report.out)}")
    kept = f"{count(report.records, 'record')}, {size(report.bytes)}, CommitLog {report.begin_offset:,} to"
    yield f"kept          {kept} {report.end_offset:,}"
    yield f"config        {', '.join(map(printable, report.config)) or 'none'}"
    yield f"left out      {', '.join(map(printable, report.left_out)) or 'nothing'}"
    yield f"segment size  {report.segment_size:,} bytes: set mappedFileSizeCommitLog of the broker to it"
    if report.left_behind:
        yield ""
        yield Styled("The new store lacks:", "bold yellow")
        yield from map(printable, report.left_behind)
    if not report.lost:
        yield ""
        yield Styled("No message was lost." if report.left_behind else "Nothing was lost.", "bold green")
        return
    yield ""
    losses = len(report.lost) + report.lost_omitted
    more = " and more" if any(not loss.size for loss in report.lost) else ""
    yield Styled(f"lost ({count(losses, 'place')}, {size(report.lost_bytes)}{more})", "bold yellow")
    for loss in report.lost[:_LOSSES_SHOWN]:
        what = f" {loss.record['says']} record of {loss.record['topic']}" if loss.record else ""
        lost = f"{loss.size} bytes" if loss.size else "nobody knows how much"
        place = f"{loss.kind}: {loss.file} at {loss.commitlog_offset}: {lost}{what}: {loss.reason}"
        yield printable(f"{place}; in its place: {loss.bridge}")
    if losses > _LOSSES_SHOWN:
        yield f"... and {losses - _LOSSES_SHOWN:,} more: {printable(report.out)}/checkback/salvage.json"
    yield ""
    yield from _consequences(report)


def _consequences(report: SalvageReport) -> Iterator[Shown]:
    if report.fillers:
        yield f"{count(report.fillers, 'filler record')} in topic CHECKBACK_SALVAGED: brokers read on past the loss"
    if report.not_bridged:
        yield f"{count(report.not_bridged, 'place')} could not be bridged: a RocketMQ broker would cut the log there"
    missing = sum(gap.count for gap in report.queues)
    if missing:
        queues = len({(gap.topic, gap.queue_id) for gap in report.queues})
        lowered = f"; {count(report.positions_lowered, 'position')} of consumers lowered, so that nothing is skipped"
        yield f"{count(missing, 'message')} missing in {count(queues, 'queue')}{lowered}"
    halves = sum(gap.count for gap in report.queues if gap.topic == HALF_TOPIC)
    if halves:
        text = f"{count(halves, 'half message')} of these: a 5.x broker that builds the half queue again"
        yield f"{text} pairs later op messages with the wrong halves. Settle what is in doubt before you start one"
    if report.in_doubt_before_loss:
        text = (
            f"{count(report.in_doubt_before_loss, 'transaction')} in doubt lie before a loss: their ends may be in it"
        )
        yield f"{text}. Ask their producers before you settle one"
    if report.ends_without_half:
        yield f"{count(report.ends_without_half, 'end')} whose half message was lost"
