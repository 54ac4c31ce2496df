"""CloudEvents attributes as properties of a message, in the binding that the Java SDK has for RocketMQ.

    CE_specversion  1.0                         CE_contenttype    application/json
    CE_id           unique with CE_source       CE_type           the kind of event
    CE_source       the application             CE_time           RFC 3339, UTC
    CE_schemaversion  an extension: the version of the body's schema, a whole number

Binary mode: the body is the data alone. In RocketMQ's binding the content type is CE_contenttype, elsewhere
datacontenttype. CloudEvents 1.0.2; sdk-java: io.cloudevents.rocketmq.RocketmqConstants;
rocketmq-externals: rocketmq-transport-binding.md.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime

SPEC_VERSION, CONTENT_TYPE, TYPE = "CE_specversion", "CE_contenttype", "CE_type"
ID, SOURCE, TIME, SCHEMA_VERSION = "CE_id", "CE_source", "CE_time", "CE_schemaversion"


def attributes(
    *, event_type: str, source: str, content_type: str, now_ms: int, version: int | None = None, key: str | None = None
) -> dict[str, str]:
    """The properties of an event. A business `key` is its id: a repeated event has the same source and id."""
    found = {
        SPEC_VERSION: "1.0",
        ID: key or uuid.uuid4().hex,
        SOURCE: source,
        TYPE: event_type,
        TIME: datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        CONTENT_TYPE: content_type,
    }
    if version is not None:
        found[SCHEMA_VERSION] = str(version)
    return found


def content_type(properties: Mapping[str, str]) -> str:
    """The media type of a body without its parameters, in lower case; empty when the message does not say."""
    return properties.get(CONTENT_TYPE, "").partition(";")[0].strip().lower()


def schema_version(properties: Mapping[str, str]) -> int | None:
    """The version of a body's schema; None when the message does not say, or not as a number."""
    version = properties.get(SCHEMA_VERSION, "")
    return int(version) if version.isascii() and version.isdigit() and len(version) < 10 else None
