"""The connection type `checkback`: a store, its application's ledger, who else is asked, and the policy.

CheckbackHook("shop").store()          the store, open for reading
AIRFLOW_CONN_SHOP='{"conn_type": "checkback", "extra": {"path": "/srv/shop.store"}}'
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlencode, urlsplit

from recovery.airflow.settings import BadSettings
from recovery.airflow.versions import AirflowNotFoundException, BaseHook, mask

if TYPE_CHECKING:
    import broker

NAMES = ("path", "catalog", "resolver", "resolvers", "policy")
SPARK_CONNECTION = "checkback_spark"
AIRFLOWS_SPARK = "spark_default"  # Airflow makes it by itself, for a master that nobody has
_JSON = ("resolvers", "policy")
WEB_SCHEMES = ("http", "https")
_IPV6 = re.compile(r"[0-9A-Fa-f.]*(?::[0-9A-Fa-f.]*){2,}")
_DRIVERS = {"postgres": "postgresql+psycopg", "mysql": "mysql+pymysql", "sqlite": "sqlite"}


class CheckbackHook(BaseHook):
    """A store, as a connection describes it. The ledger's URL is the connection's password, since it may hold one."""

    conn_name_attr = "checkback_conn_id"
    default_conn_name = "checkback_default"
    conn_type = "checkback"
    hook_name = "checkback store"

    def __init__(self, checkback_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.checkback_conn_id = checkback_conn_id
        self._settings: dict[str, Any] | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """What the connection says: path, ledger, catalog, resolver, policy. Raises BadSettings."""
        if self._settings is None:
            self._settings = self._read()
        return self._settings

    @property
    def path(self) -> str:
        """The store's directory."""
        return str(self.settings["path"])

    def store(self) -> broker.Store:
        """The store, open for reading; close it."""
        import broker

        return broker.open(self.path, read_only=True)

    def get_conn(self) -> broker.Store:
        """As Airflow calls `store`."""
        return self.store()

    def test_connection(self) -> tuple[bool, str]:
        """Whether the store can be read, the policy makes sense, and each ledger and resolver is there."""
        from broker.errors import BrokerError
        from recovery.jobs.checks import check_settings

        try:
            return True, check_settings(**with_secrets(self.settings))
        except (BrokerError, OSError, AirflowNotFoundException) as error:
            return False, str(error)

    def _read(self) -> dict[str, Any]:
        connection = self.get_connection(self.checkback_conn_id)
        extra = _extra(connection)
        found = {name: extra.get(name) or None for name in NAMES}
        if not found["path"]:
            text = f"the connection {self.checkback_conn_id} names no store: give it a path, the directory of the store"
            raise BadSettings(text)
        for name in ("path", "catalog", "resolver"):
            if not isinstance(found[name] or "", str):
                where = f"{name} of connection {self.checkback_conn_id}"
                raise BadSettings(f"{where} is a text, not {found[name]!r:.40}")
        if not os.path.isabs(found["path"]):
            text = f"the connection {self.checkback_conn_id} has the path {found['path']!r:.60}: give the whole path"
            raise BadSettings(f"{text}, from / on, since each process of Airflow has a working directory of its own")
        for name in _JSON:
            value = found[name]
            if isinstance(value, str):
                found[name] = self._parsed(name, value)
        return {**found, "ledger": connection.password or None}

    def _parsed(self, name: str, text: str) -> Any:
        """What a field of the form holds as JSON."""
        try:
            return json.loads(text)
        except ValueError as error:
            where = f"{name} of connection {self.checkback_conn_id}"
            raise BadSettings(f'{where} is not JSON ({error}); it looks like {{"*": {{"interval": "30s"}}}}') from None
        except RecursionError:
            text = f"{name} of connection {self.checkback_conn_id}: its values are nested too deeply"
            raise BadSettings(f"{text}. Give tables of names and values") from None


# URLs that hold passwords: they come from connections, at run time, and are masked in every log


