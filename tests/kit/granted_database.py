"""A database with the users and grants of docs/runbooks/create-database.md, on a server of the tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pymysql
from sqlalchemy import make_url

PAGE = Path(__file__).parents[2] / "docs" / "runbooks" / "create-database.md"


class Granted(NamedTuple):
    """The addresses of one database, by user."""

    services: str
    migrations: str


def statements() -> list[str]:
    """What the page has the administrator do."""
    (script,) = re.findall(r"<<'SQL'\n(.*?)\n *SQL\n", PAGE.read_text("utf-8"), re.DOTALL)
    return [line.strip().rstrip(";") for line in script.splitlines()]


def granted_database(server: str, name: str) -> Granted:
    """Make the database `name` and its two users, named after it, at the server with this address of root."""
    root = make_url(server)
    with pymysql.connect(host=root.host, port=root.port or 0, user="root") as conn, conn.cursor() as cursor:
        for statement in statements():
            cursor.execute(re.sub(r"\btistream\b|tistream(?=_)", name, statement))
    services = root.set(username=name, password="word-of-services", database=name)
    migrations = root.set(username=f"{name}_migrate", password="word-of-migrations", database=name)
    return Granted(*(url.render_as_string(hide_password=False) for url in (services, migrations)))
