"""Makes the secrets of the compose file, each a file in docker/secrets: `python docker/make_secrets.py [LEDGER_URL]`.

A file that is there is left as it is. Every user may read the files, as the containers' user must; the directory, which
no container sees, is open to its owner alone.
"""

from __future__ import annotations

import base64
import json
import secrets
import sys
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).parent / "secrets"
# What goes between Spark's driver, master, workers and executors.
ENCRYPTED = {"spark.network.crypto.enabled": "true"}
# Files with one secret: made together, or not at all.
TOGETHER = ({"postgres_password", "sql_alchemy_conn"}, {"connections.json", "spark.conf"})
ACL = """accounts:
  - accessKey: shop-client
    secretKey: {secret}
    defaultTopicPerm: PUB|SUB
    defaultGroupPerm: SUB
"""


def wanted(ledger_url: str) -> dict[str, str]:
    """What each file holds; no two runs make the same."""
    spark_secret = secrets.token_hex(32)
    cluster = {"spark.authenticate": "true", "spark.authenticate.secret": spark_secret, **ENCRYPTED}
    password, admin = secrets.token_hex(24), secrets.token_urlsafe(12)
    spark = {"conn_type": "spark", "host": "spark://spark-master", "port": 7077, "password": spark_secret}
    shop = {"conn_type": "checkback", "password": ledger_url, "extra": {"path": "/stores/shop.store"}}
    return {
        "fernet_key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "jwt_secret": secrets.token_hex(32),
        "postgres_password": password,
        "sql_alchemy_conn": f"postgresql+psycopg://airflow:{password}@postgres/airflow",
        "airflow_passwords.json": json.dumps({"admin": admin}),
        "connections.json": json.dumps({"shop": shop, "checkback_spark": {**spark, "extra": ENCRYPTED}}),
        "spark.conf": "".join(f"{name} {value}\n" for name, value in cluster.items()),
        "plain_acl.yml": ACL.format(secret=secrets.token_hex(16)),
    }


def _held(name: str) -> Any:
    """What a file of JSON says, nothing where it is not there; a person may have written in it."""
    path = DIRECTORY / name
    if not path.exists():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        sys.exit(f"{path} is not JSON ({error}): correct it, or move it away. Nothing was written")


def _check_arguments(arguments: list[str]) -> None:
    """Whatever is given becomes the password of a connection: one that is not a URL is noticed much later."""
    if len(arguments) > 1 or not all("://" in one for one in arguments):
        sys.exit(
            "usage: python docker/make_secrets.py [LEDGER_URL], which is a SQLAlchemy URL, such as "
            "postgresql+psycopg://shop:PASSWORD@db/shop. Nothing was written"
        )


def _check_ledger(url: str) -> None:
    """A URL that is given is in the file that is there, or nothing is done: it would be left out without a word."""
    path = DIRECTORY / "connections.json"
    if (held := _held(path.name)) and held.get("shop", {}).get("password") != url:
        sys.exit(
            f"{path} is there, and has another ledger, or none: write the URL into it, as password of the connection "
            "shop, or move it and spark.conf away: both are made then. Nothing was written"
        )


def main(arguments: list[str]) -> None:
    """Write the files that are missing, and say how to log in."""
    arguments = [one for one in arguments if one]  # an empty variable of a shell names no ledger
    _check_arguments(arguments)
    DIRECTORY.mkdir(exist_ok=True)
    DIRECTORY.chmod(0o700)
    files = wanted(arguments[0] if arguments else "")
    login = _held("airflow_passwords.json") or json.loads(files["airflow_passwords.json"])
    if arguments:
        _check_ledger(arguments[0])
    for together in TOGETHER:
        there = sorted(name for name in together if (DIRECTORY / name).exists())
        if there and len(there) < len(together):
            (missing,) = together - set(there)
            sys.exit(
                f"{DIRECTORY / missing} is missing, and {there[0]}, which is there, has the password that it needs. "
                f"Write it with that password, or move {there[0]} away: both are made then. Nothing was written"
            )
        if there:
            files = {name: text for name, text in files.items() if name not in together}
    for name, text in files.items():
        path = DIRECTORY / name
        if not path.exists():
            beside = path.with_name(f".{name}.new")  # a run that was killed leaves no half of a secret under its name
            beside.unlink(missing_ok=True)
            beside.write_text(text, encoding="utf-8")
            beside.chmod(0o444)
            beside.rename(path)
    for user, password in login.items():
        print(f"Airflow: http://127.0.0.1:8080   user {user}, password {password}")
    print("The accounts of `checkback serve` are in docker/secrets/plain_acl.yml")


if __name__ == "__main__":
    main(sys.argv[1:])
