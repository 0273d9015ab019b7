"""Encoding messages: one table of 8 columns with NULLs and text to escape, one change in ten a delete, two updates.

The baseline is a plain program: a dict a row, written by orjson. Both are single-threaded.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from decimal import Decimal

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import Result, compare
from reading.core.changes import DELETE, INSERT, UPDATE, TableChanges
from reading.formats import FormatOptions, create_format
from reading.formats.lines import written
from schemas.layout import row_layout
from schemas.model import Column, Table
from schemas.types import base_type
from tistream import ts as tso
from tistream.codec.row.layout import ColumnSpec, Kind, kind_of, storage_schema
from tistream.codec.row.text import text

ROWS = 20_000

COLUMNS = (
    ("id", 8, 20, 0, 3, "binary"),
    ("name", 15, 40, 0, 0, "utf8mb4"),
    ("note", 252, 65535, 0, 0, "utf8mb4"),
    ("credit", 246, 12, 2, 0, "binary"),
    ("score", 5, 22, -1, 0, "binary"),
    ("seen", 12, 26, 6, 128, "binary"),
    ("count", 3, 10, 0, 32, "binary"),
    ("raw", 15, 20, 0, 128, "binary"),
)


_COUNT = 6
_SQL_TYPE = {"id": -5, "name": 12, "note": 2005, "credit": 3, "score": 8, "seen": 93, "count": 4, "raw": 2004}


def sample(rows: int) -> TableChanges:
    """Changes with 5 % nulls and some text that needs escaping."""
    rng = np.random.default_rng(1)
    table = Table(
        id=7,
        db_id=1,
        db="shop",
        name="customers",
        charset="utf8mb4",
        collate="utf8mb4_bin",
        columns=tuple(
            Column(id=n + 1, name=name, offset=n, tp=tp, flen=flen, decimal=dec, flag=flag, charset=charset, collate="")
            for n, (name, tp, flen, dec, flag, charset) in enumerate(COLUMNS)
        ),
        indexes=(),
        pk_is_handle=True,
        is_common_handle=False,
    )
    schema = storage_schema(row_layout(table))
    days = rng.integers(1, 28, rows).astype(np.uint64)
    moments = (np.uint64(2024 * 13 + 5) << np.uint64(5) | days) << np.uint64(41) | np.uint64(123456)
    values = {
        "id": np.arange(rows),
        "name": [f"customer {n}" for n in range(rows)],
        "note": [f'he said "{n}" & left <soon>\n' for n in range(rows)],
        "credit": pa.array([f"{n % 9999}.{n % 100:02d}" for n in range(rows)]).cast(schema.field("credit").type),
        "score": rng.standard_normal(rows),
        "seen": moments,
        "count": rng.integers(0, 4_000_000_000, rows),
        "raw": [bytes([n % 256, 255 - n % 256]) * 6 for n in range(rows)],
    }
    null = rng.random(rows) < 0.05
    arrays = []
    for field in schema:
        array = pa.array(values[field.name]).cast(field.type)
        arrays.append(array if field.name == "id" else pc.if_else(pa.array(null), None, array))
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    kind = np.where(np.arange(rows) % 10 == 0, DELETE, np.where(np.arange(rows) % 10 < 3, UPDATE, INSERT))
    return TableChanges(
        table=table,
        kind=kind.astype(np.uint8),
        order=np.arange(rows),
        physical_id=np.full(rows, 7),
        start_ts=np.arange(rows, dtype=np.uint64) + np.uint64(1 << 58),
        commit_ts=np.arange(rows, dtype=np.uint64) + np.uint64(1 << 58),
        key=pa.array([b"t%016d" % n for n in range(rows)], pa.binary()),
        after=batch,
        before=batch,
        split=np.zeros(rows, np.bool_),
    )


def row_by_row(changes: TableChanges) -> list[bytes]:
    """The ndjson lines as a plain program writes them: a dict a row."""
    specs = row_layout(changes.table).columns
    images = [[_python_values(s, b.column(n)) for n, s in enumerate(specs)] for b in (changes.after, changes.before)]
    names = [s.name for s in specs]
    lines = []
    for n, kind in enumerate(changes.kind.tolist()):
        after, before = ({name: values[n] for name, values in zip(names, i, strict=True)} for i in images)
        commit_ts = int(changes.commit_ts[n])
        lines.append(
            orjson.dumps(
                {
                    "type": ("insert", "update", "delete")[kind],
                    "database": changes.table.db,
                    "table": changes.table.name,
                    "table_id": int(changes.physical_id[n]),
                    "key": changes.key[n].as_py().hex(),
                    "commit_ts": str(commit_ts),
                    "start_ts": str(changes.start_ts[n]),
                    "commit_time": tso.to_text(commit_ts),
                    "columns": after if kind != DELETE else None,
                    "old": before if kind != INSERT else None,
                }
            )
        )
    return lines


def canal_row_by_row(changes: TableChanges) -> list[bytes]:
    """The canal-json messages with TiDB extension as a plain program writes them."""
    specs = row_layout(changes.table).columns
    images = [[_canal_values(s, b.column(n)) for n, s in enumerate(specs)] for b in (changes.after, changes.before)]
    counts = [b.column(_COUNT).to_pylist() for b in (changes.after, changes.before)]
    names = [s.name for s in specs]
    mysql_type = {c.name: base_type(c) for c in changes.table.visible_columns}
    lines = []
    for n, kind in enumerate(changes.kind.tolist()):
        after, before = ({name: values[n] for name, values in zip(names, i, strict=True)} for i in images)
        count = counts[kind == DELETE][n]
        commit_ts = int(changes.commit_ts[n])
        lines.append(
            orjson.dumps(
                {
                    "id": 0,
                    "database": changes.table.db,
                    "table": changes.table.name,
                    "pkNames": ["id"],
                    "isDdl": False,
                    "type": ("INSERT", "UPDATE", "DELETE")[kind],
                    "es": commit_ts >> tso.LOGICAL_BITS,
                    "ts": 0,
                    "sql": "",
                    "sqlType": {**_SQL_TYPE, "count": -5 if count is not None and count > 2**31 - 1 else 4},
                    "mysqlType": mysql_type,
                    "old": [before] if kind == UPDATE else None,
                    "data": [before if kind == DELETE else after],
                    "_tidb": {"commitTs": commit_ts},
                }
            )
        )
    return lines


def _canal_values(spec: ColumnSpec, values: pa.Array) -> list[str | None]:
    match kind_of(spec):
        case Kind.BINARY:
            return [None if v is None else v.decode("latin-1") for v in values.to_pylist()]
        case Kind.DOUBLE:
            return [None if v is None else _plain(v) for v in values.to_pylist()]
    texts: list[str | None] = text(spec, values).to_pylist()
    return texts


def _plain(value: float) -> str:
    shown = repr(value)
    return format(Decimal(shown), "f") if "e" in shown else shown


def _python_values(spec: ColumnSpec, values: pa.Array) -> list[object]:
    match kind_of(spec):
        case Kind.BINARY:
            return [None if v is None else base64.b64encode(v).decode() for v in values.to_pylist()]
        case Kind.DECIMAL | Kind.TIME:
            return text(spec, values).to_pylist()
    return values.to_pylist()


def _same(ours: pa.Array, theirs: list[bytes]) -> bool:
    pairs = zip(ours.to_pylist(), theirs, strict=True)
    return all(orjson.loads(a) == orjson.loads(b) for a, b in pairs)


def run() -> Iterator[Result]:
    """The columnar encoders against a dict a row."""
    pa.set_cpu_count(1)
    changes = sample(ROWS)
    ndjson = create_format("ndjson")
    canal = create_format("canal-json", FormatOptions(enable_tidb_extension=True))
    yield compare(
        "message-encode/ndjson-vs-row-by-row",
        lambda: written(ndjson.rows(changes)),
        lambda: row_by_row(changes),
        proof=_same,
        target=5.0,
    )
    yield compare(
        "message-encode/canal-json-vs-row-by-row",
        lambda: written(canal.rows(changes)),
        lambda: canal_row_by_row(changes),
        proof=_same,
        target=5.0,
    )
