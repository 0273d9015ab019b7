"""Renders a page as Arrow: decoded columns in native types, or the undecoded rows.

    native    _op _commit_ts _start_ts _key _table_id | a column per visible column | _old: struct of the same columns
    raw       database table | schema change.COMMITTED

The native form is for one table. An Arrow stream has one schema, so a page ends before the first row whose table
version has other columns (other ids, names, types, order or ENUM labels). Rows with one commit_ts have the same
version, so such a page still ends between two commit timestamps. The columns hold the row after the change, or the
deleted row; `_old` is the row before, null in an insert.

Where a table has a column of one of our own names, ours gets one more leading underscore. The metadata of fields and
schema (`tistream.model.change`) says which columns are ours and the column id of every other one, so a reader can match
pages from before and after a RENAME COLUMN. Rows that cannot be decoded are listed as JSON in the schema metadata under
`quarantined`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from reading.core.changes import DELETE, INSERT, UPDATE, TableChanges
from reading.core.conform import NO_TABLE, DeliveredColumns, conformed
from reading.core.page_rows import only
from reading.core.split import order_messages
from reading.formats.lines import BodyTooLarge
from reading.rows.decode import Quarantined, Shown, as_it_is, decode_rows, rows_of
from reading.rows.scope import Scope
from schemas.history import History
from schemas.layout import row_layout
from schemas.lineage import table_ids
from schemas.model import Table
from tistream.codec.row.layout import ColumnSpec, ValueKind, kind_of
from tistream.codec.row.native import native, native_type
from tistream.model import change

RAW = pa.schema([pa.field("database", pa.string(), False), pa.field("table", pa.string(), False), *change.COMMITTED])

_OPS = pa.array(["insert", "update", "delete"], pa.string())
_OP_OF = np.zeros(3, np.int8)
_OP_OF[[INSERT, UPDATE, DELETE]] = (0, 1, 2)
_OWN = {
    "_op": pa.dictionary(pa.int8(), pa.string()),
    "_commit_ts": pa.uint64(),
    "_start_ts": pa.uint64(),
    "_key": pa.binary(),
    "_table_id": pa.int64(),
}
_OLD = "_old"

_Shape = tuple[tuple[int, str, pa.DataType, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NativePage:
    """A page of one table. It holds everything up to `end`, which may lie below the requested end."""

    content: pa.Buffer
    rows: int
    quarantined: int
    end: int


def raw_page(history: History, rows: pa.Table, scope: Scope) -> pa.Table:
    """The undecoded rows of the scope with their table names. `rows` are sorted by (commit_ts, start_ts, key) and keep
    their chunks."""
    tables: list[Table] = []
    version = np.full(rows.num_rows, -1, np.int32)
    for table, index in rows_of(history, rows, scope):
        version[index] = len(tables)
        tables.append(table)
    kept = only(rows, version >= 0)
    version = version[version >= 0]
    names = [_each(version, [table.db for table in tables]), _each(version, [table.name for table in tables])]
    return pa.table([*names, *kept.columns], schema=RAW)


def raw_rows(changes: Sequence[TableChanges], stored: Sequence[pa.Table]) -> pa.Table:
    """Rows of a snapshot (schema newest.STATE, one table for each of the changes) with their table names, as puts."""
    parts = []
    for part, rows in zip(changes, stored, strict=True):
        count = len(part)
        columns = {
            "database": pa.repeat(pa.scalar(part.table.db), count),
            "table": pa.repeat(pa.scalar(part.table.name), count),
            "table_id": pa.array(part.physical_id),
            "op": pa.array(np.full(count, change.Op.PUT, np.uint8)),
            "key": rows["key"],
            "start_ts": pa.array(part.start_ts),
            "commit_ts": pa.array(part.commit_ts),
            "value": rows["value"],
            "old_value": pa.nulls(count, pa.binary()),
            "expire_ts": pa.array(np.zeros(count, np.uint64)),
            "flags": pa.array(np.zeros(count, np.uint8)),
        }
        parts.append(pa.table([columns[name] for name in RAW.names], schema=RAW))
    return pa.concat_tables(parts)


def _each(which: npt.NDArray[np.int32], texts: list[str]) -> pa.Array:
    """`texts[which]` as an array."""
    if len(texts) == 1:
        return pa.repeat(pa.scalar(texts[0], pa.string()), len(which))
    return pa.array(texts, pa.string()).take(pa.array(which))


def native_page(
    history: History,
    rows: pa.Table,
    scope: Scope,
    end: int,
    buffers: str | None = None,
    *,
    shown: Shown = as_it_is,
    quarantined: Sequence[Quarantined] = (),
    target: DeliveredColumns | None = None,
    body_bytes: int | None = None,
) -> NativePage:
    """The decoded rows of one table. `rows` (schema change.COMMITTED, by commit_ts) are all those up to `end` that are
    wanted, `quarantined` those that could not be asked; `shown` gives a table version with the wanted columns. With
    `target` the columns are the target's, and no page ends where they change. BodyTooLarge when several rows have more
    than `body_bytes`."""
    cut = _other_columns_from(history, rows, scope, shown) if target is None else None
    if cut is not None:
        rows = rows.slice(0, int(np.searchsorted(rows["commit_ts"].to_numpy(), np.uint64(cut))))
        end = cut - 1
    decoded = decode_rows(history, rows, scope, shown if target is None else as_it_is)
    bad = [*(q for q in quarantined if q.commit_ts <= end), *decoded.quarantined]
    changes = order_messages(decoded.changes, split=False)
    if target is not None:
        table = in_columns_of(target, changes)
    else:
        table = decoded_rows(history, changes) if changes else empty(history, scope, end, shown)
    if body_bytes is not None and table.num_rows > 1 and table.nbytes > body_bytes:
        raise BodyTooLarge(table.nbytes)
    if bad:
        listed = orjson.dumps([asdict(q) | {"key": q.key.hex(), "commit_ts": str(q.commit_ts)} for q in bad])
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), b"quarantined": listed})
    return NativePage(content=ipc(table, buffers), rows=table.num_rows, quarantined=len(bad), end=end)


def target_of(history: History, scope: Scope, ts: int, shown: Shown = as_it_is) -> DeliveredColumns:
    """The columns that the scope's table has at `ts`; none when there is no such table then."""
    table = history.named(scope.database or "", scope.table or "", ts)
    table = NO_TABLE if table is None or table.kind != "table" else table
    return DeliveredColumns.at(history, table, ts, shown(table))


