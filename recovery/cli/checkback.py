"""The verbs about transactions in doubt: `check-back`, `park-list`, `resolve`, `recheck`, `policy explain`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from recovery.checkback.leader import myself
from recovery.cli.declaration import Argument, BadParameter, Exit, Option, VerbGroup
from recovery.cli.shared import (
    FINDINGS,
    USAGE,
    WELL,
    AsJson,
    LogOrNone,
    Otlp,
    Store,
    examples,
    fail,
    interval_s,
    listing,
    now_ms,
    seconds,
    secret,
)
from recovery.cli.terminal.check_back_round import show_round
from recovery.cli.terminal.log_lines import log_to_stderr
from recovery.cli.terminal.output import print_json, show, warn
from recovery.cli.terminal.traces import traced
from recovery.humanize import printable, who

if TYPE_CHECKING:
    from broker.errors import CorruptStore
    from broker.live import LiveStore
    from broker.transaction.service import Half
    from recovery.checkback.catalog import Catalog
    from recovery.checkback.config import Setup
    from recovery.checkback.leader import LeaderLock
    from recovery.checkback.manual import Resolution
    from recovery.checkback.round import CheckBack, RoundReport

LedgerUrls = Annotated[
    list[str] | None,
    Option(
        "--ledger", metavar="URL", envvar="CHECKBACK_LEDGER", help="The ledger's database (SQLAlchemy); again for more."
    ),
]
Schemas = Annotated[
    list[str] | None,
    Option("--schema", metavar="NAME", help="Where the ledger's tables are; again for each tenant."),
]
Http = Annotated[str | None, Option(metavar="URL", help="An endpoint of the application to ask.")]
HeadersFile = Annotated[
    str | None, Option(metavar="FILE", help="Headers for --http, a line `Name: value` each. A token: see above.")
]
Call = Annotated[str | None, Option(metavar="NAME", help="A function module:function, or an entry point, to ask.")]
Within = Annotated[
    str, Option("--answer-within", metavar="TIME", help="How long --call or --http may take for one question.")
]
Config = Annotated[
    str | None, Option("--config", metavar="FILE", help="TOML: resolvers by producer group, and the policy.")
]
CatalogUrl = Annotated[
    str | None,
    Option("--catalog", metavar="URL", envvar="CHECKBACK_CATALOG", help="Instead of STORE/checkback/catalog.db."),
]
HTTP_TOKEN = "CHECKBACK_HTTP_TOKEN"  # noqa: S105 - the name of a variable
DryRun = Annotated[bool, Option("--dry-run", help="Print what would be done, and do nothing.")]
Ids = Annotated[
    list[str] | None,
    Argument(metavar="ID...", help="CommitLog offsets, message ids or unique keys of half messages."),
]
AllParked = Annotated[bool, Option("--all-parked", help="All parked transactions, instead of IDs.")]
Topic = Annotated[str | None, Option("--topic", metavar="TOPIC", help="With --all-parked: only of this topic.")]
Group = Annotated[str | None, Option("--group", metavar="GROUP", help="With --all-parked: only of this group.")]
Why = Annotated[str, Option("--why", metavar="TEXT", help="The reason; stored in the end record.")]
PerTopic = Annotated[
    int | None, Option(min=1, metavar="N", help="Query at most N transactions of one topic per round.")
]


def check_back(
    store: Store,
    ledger: LedgerUrls = None,
    schema: Schemas = None,
    http: Http = None,
    headers_file: HeadersFile = None,
    call: Call = None,
    answer_within: Within = "10s",
    config: Config = None,
    catalog: CatalogUrl = None,
    limit: Annotated[int, Option(min=1, metavar="N", help="Query at most N transactions per round.")] = 10_000,
    per_topic: PerTopic = None,
    every: Annotated[str | None, Option(metavar="TIME", help="Repeat, for example every 30s.")] = None,
    keep_ledger: Annotated[
        str, Option(metavar="TIME", help="Remove ledger rows that are older and no longer needed.")
    ] = "30d",
    anyway: Annotated[bool, Option("--anyway", help="Run even while another process is the leader.")] = False,
    otlp: Otlp = None,
    log: LogOrNone = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Query how the transactions in doubt ended, and end them accordingly.

    Runs one round, or with --every repeated rounds, while no other process that queries the same leads. What has no
    answer is queried again later, and parked at the limit of its policy. A database decides only when it proves that it
    is the ledger of this store. --http sends the token in the environment variable CHECKBACK_HTTP_TOKEN.

    Exits with 1 when a query failed, and prints which and why; with 2 when a database is not certainly the ledger: then
    nothing was decided by it.
    """
    from recovery.checkback.leader import LeaderLock
    from recovery.checkback.ledger_retention import keeper
    from recovery.checkback.round import CheckBack
    from recovery.checkback.service import CheckService

    spec = {"ledger": ledger, "schema": schema, "http": http, "headers_file": headers_file, "call": call}
    setup = _setup({**spec, "answer_within": answer_within if http or call else None}, config)
    every_s = None if every is None else interval_s("--every", every)
    keep_ms = round(seconds("--keep-ledger", keep_ledger) * 1000)
    log_to_stderr(log)
    with (
        traced(otlp, "check-back"), _open(store) as opened, _catalog(opened, catalog) as kept,
        setup.open(opened) as asked,
    ):  # fmt: skip
        check = CheckBack(opened, asked.router, policy=setup.policy, catalog=kept, limit=limit, per_topic=per_topic)
        keep_house = keeper(opened, asked.ledgers.values(), keep_ms)
        if dry_run:
            return show_round(check.round(check.now_ms(), dry_run=True), as_json)
        lease = LeaderLock(opened.path, asks=asked.asks)
        try:
            if every_s is not None:
                opened.writer.upkeep.start()  # which releases what retention removes, also where nothing is appended
                service = CheckService(check, lease, interval_s=every_s, housekeeping=keep_house)
                _warn_of_leader(lease)
                return service.run(lambda report: show_round(report, as_json))
            report = _one_round(check, lease, asked.wrong, keep_house, anyway)
        finally:
            lease.release()
    return _finish(report, as_json)


