"""Tables of a tenant as of a timestamp, by the log, against the same tables in the cluster at that timestamp.

    SET @@tidb_snapshot = ts                                                          log, rows as of ts
    SELECT bucket, count, xor, sum ... GROUP BY bucket     <── compare ──>     the same sums of the same texts
    rows of the buckets that differ                        <── compare ──>     their rows

The database computes the sums: only buckets that differ are transferred. Both sides write a value as the same text
(bytes and bits as numbers, times in UTC). Digits of a FLOAT or DOUBLE may differ between servers: such rows are
compared as numbers when their sums differ.

A server without `tidb_snapshot` can be compared while nothing writes to it.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import closing
from csv import reader as csv_lines
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pymysql
from pyarrow import csv

from backup.core.buckets import (
    BUCKETS,
    CELL,
    NULL,
    SEPARATOR,
    Row,
    RowDifference,
    Sums,
    bucket_sums,
    buckets_of,
    differing_rows,
    first_of,
)
from schemas.queries import quoted
from schemas.snapshot import is_system_database
from tistream.client.tenant import Tenant
from tistream.errors import InvalidInput, StoreUnavailable

_BLOCK_BYTES = 32 << 20  # a record is at most as large
_BINARY = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_FLOATS = ("float", "double")
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set")
_NO_SNAPSHOT = 1193  # unknown system variable


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlAddress:
    """Where the cluster is."""

    host: str
    port: int = 4000
    user: str = "root"
    password: str = ""
    ca_path: str | None = None
    snapshot: bool = True  #: read as of the timestamp; without, nothing may write


@dataclass(slots=True, kw_only=True)
class TableResult:
    """What was found of one table."""

    table: str  #: database.table
    log_rows: int = 0
    database_rows: int = 0
    differing: int = 0  #: rows
    columns: Sequence[str] = ()
    first: RowDifference | None = None
    problem: str = ""  #: why it could not be compared

    @property
    def equal(self) -> bool:
        """Whether both have the same rows."""
        return not self.differing and not self.problem


@dataclass(frozen=True, slots=True)
class _Column:
    expression: str  #: SQL: the value in the form of the log's CSV
    is_float: bool


@dataclass(frozen=True, slots=True)
class _Compared:
    """A table of both sides."""

    database: str
    table: str
    names: Sequence[str]
    columns: Sequence[_Column]  #: one for each name
    key: Sequence[int]  #: places of the primary key's columns; empty: it has none

    @property
    def key_names(self) -> Sequence[str]:
        return [self.names[at] for at in self.key]

    @property
    def bucket_sql(self) -> str:
        key = [self.columns[at] for at in self.key]
        return f"CRC32({_row_sql(key or self.columns)}) % {BUCKETS}"


@dataclass(slots=True)
class TableVerifier:
    """Compares tables one by one. `close` it."""

    tenant: Tenant
    as_of: int
    database: SqlAddress
    _connection: pymysql.Connection[Any] = field(init=False)

    def __post_init__(self) -> None:
        at = self.database
        try:
            self._connection = pymysql.connect(
                host=at.host,
                port=at.port,
                user=at.user,
                password=at.password,
                charset="utf8mb4",
                ssl={"ca": at.ca_path} if at.ca_path else None,
                init_command="SET time_zone = '+00:00'",
            )
        except pymysql.err.OperationalError as e:
            raise StoreUnavailable("the cluster's SQL port does not answer", host=at.host, cause=str(e)) from e
        if at.snapshot:
            self._set_snapshot()

    def _set_snapshot(self) -> None:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute("SET @@tidb_snapshot = %s", (str(self.as_of),))
        except pymysql.err.MySQLError as e:
            self.close()
            if e.args and e.args[0] == _NO_SNAPSHOT:
                raise InvalidInput(
                    "The server has no tidb_snapshot, so it cannot be read as of a timestamp. With --no-snapshot its"
                    " rows of now are compared: nothing may write to them.",
                    option="tidb",
                ) from e
            facts = {"as_of": str(self.as_of), "cause": str(e)}
            raise InvalidInput("The cluster cannot be read as of the timestamp.", **facts) from e

    def close(self) -> None:
        self._connection.close()

    def tables(self) -> list[tuple[str, str]]:
        """Database and name of all tables that have rows, but for the system's."""
        words = (
            "SELECT table_schema, table_name FROM information_schema.tables"
            " WHERE table_type NOT IN ('VIEW', 'SYSTEM VIEW', 'SEQUENCE') ORDER BY table_schema, table_name"
        )
        return [(database, table) for database, table in self._query(words) if not is_system_database(database)]

    def verify(self, database: str, table: str) -> TableResult:
        """Compare one table, by exact names."""
        table_result = TableResult(table=f"{database}.{table}")
        known = self._columns(database, table)
        if not known:
            table_result.problem = "the cluster has no such table"
            return table_result
        names = next(self._csv(database, table)).column_names
        sides = {
            "cluster": [name for name in names if name.lower() not in known],
            "log": sorted(known.keys() - {name.lower() for name in names}),
        }
        if any(sides.values()):
            lacks = [f"the {side}'s table has no column {', '.join(lost)}" for side, lost in sides.items() if lost]
            table_result.problem = ", ".join(lacks)
            return table_result
        compared = _Compared(database, table, names, [known[name.lower()] for name in names], ())
        lower = [name.lower() for name in names]
        key = self._primary_key(database, table)
        if all(name in lower for name in key):
            compared = replace(compared, key=tuple(map(lower.index, key)))
        ours = bucket_sums(self._csv(database, table), names, compared.key_names)
        theirs = self._sums(compared)
        table_result.log_rows, table_result.database_rows = (
            sum(rows for rows, _, _ in side.values()) for side in (ours, theirs)
        )
        table_result.columns = names
        if wrong := {n for n in ours.keys() | theirs.keys() if ours.get(n) != theirs.get(n)}:
            self._look_at_rows(table_result, compared, wrong)
        return table_result

    def _look_at_rows(self, table_result: TableResult, compared: _Compared, wrong: set[int]) -> None:
        """Compare the rows of these buckets, one bucket at a time."""
        ours = self._rows_of_buckets(compared, wrong)
        floats = [at for at, column in enumerate(compared.columns) if column.is_float]
        for number in sorted(wrong):
            theirs = self._bucket(compared, number)
            rows = differing_rows(ours.get(number, []), theirs, key=compared.key, floats=floats)
            table_result.differing += len(rows)
            if rows:
                table_result.first = first_of([*rows, *([table_result.first] if table_result.first else [])])

    # -- the log -----------------------------------------------------------------------------------------------------

    def _csv(self, database: str, table: str) -> Iterator[pa.Table]:
        """The rows as of the timestamp, all columns as text, NULL as null. The first table has no rows."""
        pieces = self.tenant.table(table, database=database).rows(as_of=self.as_of).pieces("csv")
        names, stream = _with_header(pieces)
        yield pa.table({name: pa.array([], pa.string()) for name in names})
        if stream.is_empty:
            return
        reader = csv.open_csv(
            io.BufferedReader(stream),  # whole blocks: a record must not end in the next one but one
            read_options=csv.ReadOptions(block_size=_BLOCK_BYTES, column_names=names),
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=["NULL"],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        with closing(reader):
            for batch in reader:
                yield pa.Table.from_batches([batch])

    def _rows_of_buckets(self, compared: _Compared, buckets: set[int]) -> dict[int, list[Row]]:
        rows: dict[int, list[Row]] = {}
        numbers = pa.array(sorted(buckets))
        for batch in self._csv(compared.database, compared.table):
            if batch.num_rows:
                at = pa.array(buckets_of(batch, compared.key_names))
                mask = pc.is_in(at, numbers)
                columns = [batch[name].filter(mask).to_pylist() for name in compared.names]
                for number, *row in zip(at.filter(mask).to_pylist(), *columns, strict=True):
                    rows.setdefault(number, []).append(tuple(row))
        return rows

    # -- the cluster -------------------------------------------------------------------------------------------------

    def _query(self, words: str, values: Sequence[object] = ()) -> Sequence[Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(words, values or None)
            rows: Sequence[Any] = cursor.fetchall()
            return rows

    def _columns(self, database: str, table: str) -> dict[str, _Column]:
        """By name in lower case, without virtual ones: the log has no values of these."""
        words = (
            "SELECT column_name, data_type, column_type FROM information_schema.columns"
            " WHERE table_schema = %s AND table_name = %s AND extra NOT LIKE '%%VIRTUAL GENERATED%%'"
        )
        return {
            name.lower(): _Column(_expression(quoted(name), kind.lower(), full.lower()), kind.lower() in _FLOATS)
            for name, kind, full in self._query(words, (database, table))
        }

    def _primary_key(self, database: str, table: str) -> list[str]:
        words = (
            "SELECT column_name FROM information_schema.statistics WHERE table_schema = %s AND table_name = %s"
            " AND index_name = 'PRIMARY' ORDER BY seq_in_index"
        )
        return [str(name).lower() for (name,) in self._query(words, (database, table))]

    def _sums(self, compared: _Compared) -> Sums:
        columns = f"{compared.bucket_sql} AS bucket, CRC32({_row_sql(compared.columns)}) AS crc"
        words = (
            "SELECT bucket, COUNT(*), BIT_XOR(crc), SUM(crc)"  # noqa: S608 - names are quoted
            f" FROM (SELECT {columns} FROM {quoted(compared.database, compared.table)}) AS hashed GROUP BY bucket"
        )
        return {int(n): (int(rows), int(xor), int(total)) for n, rows, xor, total in self._query(words)}

    def _bucket(self, compared: _Compared, number: int) -> Sequence[Row]:
        shown = ", ".join(f"CAST({column.expression} AS CHAR)" for column in compared.columns)
        words = (
            f"SELECT {shown} FROM {quoted(compared.database, compared.table)}"  # noqa: S608 - names are quoted
            f" WHERE {compared.bucket_sql} = {number}"
        )
        return self._query(words)


class _Stream(io.RawIOBase):
    """Pieces of bytes as a file."""

    def __init__(self, first: bytes, pieces: Iterator[bytes]) -> None:
        self._held, self._pieces = first, pieces
        self._fill()

    @property
    def is_empty(self) -> bool:
        return not self._held

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        part = self._held[: len(into)]
        into[: len(part)] = part
        self._held = self._held[len(part) :]
        self._fill()
        return len(part)

    def _fill(self) -> None:
        while not self._held and (piece := next(self._pieces, None)) is not None:
            self._held = piece


def _with_header(pieces: Iterator[bytes]) -> tuple[list[str], _Stream]:
    """(names in the first line, what follows it)."""
    head = b""
    while b"\r\n" not in head:
        head += next(pieces)
    line, _, rest = head.partition(b"\r\n")
    names: list[str] = next(csv_lines([line.decode()]))
    return names, _Stream(rest, pieces)


def _expression(name: str, kind: str, full: str) -> str:
    """SQL that gives a column's value as the log's CSV writes it."""
    if kind in _BINARY:
        return f"LOWER(HEX({name}))"
    if kind == "bit" or "zerofill" in full:
        return f"{name} + 0"
    if kind == "float":
        return f"CAST({name} AS DOUBLE)"
    return f"CONVERT({name} USING utf8mb4)" if kind in _TEXTS else name


def _row_sql(columns: Sequence[_Column]) -> str:
    cells = (f"IFNULL(CONCAT('{CELL}', {column.expression}), '{NULL}')" for column in columns)
    return f"CONCAT_WS(CHAR({ord(SEPARATOR)} USING utf8mb4), {', '.join(cells)})"