def no_rows(target: DeliveredColumns) -> pa.Table:
    """No rows, with the target's columns."""
    return _schema(row_layout(target.shown).columns, target.ids).empty_table()


def in_columns_of(target: DeliveredColumns, changes: Sequence[TableChanges]) -> pa.Table:
    """The changes in page order, in the target's columns."""
    changed = conformed(target, changes)
    table = (
        _joined(changed.changes, _schema(row_layout(changed.table).columns, target.ids)) if changes else no_rows(target)
    )
    if not changed.newer:
        return table
    return table.replace_schema_metadata({**table.schema.metadata, change.NEWER: orjson.dumps(changed.newer)})


def empty(history: History | None, scope: Scope, ts: int, shown: Shown = as_it_is) -> pa.Table:
    """No rows, with the columns that the table has at `ts`; only our own columns when there is no such table."""
    specs: Sequence[ColumnSpec] = ()
    ids: Sequence[int] = ()
    if history is not None and scope.database is not None and scope.table is not None:
        table = history.named(scope.database, scope.table, ts)
        if table is not None:
            specs = row_layout(shown(table)).columns if table.kind == "table" else ()
            ids = table_ids(history, table)
    return _schema(specs, ids).empty_table()


def ipc(table: pa.Table, buffers: str | None = None) -> pa.Buffer:
    """One Arrow IPC stream, a batch per chunk. `buffers`: compression, `zstd`, `lz4` or None."""
    if buffers is None:  # the size is known beforehand: one allocation, one copy
        size = pa.MockOutputStream()
        _write(size, table, None)
        out = pa.allocate_buffer(size.size())
        _write(pa.FixedSizeBufferWriter(out), table, None)
        return out
    sink = pa.BufferOutputStream()
    _write(sink, table, buffers)
    return sink.getvalue()


