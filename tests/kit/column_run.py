"""Tables with rows written before and after a DDL on a column, read in every form in which rows are read.

A run is one tenant: many tables, the history of their DDLs, the committed rows of all of them in one page, as a pull of
the tenant gets them. Everything is pure: no bucket, no catalog, no server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from reading.asof import output
from reading.asof.core import columns
from reading.core.split import order_messages
from reading.formats import create_format, parse_options
from reading.pages import arrow, body
from reading.rows.decode import Decoding, decode_rows
from reading.rows.scope import Scope
from schemas import ddl, tidb_json
from schemas.history import History
from schemas.model import Database, Table
from schemas.snapshot import SchemaSnapshot
from tests.kit.made_rows import log_row
from tests.kit.row_encoder import encode_v2, record_key
from tistream.codec.newest import STATE
from tistream.codec.row.cast import Result, cast
from tistream.codec.row.layout import ColumnSpec
from tistream.ids import Tenant
from tistream.model import change

TENANT = Tenant(1, 1)
START, END = 100, 1 << 40
ADD_COLUMN, MODIFY_COLUMN = 5, 12

#: every format of a pull, with the options that change what of a row is written
FORMS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("ndjson", {}),
    ("canal-json", {}),
    ("canal-json", {"enable-tidb-extension": "true", "content-compatible": "true"}),
    ("open-protocol", {}),
    ("simple", {}),
    ("csv", {"output-old-value": "true"}),
    ("csv", {"quote": "", "binary-encoding-method": "hex"}),
    ("debezium", {}),
)

Cells = Mapping[int, bytes | None]
ID = {
    "id": 1,
    "name": {"O": "id", "L": "id"},
    "offset": 0,
    "type": {"Tp": 3, "Flag": 3, "Flen": 11, "Decimal": 0, "Charset": "binary", "Collate": "binary"},
    "state": 5,
    "version": 2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A committed change; an image of None is none. Bytes are a row as it is."""

    handle: int
    commit_ts: int
    value: Cells | bytes | None = None
    old: Cells | bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ddl:
    """A job of this type that leaves the table with these columns (behind `id`)."""

    commit_ts: int
    type: int
    columns: tuple[dict[str, Any], ...]
    query: str = "ALTER TABLE t"


@dataclass(slots=True, kw_only=True)
class TableRun:
    """A table with its DDLs and writes; at first it has no column but `id`, its primary key."""

    name: str
    ddls: list[Ddl] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)


class ColumnRun:
    """The tables as one tenant."""

    def __init__(self, tables: list[TableRun]) -> None:
        self.tables = {100 + n: table for n, table in enumerate(tables)}
        database = Database(id=1, name="d")
        start = {id_: tidb_json.table(_info(id_, t.name, ()), db_id=1, db="d") for id_, t in self.tables.items()}
        jobs_table = start[100]
        self.history = History(SchemaSnapshot(ts=START, databases={1: database}, tables=start), jobs_table)
        for n, (id_, step) in enumerate(
            sorted(
                ((id_, step) for id_, t in self.tables.items() for step in t.ddls), key=lambda pair: pair[1].commit_ts
            )
        ):
            self.history.apply(_job(n, id_, self.tables[id_].name, step))
        self.history.advance(END)
        rows = [_row(id_, write) for id_, t in self.tables.items() for write in t.writes]
        rows.sort(key=lambda row: (row["commit_ts"], row["key"]))
        self.rows = pa.Table.from_pylist(rows, schema=change.COMMITTED)

    def decoded(self) -> Decoding:
        """The page of a pull of the tenant."""
        return decode_rows(self.history, self.rows, Scope(tenant=TENANT))

    def lines(self, form: str, options: Mapping[str, str]) -> bytes:
        """The page in a text format, with the DDLs in their places."""
        fmt = create_format(form, parse_options(options))
        decoded = self.decoded()
        messages = order_messages(decoded.changes, split=fmt.splits_updates)
        events = self.history.events(START, END)
        return bytes(body.render(fmt, messages, events, decoded.quarantined))

    def events(self) -> list[dict[str, Any]]:
        """The page as NDJSON objects."""
        return [orjson.loads(line) for line in self.lines("ndjson", {}).splitlines()]

    def native(self, name: str) -> list[dict[str, Any]]:
        """The pages of `format=arrow` of one table."""
        scope, rows, at = Scope(tenant=TENANT, database="d", table=name), [], 0
        while True:
            page = arrow.native_page(self.history, self.rows.slice(at), scope, END)
            rows += pa.ipc.open_stream(page.content).read_all().to_pylist()
            if page.end == END:
                return rows
            at = sum(ts <= page.end for ts in self.rows["commit_ts"].to_pylist())

    def as_of(self, name: str, ts: int) -> tuple[Table, pa.RecordBatch | None]:
        """The table and its rows (None: there are none) at a timestamp, in storage form."""
        table = self.history.find("d", name, ts)
        newest = {
            row["key"]: row for row in self.rows.to_pylist() if row["table_id"] == table.id and row["commit_ts"] <= ts
        }
        states = [
            {n: newest[key][n] for n in STATE.names} for key in sorted(newest) if newest[key]["value"] is not None
        ]
        if not states:
            return table, None
        rows = pa.Table.from_pylist(states, schema=STATE)
        return table, columns.decoded(columns.readings(self.history, table, ts), rows)

    def written(self, name: str, ts: int) -> Iterator[tuple[str, object]]:
        """(form, the body) of a table at a timestamp, in each form of a read of a table."""
        table, batch = self.as_of(name, ts)
        for form in output.FORMATS:
            writer = output.writer_of(form, table)
            data = writer.begin() + (b"" if batch is None else writer.rows(batch)) + writer.end()
            yield form, data


def doubted(source: ColumnSpec, target: ColumnSpec, values: pa.Array) -> Result:
    """A cast none of whose results is certain, in place of `reading.asof.core.columns.cast`."""
    result, certain = cast(source, target, values)
    return result, np.zeros_like(certain)


def _info(id_: int, name: str, added: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    return {
        "id": id_,
        "name": {"O": name, "L": name},
        "cols": [ID, *added],
        "state": 5,
        "pk_is_handle": True,
        "index_info": [],
        "charset": "utf8mb4",
        "collate": "utf8mb4_bin",
    }


def _job(n: int, table_id: int, name: str, step: Ddl) -> ddl.Job:
    job = ddl.parse_job(
        {
            "id": 1000 + n,
            "type": step.type,
            "state": 4,
            "schema_id": 1,
            "table_id": table_id,
            "schema_name": "d",
            "table_name": name,
            "query": step.query,
            "binlog": {"SchemaVersion": n + 1, "TableInfo": _info(table_id, name, step.columns)},
        },
        start_ts=step.commit_ts - 1,
        commit_ts=step.commit_ts,
    )
    assert job is not None
    return job


def _row(table_id: int, write: Write) -> dict[str, Any]:
    value, old = _image(write.value), _image(write.old)
    op = int(change.Op.DELETE if value is None else change.Op.PUT)
    key, ts = record_key(table_id, write.handle), write.commit_ts
    return log_row(table_id, ts, key, op=op, start_ts=ts - 1, value=value, old_value=old)


def _image(image: Cells | bytes | None) -> bytes | None:
    return image if image is None or isinstance(image, bytes) else encode_v2(image)
