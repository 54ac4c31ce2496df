"""A wrong argument is one sentence when the DAG is parsed; one that is rendered in a run is one there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, Param

from recovery.airflow.operators import CheckBackOperator, PlanRecoveryOperator, RetentionOperator, VerifyOperator
from recovery.airflow.sensors import CrashSensor, InDoubtSensor, MessageSensor
from recovery.airflow.settings import BadSettings
from recovery.airflow.triggers import CrashTrigger, InDoubtTrigger, MessageTrigger
from recovery.airflow.versions import AirflowFailException


@pytest.mark.parametrize(
    ("kind", "arguments", "sentence"),
    [
        (
            InDoubtSensor,
            {"older_than_s": "abc"},
            "InDoubtSensor 'one': older_than_s cannot be 'abc': it is a",
        ),
        (InDoubtSensor, {"older_than_s": None}, "older_than_s cannot be None"),
        (InDoubtSensor, {"older_than_s": True}, "older_than_s cannot be True"),
        (InDoubtSensor, {"older_than_s": float("nan")}, "older_than_s cannot be nan"),
        (MessageSensor, {"topic": ""}, "the topic has no name"),
        (MessageSensor, {"topic": None}, "the name of a topic is text, not None"),
        (
            MessageSensor,
            {"topic": "orders", "starts": "latest"},
            "starts cannot be 'latest': it has a queue",
        ),
        (CrashSensor, {"path": 5}, "path cannot be 5"),
        (CrashSensor, {"connection": "postgresql://u:PW@h/d"}, "connection cannot be that: it is the name of"),
        (VerifyOperator, {"engine": "sprak"}, "engine cannot be 'sprak': it is one of auto, local, spark"),
        (CheckBackOperator, {"policy": {"*": {"interval": "soon"}}}, "interval cannot be 'soon'"),
        (
            CheckBackOperator,
            {"ledger_connection": "mysql://u:PW@h/d"},
            "ledger_connection cannot be that",
        ),
        (PlanRecoveryOperator, {"ask": "maybe"}, "ask cannot be 'maybe': it is true or false"),
        (RetentionOperator, {"keep": "some days"}, "keep cannot be 'some days': a duration is"),
        (RetentionOperator, {"max_bytes": "lots"}, "max_bytes cannot be 'lots': a size is"),
        (RetentionOperator, {"even_unread": "perhaps"}, "even_unread cannot be 'perhaps'"),
    ],
)
def test_a_wrong_argument_is_one_sentence_at_the_parse(kind: Any, arguments: dict[str, Any], sentence: str) -> None:
    """It was a traceback of a run, at night; a text that nobody can read as yes or no asked no person."""
    with DAG("one"), pytest.raises(BadSettings, match=sentence) as raised:
        kind(task_id="one", **{"path": "/srv/shop.store", **arguments})
    assert "PW" not in str(raised.value)


@pytest.mark.parametrize(
    "trigger",
    [
        lambda: MessageTrigger(path="/x", topic="orders", poll_s=0),
        lambda: CrashTrigger(path="/x", again_s="often"),  # type: ignore[arg-type]
        lambda: InDoubtTrigger(path="/x", older_than_s="long"),  # type: ignore[arg-type]
    ],
)
def test_a_watcher_with_a_wrong_argument_is_refused(trigger: Callable[[], Any]) -> None:
    """One that looks without a pause takes the triggerer from all others."""
    with pytest.raises(BadSettings, match="cannot be"):
        trigger()


def test_what_is_known_in_a_run_is_left_to_it() -> None:
    """Templates, whole or inside of a table, and results of tasks; a path may be a Path, a queue a number."""
    with DAG("one", params={"age": Param(600)}) as dag:
        verify = VerifyOperator(task_id="verify", path="/x", engine="{{ params.engine }}")
        InDoubtSensor(task_id="template", path="/x", older_than_s="{{ params.age }}")
        InDoubtSensor(task_id="result", path=verify.output["path"], older_than_s=dag.param("age"))  # type: ignore[arg-type]
        CheckBackOperator(task_id="nested", path="/x", policy={"*": {"interval": "{{ params.age }}"}})
        assert CrashSensor(task_id="path", path=Path("/x")).path == "/x"  # type: ignore[arg-type]
        assert MessageSensor(task_id="queue", path="/x", topic="orders", starts={0: 5}).starts == {"0": 5}  # type: ignore[dict-item]


def test_what_was_rendered_is_checked_before_anything_is_done() -> None:
    """Without another attempt: a field of a form that was left empty stays so."""
    with DAG("form"):
        for one in (
            InDoubtSensor(task_id="sensor", path="/x", older_than_s="{{ params.age }}"),
            RetentionOperator(task_id="operator", path="/x", keep="{{ params.age }}"),
        ):
            one.older_than_s = one.keep = "None"  # type: ignore[union-attr]
            with pytest.raises(AirflowFailException, match=r"(older_than_s|keep) cannot be 'None': (it|a duration) is"):
                one.pre_execute({})  # type: ignore[typeddict-item]


def test_an_attribute_of_somebody_elses_operator_is_not_checked() -> None:
    """A class that extends one of ours may call something else `topic`."""

    class Announcing(VerifyOperator):
        def __init__(self, *, topic: str | None = None, ask: str = "Shall I?", **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.topic, self.ask = topic, ask

    with DAG("extended"):
        extended = Announcing(task_id="extended", path="/x")
    extended.pre_execute({})  # type: ignore[typeddict-item]
    extended.engine = ""
    with pytest.raises(AirflowFailException, match="engine cannot be ''"):
        extended.pre_execute({})  # type: ignore[typeddict-item]