def _write(sink: pa.NativeFile, table: pa.Table, buffers: str | None) -> None:
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=buffers)) as writer:
        writer.write_table(table)


def _other_columns_from(history: History, rows: pa.Table, scope: Scope, shown: Shown) -> int | None:
    """The lowest commit_ts of a row with other columns than the first row; None when all have the same."""
    groups = sorted(rows_of(history, rows, scope), key=lambda group: int(group[1][0]))
    shapes = [(index[0], _shape(shown(table))) for table, index in groups]
    other = next((row for row, shape in shapes if shape != shapes[0][1]), None)
    return None if other is None else int(rows["commit_ts"][int(other)].as_py())


def _shape(table: Table) -> _Shape:
    specs = row_layout(table).columns
    return tuple((s.id, s.name, native_type(s), s.elems if kind_of(s) is ValueKind.ENUM else ()) for s in specs)


def _schema(specs: Sequence[ColumnSpec], ids: Sequence[int] = ()) -> pa.Schema:
    """`ids`: of the table, newest first."""
    taken = {spec.name.lower() for spec in specs}
    fields = [pa.field(_free(name, taken), type_, False, {change.OWN_COLUMN: name}) for name, type_ in _OWN.items()]
    columns = [pa.field(spec.name, native_type(spec), metadata={change.COLUMN_ID: str(spec.id)}) for spec in specs]
    old = pa.field(_free(_OLD, taken), pa.struct(columns), metadata={change.OWN_COLUMN: _OLD})
    return pa.schema([*fields, *columns, old], metadata={change.TABLE_IDS: ",".join(map(str, ids))})


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name = "_" + name
    return name


def decoded_rows(history: History, changes: Sequence[TableChanges]) -> pa.Table:
    """All changes in page order. Each version's values become native by its own definition, because a SET value means
    the labels of its version; then all have the same types."""
    ids = {id_: None for c in changes for id_ in table_ids(history, c.table)}
    return _joined(changes, _schema(row_layout(changes[0].table).columns, list(ids)))


def _joined(changes: Sequence[TableChanges], schema: pa.Schema) -> pa.Table:
    versions = [row_layout(c.table).columns for c in changes]
    order = np.argsort(np.concatenate([c.order for c in changes]), kind="stable")
    kind = np.concatenate([c.kind for c in changes])[order]
    place = pa.array(order)
    shown = pa.array(np.where(kind == DELETE, order + len(order), order))
    current, old = [], []
    for n in range(len(versions[0])):
        parts = list(zip(versions, changes, strict=True))
        before = pa.concat_arrays([native(specs[n], c.before.column(n)) for specs, c in parts])
        both = pa.concat_arrays([*(native(specs[n], c.after.column(n)) for specs, c in parts), before])
        current.append(both.take(shown))
        old.append(before.take(place))
    was = schema.field(len(schema) - 1)
    mask = pa.array(kind == INSERT)
    structs = pa.StructArray.from_arrays(old, fields=list(was.type), mask=mask) if old else _no_columns(mask, was.type)
    own = [
        pa.DictionaryArray.from_arrays(pa.array(_OP_OF[kind]), _OPS),
        pa.array(np.concatenate([c.commit_ts for c in changes])[order]),
        pa.array(np.concatenate([c.start_ts for c in changes])[order]),
        pa.concat_arrays([c.key for c in changes]).take(place),
        pa.array(np.concatenate([c.physical_id for c in changes])[order]),
    ]
    return pa.Table.from_arrays([*own, *current, structs], schema=schema)


def _no_columns(mask: pa.Array, type_: pa.DataType) -> pa.Array:
    return pc.if_else(mask, pa.scalar(None, type_), pa.scalar({}, type_))