def _warn_of_leader(lease: LeaderLock) -> None:
    """Say why no round is shown, where another process leads."""
    if not lease.try_take():
        warn(f"{lease.leader() or 'another process leads'}: this process waits until it ends")


def _one_round(
    check: CheckBack, lease: LeaderLock, wrong: Callable[[], list[str]], keep_house: Callable[[int], None], anyway: bool
) -> RoundReport | None:
    """None when another process leads."""
    if not anyway and not lease.try_take():
        show([f"{lease.leader() or 'another process leads'}: nothing was done. To ask all the same: --anyway"])
        return None
    report = check.round(check.now_ms())
    if report.waiting and not report.refusals:  # nobody was asked yet: a wrong database is not to pass until then
        report.refusals.update(dict.fromkeys(wrong(), 0))
    if not report.refusals:  # else it would say the same again
        keep_house(check.now_ms())
    return report


def _finish(report: RoundReport | None, as_json: bool) -> None:
    if report is None:
        return
    show_round(report, as_json)
    if report.refusals:
        raise Exit(USAGE)
    raise Exit(FINDINGS if report.down or report.errors else WELL)


def park_list(store: Store, as_json: AsJson = False) -> None:
    """List the parked transactions: check-back reached its limit, and they wait for a manual decision."""
    from recovery.checkback.manual import park_list as listed

    damaged: list[CorruptStore] = []
    with _open(store) as opened:
        found = listed(opened, now_ms(), damaged=damaged)
    if as_json:
        print_json([one.as_json() for one in found])
    elif not found and not damaged:
        show(["Nothing is parked"])
    else:
        for one in found:
            keys = f" keys {' '.join(one.keys)}" if one.keys else ""
            age = f"{one.age_s:.0f} s old"
            show([printable(f"{one.message_id} {one.topic} group {one.producer_group}{keys}, {age}: {one.why}")])
    if damaged:
        raise damaged[0]


