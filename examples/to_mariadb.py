"""Keep databases of a MariaDB server equal to a tenant's: `python examples/to_mariadb.py mysql://root@127.0.0.1:3306`.

Start it, kill it, start it again, as often as you like: the rows of a page and the page's cursor are one transaction of
the replica. Needs nothing but the base install. `--once` ends at what is served now.

    page without DDL    what it leaves of each row, by primary key: DELETE of every key that it touches, then INSERT
    page with DDL       tables that are others now are made anew from their definition and their rows as of the page's
                        end; the rest as above

A page ends between two commits, so in both cases a table is what it was upstream at the page's end. Only a
transaction with more than 64 MiB comes in several pages. Each is committed here, so until the last one the replica
has a part of the transaction (`page.open_transaction_ts`). Nothing of it is lost or applied twice, whenever the
process dies. Tables without a primary key are read anew whenever a page touches them: nothing else tells which of two
equal rows is meant. DDL commits by itself in MariaDB; so a table that is to be made anew is marked so in the list of
tables first, and a restarted process makes it again, as of the end of its first page.

A table whose definition or rows MariaDB refuses is left out, with a note that has the cause, and the rest continues.
Its later changes are counted. It is tried again when its definition changes and when the program starts; while one is
left out, the exit status is 1. What TiDB alone has (AUTO_RANDOM, TTL, ...) is left out of a table with a note.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
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
#: errors of MariaDB that are about its state and not about a table: full, out of memory or connections, shut down,
#: locked, interrupted, read-only, killed, timed out
OF_STATE = (1021, 1037, 1038, 1040, 1041, 1053, 1114, 1158, 1159, 1160, 1161, 1205, 1213, 1290, 1317, 1836, 1927, 1969)
STRINGS = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
#: what TiDB's definitions have and MariaDB's do not, where the service does not tell it with the definition
TIDB_ONLY = re.compile(
    r"\bAUTO_RANDOM(?:_BASE\s*=?\s*\d+|\s*\([\d\s,]*\))?|\bTTL\s*=\s*[^,;]+?\bINTERVAL\s+\d+\s+\w+|\bTTL_JOB_INTERVAL\b"
    r"|\bPLACEMENT\s+POLICY\s*=?\s*(?:`[^`]+`|\w+)|\b(?:SHARD_ROW_ID_BITS|PRE_SPLIT_REGIONS|AUTO_ID_CACHE)\s*=?\s*\d+",
    re.IGNORECASE,
)


def replicate(replica: Replica, *, rows_per_page: int, once: bool) -> Iterator[Page]:
    """Apply page after page; yields each when it is committed."""
    source = replica.source
    store = SqlCursorStore(replica.to, f"{source.cluster_id}/{source.tenant_id}", table=f"{STATE}.cursors")
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
        elif not replica.is_checked:
            replica.bring_to(page.resolved_ts, [])
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
    _made_as: dict[Name, str] = field(default_factory=dict)  #: name -> what it is made as upstream
    _left_out: set[Name] = field(default_factory=set)  #: what MariaDB has refused since the program started
    is_checked: bool = False  #: whether the tables are those of the source, since the program started

    def __post_init__(self) -> None:
        self._run(f"CREATE DATABASE IF NOT EXISTS {STATE}")
        self._run(
            f"CREATE TABLE IF NOT EXISTS {STATE}.tables (db VARCHAR(64) COLLATE utf8mb4_bin, "
            "name VARCHAR(64) COLLATE utf8mb4_bin, made_as LONGTEXT NOT NULL, PRIMARY KEY (db, name))"
        )
        self._run(
            f"ALTER TABLE {STATE}.tables ADD COLUMN IF NOT EXISTS cause TEXT NOT NULL DEFAULT '', "  # of a refusal
            "ADD COLUMN IF NOT EXISTS changes BIGINT NOT NULL DEFAULT 0"  # that were left out since
        )
        self.to.commit()

    def forget(self) -> None:
        """Have all tables made anew: their position is unknown."""
        self._run(f"UPDATE {STATE}.tables SET made_as = ''")

    def left_out(self) -> list[tuple[str, str, str, int]]:
        """Database, table, cause and number of later changes of each table that MariaDB has refused."""
        found = self._run(f"SELECT db, name, cause, changes FROM {STATE}.tables WHERE cause != '' ORDER BY db, name")
        return [(db, name, cause, changes) for db, name, cause, changes in found]

    def bring_to(self, ts: int, events: list[dict[str, Any]]) -> None:
        """From the end of the page before to `ts`, the end of the page with these events. Not committed yet."""
        for event in events:
            if event["type"] == "ddl":
                for note in TIDB_ONLY.findall(STRINGS.sub("''", event["query"])):
                    print(f"{event['database']}.{event['table']}: {note}: left out", file=sys.stderr)
        while refused := self._bring_to(ts, events):
            self.to.rollback()  # to where the page begins, or to what is marked as not made
            for name, cause in refused.items():
                self._leave_out(name, self._made_as[name], cause)
        self.is_checked = True

    def _bring_to(self, ts: int, events: list[dict[str, Any]]) -> dict[Name, str]:
        """The tables whose rows are refused, with the causes: the page must be begun again without them."""
        named = {(e["database"], e["table"]) for e in events if e["type"] == "ddl"}
        made_anew = self._make(ts, named) if named or not self.is_checked else set()
        touched: dict[Name, dict[str, list[dict[str, Any]]]] = {}
        for event in events:
            if event["type"] in ("insert", "update", "delete"):
                table = touched.setdefault((event["database"], event["table"]), {})
                table.setdefault(event["key"], []).append(event)
        refused: dict[Name, str] = {}
        for name, rows in touched.items():
            if name in self._left_out:
                count = f"UPDATE {STATE}.tables SET changes = changes + %s WHERE db = %s AND name = %s"
                self._run(count, sum(map(len, rows.values())), *name)
            elif name in self._columns and name not in made_anew:  # else its rows are there already, or it is gone
                refused |= self._refusal(name, partial(self._apply, name, [*rows.values()], ts))
        return refused

    def _apply(self, name: Name, rows: list[list[dict[str, Any]]], ts: int) -> None:
        """The changes of a table's rows, or all its rows anew where nothing tells them apart."""
        if self._keys[name]:
            self._write(name, rows)
        else:
            self._run(f"DELETE FROM {quoted(*name)}")
            self._load(name, ts)

    # -- tables ------------------------------------------------------------------------------------------------------

    def _make(self, ts: int, named: set[Name]) -> set[Name]:
        """Make, drop and fill tables until they are those of `ts`; which ones were made."""
        there = self._upstream(ts)
        known = {(db, name): rest for db, name, *rest in self._run(f"SELECT * FROM {STATE}.tables")}
        here = {name: made_as for name, (made_as, cause, _) in known.items() if not cause or name in self._left_out}
        anew = {name for name, made_as in there.items() if here.get(name) != made_as or name in named}
        gone = known.keys() - there.keys()
        self._refuse_strangers({name for name in anew if name not in known or known[name][1]})
        for name in sorted(anew):
            self._list(name, "")  # DDL commits by itself: a process that dies from here on makes it again
        self.to.commit()
        for name in sorted(anew | gone):
            self._run(f"CREATE DATABASE IF NOT EXISTS {quoted(name[0])}")
            self._run(f"DROP TABLE IF EXISTS {quoted(*name)}")
        refused: dict[Name, str] = {}
        for name in sorted(anew):
            made = self.source.table(name[1], database=name[0]).definition(as_of=ts, dialect="mariadb", continued=True)
            self.to.select_db(name[0])
            for note in made["notes"]:
                print(f"{'.'.join(name)}: {note}", file=sys.stderr)
            refused |= self._refusal(name, partial(self._run, made["create_table"]))
        for name in sorted(anew - refused.keys()):
            refused |= self._refusal(name, partial(self._load, name, ts))
        for name, cause in refused.items():
            self._leave_out(name, there[name], cause)
        for name in sorted(anew - refused.keys()):
            self._list(name, there[name])
        for name in sorted(gone):
            self._run(f"DELETE FROM {STATE}.tables WHERE db = %s AND name = %s", *name)
        self._learn(there)
        return anew

    def _refusal(self, name: Name, work: Callable[[], object]) -> dict[Name, str]:
        """Do something for a table. What MariaDB has against the table is the answer; what it has else, an error."""
        try:
            work()
        except pymysql.err.MySQLError as error:
            number = error.args[0] if error.args else 0
            if not isinstance(number, int) or not (1000 <= number < 2000 or number >= 3000) or number in OF_STATE:
                raise
            return {name: str(error)}
        return {}

    def _leave_out(self, name: Name, made_as: str, cause: str) -> None:
        """The table is not in the replica from here on. To drop it commits, so it is marked first."""
        print(f"{'.'.join(name)}: left out, MariaDB refuses it: {cause}", file=sys.stderr)
        self._list(name, "")
        self.to.commit()
        self._run(f"DROP TABLE IF EXISTS {quoted(*name)}")
        self._list(name, made_as, cause)
        self.to.commit()
        self._left_out.add(name)

    def _refuse_strangers(self, names: set[Name]) -> None:
        """Refuse tables that another program made."""
        for db, name in self._run("SELECT table_schema, table_name FROM information_schema.tables"):
            if (db, name) in names:
                raise SystemExit(f"{db}.{name} is there already, and not made from here: drop it first.")

    def _list(self, name: Name, made_as: str, cause: str = "") -> None:
        self._run(
            f"INSERT INTO {STATE}.tables (db, name, made_as, cause) VALUES (%s, %s, %s, %s) ON DUPLICATE KEY UPDATE "
            "changes = IF(VALUES(made_as) != '' AND VALUES(cause) = '', 0, changes), "
            "made_as = VALUES(made_as), cause = VALUES(cause)",
            *name, made_as, cause,
        )  # fmt: skip

    def _upstream(self, ts: int) -> dict[Name, str]:
        """The tables at `ts`, each with what it must have been made as. Views and sequences have no rows to keep."""
        found = {}
        for database in self.source.databases(as_of=ts, continued=True):
            db = database["database"]
            items = self.source.tables(db, as_of=ts, continued=True)
            found |= {(db, t["table"]): json.dumps(t, sort_keys=True) for t in items if t["kind"] == "table"}
        return found

    def _learn(self, there: dict[Name, str]) -> None:
        """How the tables look, as MariaDB has them."""
        self._made_as = there
        self._left_out = {(db, name) for db, name, *_ in self.left_out()}
        self._columns = {name: {} for name in there if name not in self._left_out}
        for db, table, column, kind in self._run(
            "SELECT table_schema, table_name, column_name, data_type FROM information_schema.columns"
        ):
            if (db, table) in self._columns:
                self._columns[db, table][column] = kind.lower()
        self._keys = {name: json.loads(made_as)["primary_key"] for name, made_as in there.items()}

    def _load(self, name: Name, ts: int) -> None:
        """All rows as of `ts`: the service writes the statements, one to a line end behind a semicolon."""
        rest = b""
        try:
            for piece in self.source.table(name[1], database=name[0]).rows(as_of=ts, continued=True).pieces("sql"):
                *statements, rest = (rest + piece).split(b";\n")
                for statement in statements:
                    self._run(statement)
        finally:
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
        replica = Replica(client.tenant(asked.cluster, asked.tenant), to)
        for page in replicate(replica, rows_per_page=asked.rows, once=asked.once):
            print(f"everything up to {page.resolved_ts} is served, committed page {page.next_cursor}", flush=True)
        left_out = replica.left_out()
    for db, name, cause, changes in left_out:
        print(f"{db}.{name} is left out, with {changes} later changes: {cause}", file=sys.stderr)
    if left_out:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
