"""Keep databases of a MariaDB server equal to a tenant's: `python examples/to_mariadb.py mysql://root@127.0.0.1:3306`.

Start it, kill it, start it again, as often as you like: the rows of a page and the page's cursor are one transaction of
the replica. Needs nothing but the base install. `--once` ends at what is served now.

    page without DDL    what it leaves of each row, by primary key: DELETE of every key that it touches, then INSERT
    page with DDL       tables that are others now are made anew from their definition and their rows as of the page's
                        end; the rest as above

A page ends between two commits, so in both cases a table is what it was upstream at the page's end. Tables without a
primary key are read anew whenever a page touches them: nothing else tells which of two equal rows is meant. DDL commits
by itself in MariaDB; so a table that is to be made anew is marked so in the list of tables first, and a restarted
process makes it again, as of the end of its first page.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

import pymysql

from tistream.client import Page, SqlCursorStore, Tenant, connect

Name = tuple[str, str]  # database, table
STATE = "tistream_replica"  # the database of the cursor and of the list of tables
MODE = "NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES"
ROWS_PER_STATEMENT = 200
INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "year")
BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")


def replicate(source: Tenant, to: pymysql.Connection[Any], *, rows_per_page: int, once: bool) -> Iterator[Page]:
    """Apply page after page; yields each when it is committed."""
    replica = Replica(source, to)
    store = SqlCursorStore(to, f"{source.cluster_id}/{source.tenant_id}", table=f"{STATE}.cursors")
    if store.load() is None:
        ts = source.splits(start="latest", end="latest")["start_ts"]
        replica.forget()
        replica.bring_to(int(ts), [])
        store.save(source.page(start=ts, end=ts).next_cursor)
    applied = None
    read = source.changes if once else source.follow
    for page in read(store=store, limit=rows_per_page).pages():
        if applied is not None:
            yield applied
        events = [json.loads(line) for line in page.lines()]
        if page.quarantined:
            raise SystemExit(f"{page.quarantined} rows cannot be decoded: the replica stays before them.")
        if events:
            replica.bring_to(int(events[-1].get("commit_ts") or events[-1]["resolved_ts"]), events)
        applied = page
    if applied is not None:
        yield applied


@dataclass
class Replica:
    """The tables in MariaDB, and the list of those that are in place."""

    source: Tenant
    to: pymysql.Connection[Any]
    _columns: dict[Name, dict[str, str]] = field(default_factory=dict)  #: name -> its columns' types
    _keys: dict[Name, list[str]] = field(default_factory=dict)  #: name -> its primary key
    _is_checked: bool = False

    def __post_init__(self) -> None:
        self._run(f"CREATE DATABASE IF NOT EXISTS {STATE}")
        self._run(
            f"CREATE TABLE IF NOT EXISTS {STATE}.tables (db VARCHAR(64) COLLATE utf8mb4_bin, "
            "name VARCHAR(64) COLLATE utf8mb4_bin, made_as LONGTEXT NOT NULL, PRIMARY KEY (db, name))"
        )
        self.to.commit()

    def forget(self) -> None:
        """Have all tables made anew: their position is unknown."""
        self._run(f"UPDATE {STATE}.tables SET made_as = ''")

    def bring_to(self, ts: int, events: list[dict[str, Any]]) -> None:
        """From the end of the page before to `ts`, the end of the page with these events. Not committed yet."""
        named = {(e["database"], e["table"]) for e in events if e["type"] == "ddl"}
        if named or not self._is_checked:
            made_anew = self._make(ts, named)
            self._is_checked = True
        else:
            made_anew = set()
        touched: dict[Name, dict[str, list[dict[str, Any]]]] = {}
        for event in events:
            if event["type"] in ("insert", "update", "delete"):
                table = touched.setdefault((event["database"], event["table"]), {})
                table.setdefault(event["key"], []).append(event)
        for name, rows in touched.items():
            if name in made_anew or name not in self._columns:
                continue  # its rows are there already, or it is gone
            if self._keys[name]:
                self._write(name, list(rows.values()))
            else:
                self._run(f"DELETE FROM {quoted(*name)}")
                self._load(name, ts)

    # -- tables ------------------------------------------------------------------------------------------------------

    def _make(self, ts: int, named: set[Name]) -> set[Name]:
        """Make, drop and fill tables until they are those of `ts`; which ones were made."""
        there = self._upstream(ts)
        here = {(db, name): made_as for db, name, made_as in self._run(f"SELECT * FROM {STATE}.tables")}
        anew = {name for name, made_as in there.items() if here.get(name) != made_as or name in named}
        gone = here.keys() - there.keys()
        self._refuse_strangers(anew - here.keys())
        for name in sorted(anew):
            self._list(name, "")  # DDL commits by itself: a process that dies from here on makes it again
        self.to.commit()
        for name in sorted(anew | gone):
            self._run(f"CREATE DATABASE IF NOT EXISTS {quoted(name[0])}")
            self._run(f"DROP TABLE IF EXISTS {quoted(*name)}")
        for name in sorted(anew):
            made = self.source.table(name[1], database=name[0]).definition(as_of=ts, dialect="mariadb")
            self.to.select_db(name[0])
            self._run(made["create_table"])
        for name in sorted(anew):
            self._load(name, ts)
            self._list(name, there[name])
        for name in sorted(gone):
            self._run(f"DELETE FROM {STATE}.tables WHERE db = %s AND name = %s", *name)
        self._learn(there)
        return anew

    def _refuse_strangers(self, names: set[Name]) -> None:
        """Refuse tables that another program made."""
        for db, name in self._run("SELECT table_schema, table_name FROM information_schema.tables"):
            if (db, name) in names:
                raise SystemExit(f"{db}.{name} is there already, and not made from here: drop it first.")

    def _list(self, name: Name, made_as: str) -> None:
        self._run(f"REPLACE INTO {STATE}.tables VALUES (%s, %s, %s)", *name, made_as)

    def _upstream(self, ts: int) -> dict[Name, str]:
        """The tables at `ts`, each with what it must have been made as. Views and sequences have no rows to keep."""
        found = {}
        for database in self.source.databases(as_of=ts):
            db = database["database"]
            items = self.source.tables(db, as_of=ts)
            found |= {(db, t["table"]): json.dumps(t, sort_keys=True) for t in items if t["kind"] == "table"}
        return found

    def _learn(self, there: dict[Name, str]) -> None:
        """How the tables look, as MariaDB has them."""
        self._columns = {name: {} for name in there}
        for db, table, column, kind in self._run(
            "SELECT table_schema, table_name, column_name, data_type FROM information_schema.columns"
        ):
            if (db, table) in self._columns:
                self._columns[db, table][column] = kind.lower()
        self._keys = {name: json.loads(made_as)["primary_key"] for name, made_as in there.items()}

    def _load(self, name: Name, ts: int) -> None:
        """All rows as of `ts`: the service writes the statements, one to a line end behind a semicolon."""
        rest = b""
        for piece in self.source.table(name[1], database=name[0]).rows(as_of=ts).pieces("sql"):
            *statements, rest = (rest + piece).split(b";\n")
            for statement in statements:
                self._run(statement)
        self._run(f"SET sql_mode = 'STRICT_ALL_TABLES,{MODE}'")

    # -- rows --------------------------------------------------------------------------------------------------------

    def _write(self, name: Name, rows: list[list[dict[str, Any]]]) -> None:
        """What the changes of these rows (each row's own, in their order) leave."""
        key, columns = self._keys[name], self._columns[name]
        gone = [row[0]["old"] for row in rows if row[0]["old"]]
        there = [row[-1]["columns"] for row in rows if row[-1]["columns"]]
        where = f"({','.join(map(quoted, key))})"
        for some in pieces([tuple(value(row[c], columns[c]) for c in key) for row in gone + there]):
            marks = ",".join(["(" + ",".join(["%s"] * len(key)) + ")"] * len(some))
            self._run(f"DELETE FROM {quoted(*name)} WHERE {where} IN ({marks})", *(v for row in some for v in row))
        names = ",".join(map(quoted, columns))
        for some in pieces([tuple(value(row[c], kind) for c, kind in columns.items()) for row in there]):
            strict = "" if any("" in row for row in some) else "STRICT_ALL_TABLES,"  # "" is what a bad ENUM label is
            marks = ",".join(["(" + ",".join(["%s"] * len(columns)) + ")"] * len(some))
            words = (
                f"SET STATEMENT sql_mode = '{strict}{MODE}' FOR INSERT INTO {quoted(*name)} ({names}) VALUES {marks}"
            )
            self._run(words, *(v for row in some for v in row))

    def _run(self, words: str | bytes, *values: object) -> tuple[tuple[Any, ...], ...]:
        with self.to.cursor() as cursor:
            cursor.execute(words, values or None)  # type: ignore[arg-type]
            return tuple(cursor.fetchall())


def value(given: Any, kind: str) -> Any:
    """A value of the NDJSON as MariaDB takes it into a column of this type, and compares it exactly."""
    if given is None:
        return None
    if kind in INTEGERS:
        return int(given)
    if kind == "decimal":
        return Decimal(given)
    if kind == "float":  # all digits: servers refuse the largest one with fewer
        return struct.unpack("<f", struct.pack("<f", given))[0]
    if kind in BYTES or kind == "bit":
        raw = base64.b64decode(given, validate=True)
        return int.from_bytes(raw, "big") if kind == "bit" else raw
    return json.dumps(given, separators=(",", ":")) if isinstance(given, list) else given  # a VECTOR


def quoted(*names: str) -> str:
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def pieces(rows: list[tuple[Any, ...]]) -> Iterable[list[tuple[Any, ...]]]:
    return (rows[at : at + ROWS_PER_STATEMENT] for at in range(0, len(rows), ROWS_PER_STATEMENT))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("to", help="mysql://USER:PASSWORD@HOST:PORT of the replica")
    parser.add_argument("--url", default=os.environ.get("TISTREAM_URL", "http://127.0.0.1:8711"))
    parser.add_argument("--cluster", type=int, default=1)
    parser.add_argument("--tenant", type=int, default=1)
    parser.add_argument("--rows", type=int, default=5000, help="of a page, which is a transaction")
    parser.add_argument("--once", action="store_true", help="end at what is served now")
    asked = parser.parse_args()
    where = urlsplit(asked.to)
    to = pymysql.connect(
        host=where.hostname or "127.0.0.1", port=where.port or 3306, user=where.username or "root",
        password=where.password or "", charset="utf8mb4", autocommit=False,
        init_command=f"SET time_zone = '+00:00', foreign_key_checks = 0, sql_mode = 'STRICT_ALL_TABLES,{MODE}'",
    )  # fmt: skip
    with connect(asked.url) as client:
        source = client.tenant(asked.cluster, asked.tenant)
        for page in replicate(source, to, rows_per_page=asked.rows, once=asked.once):
            print(f"everything up to {page.resolved_ts} is served, committed page {page.next_cursor}", flush=True)


if __name__ == "__main__":
    main()