def resolve(
    store: Store,
    ids: Ids = None,
    commit: Annotated[bool, Option("--commit", help="Deliver them.")] = False,
    rollback: Annotated[bool, Option("--rollback", help="Never deliver them.")] = False,
    why: Why = "",
    by: Annotated[str | None, Option(metavar="NAME", help="The person who decides; by default this user.")] = None,
    all_parked: AllParked = False,
    topic: Topic = None,
    group: Group = None,
    ledger: LedgerUrls = None,
    schema: Schemas = None,
    config: Config = None,
    without_ledger: Annotated[
        bool, Option("--without-ledger", help="Decide without the ledger, which is lost or wrong.")
    ] = False,
    catalog: CatalogUrl = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Commit or roll back transactions in doubt manually, with a reason.

    The first decision is final: a transaction that was ended meanwhile is refused, and so is one that the ledger
    contradicts. Exits with 1 when one was refused.
    """
    from broker.transaction.events import TransactionState
    from recovery.checkback.manual import resolve as decide

    if commit == rollback:
        raise BadParameter("say either --commit or --rollback")
    state = TransactionState.COMMITTED if commit else TransactionState.ROLLED_BACK
    setup = _setup({"ledger": ledger, "schema": schema}, config)
    with _open(store) as opened, _catalog(opened, catalog) as kept, setup.open(opened) as asked:
        found: list[Resolution] = []
        damaged: list[CorruptStore] = []
        for half in _meant(opened, ids, all_parked, topic, group, damaged):
            found += decide(
                opened,
                [half],
                state,
                why=why,
                by=by or f"{who()} at {myself()}",
                now_ms=now_ms(),
                ledger=asked.ledger_of(half.producer_group),
                without_ledger=without_ledger,
                catalog=kept,
                dry_run=dry_run,
            )
    _show_resolutions(found, as_json, damaged)


def recheck(
    store: Store,
    ids: Ids = None,
    why: Annotated[
        str, Option("--why", metavar="TEXT", help="The reason; stored in the record that takes a parked one back.")
    ] = "rechecked manually",
    all_parked: AllParked = False,
    topic: Topic = None,
    group: Group = None,
    catalog: CatalogUrl = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Restart check-back for transactions, as if they were new; parked ones are no longer parked."""
    from recovery.checkback.manual import recheck as again

    damaged: list[CorruptStore] = []
    with _open(store) as opened, _catalog(opened, catalog) as kept:
        halves = _meant(opened, ids, all_parked, topic, group, damaged)
        found = again(opened, halves, why=why, catalog=kept, dry_run=dry_run)
    _show_resolutions(found, as_json, damaged)


def policy_explain(
    topic: Annotated[str, Argument(metavar="TOPIC", help="A topic; * for topics without a rule of their own.")],
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Show when a transaction of a topic without an answer is queried, and what happens at the limit."""
    from recovery.checkback.policy import as_json as rule_json
    from recovery.checkback.policy import timeline
    from recovery.durations import format_duration

    rule = _setup({}, config).policy.rule(topic)
    moments = list(timeline(rule, 50))
    if as_json:
        print_json({"topic": topic, "rule": rule_json(rule), "timeline": [one._asdict() for one in moments]})
        return
    show([f"After a half message of topic {topic} was stored, if nobody knows how its transaction ended:"])
    for one in moments:
        early, late = format_duration(one.earliest_ms), format_duration(one.latest_ms)
        show([f"  {one.what:<10} after {early}" + ("" if early == late else f" to {late}")])


# What the verbs share


@contextmanager
def _open(path: str) -> Iterator[LiveStore]:
    """The store, open for writing; one that is not there is not made."""
    import broker

    with broker.open(path, create=False) as opened:
        yield opened


@contextmanager
def _catalog(store: LiveStore, url: str | None) -> Iterator[Catalog]:
    from recovery.checkback.catalog import Catalog

    catalog = Catalog.open(store.path, store.store_id, url)
    try:
        yield catalog
    finally:
        catalog.close()


def _setup(options: dict[str, Any], config: str | None) -> Setup:
    """What the file says, and the options, which speak for all groups that it does not name."""
    from recovery.checkback.config import EVERY_GROUP, Setup, load
    from recovery.checkback.specs import check_spec

    setup = Setup() if config is None else load(config)
    spec = {name: value for name, value in options.items() if value}
    if not spec:
        return setup
    check_spec(spec, "the options together")
    if "http" in spec:
        spec["token"] = secret(HTTP_TOKEN)  # for this endpoint alone, and for none that the file names
    return Setup(setup.policy, {**setup.resolvers, EVERY_GROUP: spec})


def _meant(
    store: LiveStore, ids: list[str] | None, all_parked: bool, topic: str | None, group: str | None,
    damaged: list[CorruptStore],
) -> list[Half]:  # fmt: skip
    """`damaged` takes the error of each parked one that cannot be read: the others are decided all the same."""
    from recovery.checkback.manual import chosen, find

    if bool(ids) == all_parked:
        raise BadParameter("give IDs, or --all-parked")
    if ids and (topic or group):
        raise BadParameter("--topic and --group go with --all-parked")
    return find(store, ids) if ids else chosen(store, topic=topic, producer_group=group, damaged=damaged)


def _show_resolutions(found: Iterable[Resolution], as_json: bool, damaged: Sequence[CorruptStore]) -> None:
    listed = list(found)
    if as_json:
        print_json([one.as_json() for one in listed])
    else:
        for one in listed:
            why = f" ({one.why})" if one.why else ""
            show([printable(f"{one.message_id} {one.topic}: {one.result}{why}")])
        if not listed and not damaged:
            show(["Nothing was meant"])
    if damaged:
        raise damaged[0]
    if any(one.result == "refused" for one in listed):
        fail("", FINDINGS)


_EXAMPLES: dict[Callable[..., Any], tuple[str, str]] = {
    check_back: (
        "check-back",
        examples(
            "check-back shop.store --ledger sqlite:///shop.db",
            "check-back shop.store --config check-back.toml --every 30s",
            "check-back shop.store --call shop.orders:was_saved --dry-run",
        ),
    ),
    park_list: ("park-list", examples("park-list shop.store", "park-list shop.store --json | jq '.[].message_id'")),
    resolve: (
        "resolve",
        examples(
            'resolve shop.store 7F00000100002A9F00000000000004D2 --commit --why "paid, ticket 12"',
            'resolve shop.store --all-parked --topic stock --rollback --why "drill" --dry-run',
        ),
    ),
    recheck: ("recheck", examples("recheck shop.store 1234", "recheck shop.store --all-parked")),
}


def register(app: VerbGroup) -> None:
    """Put these verbs on the command line."""
    for verb, (name, epilog) in _EXAMPLES.items():
        app.verb(verb, name, epilog=epilog, **listing(name))
    policy = VerbGroup("policy", help="The check-back policy.", no_args_is_help=True)
    policy.verb(
        policy_explain,
        "explain",
        epilog=examples("policy explain orders", "policy explain orders --config check-back.toml"),
    )
    app.add_group(policy, **listing("policy"))
