"""Rows of the feed and of the log from the columns that matter: the others are zero, or null where that is allowed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tistream.model import change


def batch_of(schema: pa.Schema, **given: Any) -> pa.RecordBatch:
    """Columns as arrays or lists; a number or bytes is the same in every row."""
    count = next(len(values) for values in given.values() if not isinstance(values, int | bytes))
    assert given.keys() <= set(schema.names), given.keys()
    return pa.RecordBatch.from_arrays([_column(field, given.get(field.name), count) for field in schema], schema=schema)


def table_of(schema: pa.Schema, **given: Any) -> pa.Table:
    """As `batch_of`."""
    return pa.Table.from_batches([batch_of(schema, **given)])


def log_row(table_id: int, commit_ts: int, key: bytes = b"k", **given: Any) -> dict[str, Any]:
    """A row of the log, a put unless it is said."""
    put = {"table_id": table_id, "op": 1, "key": key, "start_ts": 1, "commit_ts": commit_ts, "value": b"v"}
    return {**put, "old_value": None, "expire_ts": 0, "flags": 0, **given}


def log_table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=change.COMMITTED)


def with_columns(rows: pa.Table, **columns: pa.Array) -> pa.Table:
    """The rows of the log with other values in some columns."""
    for name, values in columns.items():
        rows = rows.set_column(rows.schema.get_field_index(name), change.COMMITTED.field(name), values)
    return rows


def without_old_values(rows: pa.Table) -> pa.Table:
    """The rows as an upstream sends them that does not know old values."""
    flags = pa.repeat(pa.scalar(change.FLAG_OLD_VALUE_UNKNOWN, pa.uint8()), rows.num_rows)
    return with_columns(rows, old_value=pa.nulls(rows.num_rows, pa.binary()), flags=flags)


def _column(field: pa.Field, values: Any, count: int) -> pa.Array:
    if isinstance(values, pa.Array):
        return values.cast(field.type)
    if values is not None and not isinstance(values, int | bytes):
        return pa.array(values, field.type)
    return pa.repeat(pa.scalar(0 if values is None and not field.nullable else values, field.type), count)