def with_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the URLs that their connections name, each masked.

    `ledger_connection` becomes `ledger` and `resolver_connection` `resolver`; in `resolvers`, by producer group,
    `ledger_connection` becomes `ledger` and `http_connection` `http`. Raises BadSettings when a URL cannot be made.
    """
    found = dict(settings)
    if name := found.pop("ledger_connection", None):
        found["ledger"] = database_url(name)
    if name := found.pop("resolver_connection", None):
        found["resolver"] = http_url(name)
    if isinstance(resolvers := found.get("resolvers"), Mapping):
        found["resolvers"] = {group: _spec(spec) for group, spec in resolvers.items()}
    for url in _urls(found):
        _mask(url)
    return found


def database_url(conn_id: str) -> str:
    """The SQLAlchemy URL of a database's connection.

    It is the connection's password, if that is a URL; else it is made of host, schema, login and password, with the
    driver of the connection's type, or the one that `driver` in its extra names; for PostgreSQL with what the extra
    says about TLS (`sslmode` and its like). Raises BadSettings.
    """
    connection = BaseHook.get_connection(conn_id)
    if "://" in (connection.password or ""):
        return str(connection.password)
    extra = _extra(connection)
    driver = extra.get("driver") or _DRIVERS.get(connection.conn_type)
    if not isinstance(driver, str):
        known = ", ".join(_DRIVERS)
        text = (
            f"is of type {connection.conn_type}; it needs one of {known}, a driver in its extra, or a URL as password"
        )
        raise BadSettings(f"the connection {conn_id} names no database: it {text}")
    if driver.startswith("sqlite"):  # a file: Airflow has its path as host, and as schema where the connection is a URI
        return f"{driver}:///{connection.host or connection.schema or ''}"
    place = f"{_userinfo(connection)}{_place(connection.host or '', connection.port)}"
    tls = {name: value for name, value in extra.items() if name.startswith("ssl")} if "postgres" in driver else {}
    return f"{driver}://{place}/{connection.schema or ''}{f'?{urlencode(tls)}' if tls else ''}"


def http_url(conn_id: str) -> str:
    """The URL of a connection of type http: host, schema and port, and `endpoint` of its extra. Raises BadSettings."""
    connection = BaseHook.get_connection(conn_id)
    return http_address(connection, _userinfo(connection))


def http_address(connection: Any, userinfo: str = "") -> str:
    """Where a connection of type http leads, without its login unless `userinfo` is it. Raises BadSettings.

    A path may follow the host, and `endpoint` may begin without a slash: it is never part of the host's name. Of a
    connection that is a URI (AIRFLOW_CONN_ONCALL=https://hooks.example/T0) Airflow has the path as its schema.
    """
    host = connection.host or ""
    if not host:
        raise BadSettings(f"the connection {connection.conn_id} has no host")
    usual = "https" if connection.conn_type == "https" else "http"  # as AIRFLOW_CONN_ONCALL=https://… is read
    scheme, _, rest = host.rpartition("://")
    name, slash, path = rest.partition("/")
    schema = connection.schema or usual
    if not scheme and schema not in WEB_SCHEMES:
        schema, slash, path = usual, "/", schema
    endpoint = str(_extra(connection).get("endpoint", ""))
    if endpoint and not endpoint.startswith(("/", "?")):
        endpoint = f"/{endpoint}"
    whole = f"{slash}{path}".rstrip("/") + endpoint if endpoint else f"{slash}{path}"
    return f"{scheme or schema}://{userinfo}{_place(name, connection.port)}{whole}"


def spark_connection(engine: str) -> tuple[str | None, dict[str, str]]:
    """The master that the connection `checkback_spark` names, and Spark's settings in its extra (`spark.…`).

    With a standalone cluster (`spark://…`) its password is `spark.authenticate.secret`; Airflow masks it in logs.
    (None, {}) without the connection. The engine `spark`, which a person chose, may use Airflow's `spark_default`, too:
    of that the password is nothing that we know.
    """
    for conn_id in (SPARK_CONNECTION, AIRFLOWS_SPARK) if engine == "spark" else (SPARK_CONNECTION,):
        try:
            connection = BaseHook.get_connection(conn_id)
        except AirflowNotFoundException:
            continue
        host = connection.host or ""
        master = f"{host}:{connection.port}" if host and connection.port else host or None
        found = {name: str(value) for name, value in _extra(connection).items() if name.startswith("spark.")}
        if connection.password and conn_id == SPARK_CONNECTION and host.startswith("spark://"):
            found = {"spark.authenticate": "true", "spark.authenticate.secret": connection.password, **found}
        return master, found
    return None, {}


def _extra(connection: Any) -> Mapping[str, Any]:
    """The extra of a connection. Raises BadSettings for JSON of another kind, which Airflow takes."""
    found = connection.extra_dejson
    if not isinstance(found, Mapping):
        text = "has names and values, as {...}, and no other JSON"
        raise BadSettings(f"the extra of connection {connection.conn_id} {text}")
    return found


def _place(host: str, port: int | None) -> str:
    """HOST:PORT; an address of IPv6 stands in brackets."""
    name = f"[{host}]" if _IPV6.fullmatch(host) else host
    return f"{name}:{port}" if port else name


def _userinfo(connection: Any) -> str:
    if not connection.login:
        return ""
    password = f":{quote(connection.password, safe='')}" if connection.password else ""
    return f"{quote(connection.login, safe='')}{password}@"


def _spec(spec: Any) -> Any:
    if not isinstance(spec, Mapping):
        return spec
    made = dict(spec)
    if name := made.pop("ledger_connection", None):
        made["ledger"] = database_url(name)
    if name := made.pop("http_connection", None):
        made["http"] = http_url(name)
    return made


def _urls(settings: Mapping[str, Any]) -> Iterator[str]:
    resolvers = settings.get("resolvers") or {}
    specs = [spec for spec in resolvers.values() if isinstance(spec, Mapping)] if isinstance(resolvers, Mapping) else []
    for values in (settings, *specs):
        for name in ("ledger", "resolver", "catalog", "http"):
            value = values.get(name)
            yield from [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]


def _mask(url: str) -> None:
    """Airflow's logs, and what it renders, show *** where the password stands, quoted or not."""
    try:
        parts = urlsplit(url)
        if parts.password:
            mask(parts.password)
            mask(unquote(parts.password))
    except ValueError:  # no URL at all
        return
