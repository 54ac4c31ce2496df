"""docs/wire.md says what the code says. `python -m tests.server.test_wire_page` writes its table."""

from __future__ import annotations

import re
from pathlib import Path

from broker.remoting.codes import RequestCode as Code
from broker.server.dispatch import ROUTES, Level

PAGE = Path(__file__).resolve().parents[2] / "docs" / "wire.md"
BLOCK = re.compile(r"(<!-- requests -->\n)(.*?)(<!-- end -->)", re.DOTALL)

FROM_THE_SERVER = {
    Code.CHECK_TRANSACTION_STATE, Code.NOTIFY_CONSUMER_IDS_CHANGED, Code.PUSH_REPLY_MESSAGE_TO_CLIENT,
}  # fmt: skip
PARTLY = {
    Code.UPDATE_AND_CREATE_TOPIC: "at least as many read as write queues; none goes that holds messages; "
    "`order`, `topicSysFlag` not kept; of the attributes `message.type`, others are refused",
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: "`consumeEnable`, `consumeBroadcastEnable` and `retryMaxTimes` count; "
    "the others are kept, and have no effect",
    Code.UPDATE_BROKER_CONFIG: "five settings, until the server ends; no file is written",
    Code.GET_BROKER_CONFIG: "the settings that have a meaning here",
    Code.GET_NAMESRV_CONFIG: "the settings that have a meaning here",
    Code.VIEW_BROKER_STATS_DATA: "messages in by topic, and out by group",
    Code.SEND_REPLY_MESSAGE: "passed on to the client that asked, not stored",
    Code.SEND_REPLY_MESSAGE_V2: "passed on to the client that asked, not stored",
    Code.DELETE_TOPIC_IN_BROKER: "its configuration; messages stay until retention",
    Code.HEART_BEAT: "V1; a client uses V2 only where the server offers it",
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: "nothing to do: retention does it",
    Code.CLEAN_UNUSED_TOPIC: "nothing to do",
    Code.QUERY_ASSIGNMENT: "queues to pull from, none for POP; not with `--register`",
    Code.GET_KV_CONFIG: "kept until the server ends",
    Code.PUT_KV_CONFIG: "kept until the server ends",
}
WHY_NOT = {
    Code.UPDATE_NAMESRV_CONFIG: "would write any file: CVE-2023-37582",
    Code.REGISTER_BROKER: "the name server has one broker: this one",
    Code.UNREGISTER_BROKER: "the name server has one broker: this one",
    Code.RESET_CONSUMER_CLIENT_OFFSET: "a reset reaches clients with their next pull",
    Code.RECALL_MESSAGE: "a delayed message cannot be taken back",
}


def table() -> str:
    """Each request code with its mark."""
    lines = ["| code | request | | |", "|---|---|---|---|"]
    for code in Code:
        note = PARTLY.get(code) or WHY_NOT.get(code, "")
        mark = "◐" if code in PARTLY else "✓"
        if code in FROM_THE_SERVER:
            note = "sent by the server"
        elif code not in ROUTES:
            mark = "✗"
        elif ROUTES[code].level is Level.DANGEROUS:
            note = "; ".join(filter(None, (note, "needs `--admin`")))
        lines.append(f"| {int(code)} | {code.name} | {mark} | {note} |")
    return "\n".join(lines) + "\n"


def written_again(text: str) -> str:
    return BLOCK.sub(lambda block: block[1] + table() + block[3], text)


def test_the_table_is_that_of_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == written_again(text), "run: python -m tests.server.test_wire_page"


def test_every_note_is_about_a_code_of_its_kind() -> None:
    assert PARTLY.keys() <= ROUTES.keys()
    assert not WHY_NOT.keys() & ROUTES.keys()
    assert not FROM_THE_SERVER & ROUTES.keys()


if __name__ == "__main__":
    PAGE.write_text(written_again(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
