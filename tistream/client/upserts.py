"""Reduces a page of changes to the last state of each row, for a MERGE into a lake table.

    page of `format=arrow` (one table)  ->  rows to write, keys to remove; each key in one of them, once

Changes of one commit have no order among themselves, so removals go first: rows that swap their keys in a transaction
come out right. An update that changes a key removes the old one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tistream.client.frames import bare
from tistream.errors import InvalidInput

_OWN_COLUMNS = 5  # _op, _commit_ts, _start_ts, _key, _table_id; _old is the last


@dataclass(frozen=True, slots=True, kw_only=True)
class Upserts:
    """The state of the touched keys after a page."""

    rows: pa.Table  #: the table's columns
    gone: pa.Table  #: the key columns of removed rows


def upserts(page: pa.Table, key: Sequence[str]) -> Upserts:
    """`key` names the columns of the primary key, or is `["_key"]`: then rows have the record key as their first
    column. InvalidInput when the page lacks one of them."""
    names = page.schema.names
    missing = [name for name in key if name not in names]
    if missing or not key:
        raise InvalidInput(f"The page has no column {', '.join(missing) or 'to be the key'}.", columns=", ".join(names))
    page = bare(page).combine_chunks()
    ops, commit_ts, old = page.column(0).cast(pa.string()), page.column(1).to_numpy(), page.column(len(names) - 1)
    by_record = "_key" in key
    deletes = np.flatnonzero(pc.equal(ops, "delete").to_numpy())
    writes = np.flatnonzero(pc.not_equal(ops, "delete").to_numpy())
    moved = np.array([], np.int64) if by_record else _moved(page, old, key)
    keys_then = [_keys(page, key, writes), _keys(page, key, deletes)]
    if len(moved):
        keys_then.append(_old_keys(page, old, key, moved))
    events = pa.concat_tables(keys_then)
    row = np.concatenate([writes, deletes, moved])
    is_write = np.arange(len(row)) < len(writes)
    order = np.lexsort((row, is_write, commit_ts[row]))
    last = _last_of_each(events.take(pa.array(order)), key)
    chosen = order[last]
    kept = chosen[is_write[chosen]]
    columns = ["_key"] * by_record + names[_OWN_COLUMNS:-1]
    return Upserts(
        rows=page.take(pa.array(np.sort(row[kept]))).select(columns),
        gone=events.take(pa.array(np.sort(chosen[~is_write[chosen]]))),
    )


def _keys(page: pa.Table, key: Sequence[str], at: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Table:
    return page.select(list(key)).take(pa.array(at, pa.int64()))


def _old_keys(
    page: pa.Table, old: pa.ChunkedArray, key: Sequence[str], at: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> pa.Table:
    columns = [pc.struct_field(old, name).take(pa.array(at, pa.int64())) for name in key]
    return pa.table(columns, schema=page.select(list(key)).schema)


def _moved(page: pa.Table, old: pa.ChunkedArray, key: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The updates that changed a key."""
    differs = np.zeros(page.num_rows, np.bool_)
    for name in key:
        before, after = _comparable(pc.struct_field(old, name)), _comparable(page[name])
        differs |= pc.fill_null(pc.not_equal(before, after), False).to_numpy()
    return np.flatnonzero(differs & pc.equal(page.column(0).cast(pa.string()), "update").to_numpy())


def _comparable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """A SET as one text, since Arrow does not compare lists: the number of labels, and the labels."""
    if not pa.types.is_list(values.type):
        return values
    count = pc.list_value_length(values).cast(pa.string())
    return pc.binary_join_element_wise(count, pc.binary_join(values, ","), ":")


def _last_of_each(events: pa.Table, key: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    columns = [_comparable(events[name]) for name in key]
    numbered = pa.table([*columns, pa.array(np.arange(events.num_rows))], names=[*key, "_at"])
    last = numbered.group_by(list(key), use_threads=False).aggregate([("_at", "max")])["_at_max"].to_numpy()
    return np.asarray(last, np.int64)
