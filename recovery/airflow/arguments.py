"""The arguments of operators, sensors and triggers: checked when a DAG is parsed, and again when they are rendered.

check(self, "older_than_s")     InDoubtSensor 'wait': older_than_s cannot be 'abc': it is a number of seconds from 0 on

A value that is known only in a run (a template, the result of a task, a field of a form) is left to the second time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from broker.errors import BrokerError
from recovery.airflow.operating.sense import NEVER, is_url
from recovery.airflow.settings import BadSettings
from recovery.jobs.setup import ENGINES

_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no", "none", "")
_TEMPLATES = ("{{", "{%", "{#")


def check(of: Any, *names: str, is_rendered: bool = False) -> None:
    """Check the attributes with these names; without names, all that were checked so far.

    An attribute of the same name that a class of somebody else has is none of ours. Raises BadSettings, with a sentence
    that shows no URL.
    """
    ours: list[str] = vars(of).setdefault("checked_arguments", [])
    ours += [one for one in names if one not in ours]
    for name in names or ours:
        value = getattr(of, name)
        if not is_rendered and _is_known_later(value):
            continue
        try:
            CHECKS[name](value)
        except (ValueError, TypeError, OverflowError, BrokerError) as error:
            shown = "that" if is_url(value) else f"{value!r:.40}"
            task_id = getattr(of, "task_id", "")
            which = f"{type(of).__name__} {task_id!r}" if task_id else type(of).__name__
            raise BadSettings(f"{which}: {name} cannot be {shown}: {error}") from None


def plain(path: Any) -> Any:
    """A path as text, so that Airflow's database and a trigger can hold it; any other value stays as it is."""
    return os.fspath(path) if isinstance(path, os.PathLike) else path


def by_queue(starts: Any) -> Any:
    """Queue offsets by queue id as text, as JSON has them: by a number none was found, and old messages were new."""
    return {str(queue): end for queue, end in starts.items()} if isinstance(starts, Mapping) else starts


def is_true(value: object) -> bool:
    """Whether a text that a template, or a form, gave is true. Raises ValueError for one that may mean anything."""
    text = str(value).strip().lower()
    if text not in _TRUE + _FALSE:
        raise ValueError("it is true or false")
    return text in _TRUE


def _is_known_later(value: Any) -> bool:
    if isinstance(value, str):
        return any(one in value for one in _TEMPLATES)
    if isinstance(value, Mapping):
        return any(_is_known_later(one) for one in value.values())
    return callable(getattr(value, "iter_references", None))  # what Airflow resolves in a run: XComArg, DagParam


def _path(value: object) -> None:
    if not isinstance(value, str | None):
        raise TypeError("it is a text, the directory of the store")


def _connection(value: object) -> None:
    """It is rendered, and kept in Airflow's database for all to read: a URL in its place would be, too."""
    if not isinstance(value, str | None):
        raise TypeError("it is the name of an Airflow connection")
    if is_url(value):
        text = "it is the name of an Airflow connection, and a URL is given: put the URL into a connection"
        raise ValueError(f"{text} (AIRFLOW_CONN_SHOP=URL), and give its name here (shop)")


def _engine(value: object) -> None:
    if value not in ENGINES:
        raise ValueError(f"it is one of {', '.join(ENGINES)}")


def _policy(value: Any) -> None:
    if value:
        from recovery.checkback.policy import parse_policy

        parse_policy(value)


def _from_zero(value: Any) -> None:
    _seconds(value, is_zero_right=True)


def _above_zero(value: Any) -> None:
    if value is not None:
        _seconds(value, is_zero_right=False)


def _seconds(value: Any, *, is_zero_right: bool) -> None:
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not (0 <= seconds < math.inf) or (seconds == 0 and not is_zero_right):
        raise ValueError(f"it is a number of seconds {'from' if is_zero_right else 'above'} 0{' on' * is_zero_right}")


def _topic(value: Any) -> None:
    from broker.format.topics import check_topic_name

    check_topic_name(value)


def _starts(value: Any) -> None:
    is_right = value is None or (
        isinstance(value, Mapping)
        and all(str(queue).isdecimal() for queue in value)
        and all(isinstance(end, int) and not isinstance(end, bool) for end in value.values())
    )
    if not is_right:
        raise ValueError("it has a queue offset for each queue, as in {'0': 17}")


def _duration(value: Any) -> None:
    from recovery.durations import parse_duration

    if value:
        parse_duration(value)


def _gone_after(value: Any) -> None:
    if value != NEVER:
        _duration(value)


def _size(value: Any) -> None:
    from recovery.humanize import parse_size

    if value and parse_size(value) <= 0:
        raise ValueError("it is above 0")


CHECKS: Mapping[str, Callable[[Any], object]] = {
    "path": _path,
    "connection": _connection,
    "ledger_connection": _connection,
    "resolver_connection": _connection,
    "engine": _engine,
    "policy": _policy,
    "ask": is_true,
    "broker_is_stopped": is_true,
    "even_unread": is_true,
    "keep": _duration,
    "gone_after": _gone_after,
    "max_bytes": _size,
    "free_bytes": _size,
    "older_than_s": _from_zero,
    "poll_s": _above_zero,
    "again_s": _above_zero,
    "topic": _topic,
    "starts": _starts,
}
