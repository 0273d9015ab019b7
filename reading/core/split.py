"""Classifies decoded rows as changes, splits unique-key updates, and sets the message order.

A row with a new and an old value is an update, with a new value only an insert, without a new value a delete. A put
without a value and the delete of a row that did not exist are no changes and are dropped. Where the upstream sends no
old values (FLAG_OLD_VALUE_UNKNOWN), a put is an insert and a delete always a delete.

If the protocol splits updates, one that changes a column of a unique index becomes a delete and an insert; decoded
values are compared. Within one transaction and physical table the order is deletes, updates, inserts, each in key
order; the delete of a split update stays at the update's place, its insert follows all other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reading.core.changes import DELETE, INSERT, UPDATE, TableChanges
from schemas.model import Table
from tistream.model.change import FLAG_OLD_VALUE_UNKNOWN, Op

_DROPPED = 255
RANK = np.array([2, 1, 0], np.int8)  #: by kind: deletes, updates, inserts


def classify(
    op: npt.NDArray[np.uint8],
    value_is_null: npt.NDArray[np.bool_],
    old_is_null: npt.NDArray[np.bool_],
    flags: npt.NDArray[np.uint8],
) -> npt.NDArray[np.uint8]:
    """INSERT, UPDATE or DELETE of each row; 255 for rows that change nothing."""
    put = op == Op.PUT
    kind = np.full(len(op), _DROPPED, np.uint8)
    kind[put & ~value_is_null & old_is_null] = INSERT
    kind[put & ~value_is_null & ~old_is_null] = UPDATE
    kind[(op == Op.DELETE) & (~old_is_null | (flags & FLAG_OLD_VALUE_UNKNOWN > 0))] = DELETE
    return kind


def build_changes(table: Table, rows: pa.Table, after: pa.RecordBatch, before: pa.RecordBatch) -> TableChanges:
    """The changes of `rows` (schema change.COMMITTED), whose decoded images are `after` and `before`.

    `order` is the order of the rows until `order_messages` sets the final one.
    """
    rows = rows.combine_chunks()
    no_value, no_old = (_column(rows, n).is_null().to_numpy(zero_copy_only=False) for n in ("value", "old_value"))
    op, flags = _column(rows, "op").to_numpy(), _column(rows, "flags").to_numpy()
    kind = classify(op, no_value, no_old, flags)
    changes = TableChanges(
        table=table,
        kind=kind,
        order=np.arange(rows.num_rows, dtype=np.int64),
        physical_id=_column(rows, "table_id").to_numpy(),
        start_ts=_column(rows, "start_ts").to_numpy(),
        commit_ts=_column(rows, "commit_ts").to_numpy(),
        key=_column(rows, "key"),
        after=after,
        before=before,
        split=np.zeros(rows.num_rows, np.bool_),
    )
    kept = np.flatnonzero(kind != _DROPPED)
    return changes if len(kept) == len(kind) else pick(changes, kept)


def pick(changes: TableChanges, index: npt.NDArray[np.int64]) -> TableChanges:
    """The changes at these indexes, in that order."""
    at = pa.array(index)
    after = changes.after.take(at)
    return TableChanges(
        table=changes.table,
        kind=changes.kind[index],
        order=changes.order[index],
        physical_id=changes.physical_id[index],
        start_ts=changes.start_ts[index],
        commit_ts=changes.commit_ts[index],
        key=changes.key.take(at),
        after=after,
        before=after if changes.before is changes.after else changes.before.take(at),
        split=changes.split[index],
    )


def order_messages(changes: Sequence[TableChanges], *, split: bool) -> list[TableChanges]:
    """The same changes with `order` set over all of them, unique-key updates split when `split` is true.

    `changes` must hold every transaction whole, with all its rows of all the tables of the scope.
    """
    return _in_order([split_updates(c) if split else c for c in changes])


def order_inside(changes: Sequence[TableChanges], second: Sequence[TableChanges], *, split: bool) -> list[TableChanges]:
    """The messages of a page inside a transaction: of `changes` all but the inserts of split updates, of `second` these
    alone."""
    if not split:
        return _in_order(changes)
    first = [_half(split_updates(c), second=False) for c in changes]
    return _in_order([*first, *(_half(split_updates(c), second=True) for c in second)])


def _half(changes: TableChanges, *, second: bool) -> TableChanges:
    is_second = changes.split & (changes.kind == INSERT)
    return pick(changes, np.flatnonzero(is_second if second else ~is_second))


def _in_order(changes: Sequence[TableChanges]) -> list[TableChanges]:
    parts = [c for c in changes if len(c)]
    if not parts:
        return []
    kind = np.concatenate([c.kind for c in parts])
    is_split = np.concatenate([c.split for c in parts])
    rank = RANK[kind]
    rank[is_split & (kind == DELETE)] = RANK[UPDATE]
    rank[is_split & (kind == INSERT)] = RANK[INSERT] + 1
    columns = pa.table(
        {
            "commit_ts": np.concatenate([c.commit_ts for c in parts]),
            "start_ts": np.concatenate([c.start_ts for c in parts]),
            "physical_id": np.concatenate([c.physical_id for c in parts]),
            "rank": rank,
            "key": pa.concat_arrays([c.key.cast(pa.large_binary()) for c in parts]),
        }
    )
    by = [(name, "ascending") for name in columns.column_names]
    place = np.empty(len(kind), np.int64)
    place[pc.sort_indices(columns, sort_keys=by).to_numpy()] = np.arange(len(kind), dtype=np.int64)
    bounds = np.cumsum([len(c) for c in parts])[:-1]
    return [replace(c, order=order) for c, order in zip(parts, np.split(place, bounds), strict=True)]


def split_updates(changes: TableChanges) -> TableChanges:
    """Replace each update that changes a unique key by a delete and an insert; the inserts come last."""
    changed = np.flatnonzero(_unique_key_changed(changes) & (changes.kind == UPDATE))
    if not len(changed):
        return changes
    doubled = pick(changes, np.concatenate([np.arange(len(changes), dtype=np.int64), changed]))
    kind = doubled.kind.copy()
    is_split = doubled.split.copy()
    inserts = np.arange(len(changes), len(doubled))
    kind[changed] = DELETE
    kind[inserts] = INSERT
    is_split[changed] = True
    is_split[inserts] = True
    return replace(doubled, kind=kind, split=is_split)


def unique_columns(table: Table) -> tuple[int, ...]:
    """Indexes into `visible_columns` of the columns of unique indexes, the primary key included.

    Virtual columns have no stored value and are not included.
    """
    offsets = {c.offset for index in table.indexes if index.unique or index.primary for c in index.columns}
    return tuple(
        n
        for n, column in enumerate(table.visible_columns)
        if column.offset in offsets or (table.pk_is_handle and column.primary)
    )


def differs(left: pa.Array, right: pa.Array) -> npt.NDArray[np.bool_]:
    """Where two storage columns differ; null equals null."""
    if pa.types.is_list(left.type) or pa.types.is_large_list(left.type):
        left, right = _list_bytes(left), _list_bytes(right)
    unequal = pc.fill_null(pc.not_equal(left, right), False)
    one_null = pc.xor(left.is_null(), right.is_null())
    return np.asarray(pc.or_(unequal, one_null).to_numpy(zero_copy_only=False), np.bool_)


def _unique_key_changed(changes: TableChanges) -> npt.NDArray[np.bool_]:
    changed = np.zeros(len(changes), np.bool_)
    for n in unique_columns(changes.table):
        changed |= differs(changes.after.column(n), changes.before.column(n))
    return changed


def _list_bytes(values: pa.Array) -> pa.Array:
    """Lists of numbers as byte strings, so that they can be compared."""
    width = values.type.value_type.bit_width // 8
    offsets = values.offsets.cast(pa.int64()).to_numpy() * width
    flat = values.values.buffers()[1]
    data = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(values), [None, pa.py_buffer(offsets), flat])
    return pc.if_else(values.is_valid(), data, pa.scalar(None, pa.large_binary()))


def _column(rows: pa.Table, name: str) -> pa.Array:
    column = rows[name]
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)
