"""Assets: what the DAGs publish about a store, so that other DAGs can start when it was verified, rebuilt, recovered.

verified(store)     checkback://shop/verified     with the verification's summary as metadata
schedule=[Asset("checkback://shop/verified")]     in anybody's DAG
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

if TYPE_CHECKING:
    from airflow.sdk import Asset
    from openlineage.client.event_v2 import Dataset

SCHEME = "checkback"


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """What Airflow asks before it takes a `checkback://` URI. Raises ValueError when it names no store or no thing."""
    if not uri.netloc or uri.path in ("", "/"):
        raise ValueError("an asset of checkback names a store and a thing of it, as in checkback://shop/verified")
    return uri


def create_asset(*, store: str, thing: str, extra: dict[str, Any] | None = None) -> Asset:
    """The asset for one thing of a store; the name is the URI, so that two DAG files that name it mean the same."""
    from airflow.sdk import Asset

    uri = f"{SCHEME}://{store}/{quote(thing)}"
    return Asset(name=uri, uri=uri, group=SCHEME, extra=extra or {})


def openlineage_dataset(asset: Asset, _lineage_context: object = None) -> Dataset:
    """The same thing by OpenLineage's names: namespace checkback://STORE, and the thing."""
    from openlineage.client.event_v2 import Dataset

    uri = urlsplit(asset.uri)
    return Dataset(namespace=f"{SCHEME}://{uri.netloc}", name=unquote(uri.path.removeprefix("/")))


def verified(store: str) -> Asset:
    """A verification is done."""
    return create_asset(store=store, thing="verified")


def rebuilt(store: str) -> Asset:
    """The state table was compared with the CommitLog, and swapped where it differed."""
    return create_asset(store=store, thing="rebuilt")


def recovered(store: str) -> Asset:
    """A crash was recovered from."""
    return create_asset(store=store, thing="recovered")
