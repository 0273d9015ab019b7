"""RawKV events of a store as the rows of a batch file.

A store sends each write as COMMITTED with the causal timestamp twice, in an opening scan as in a live batch. The scan
sends the newest version of a key only; its rows, and the live rows that a store mixes with them until INITIALIZED, get
the mark FLAG_SCANNED and the checkpoint of the subscription as `start_ts`. Pure.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tistream.codec.raw.keys import PREFIX_BYTES, KeyMode
from tistream.errors import CorruptObject
from tistream.keyrange import KeyRange
from tistream.model.change import FLAG_OLD_VALUE_UNKNOWN, FLAG_SCANNED, ROWS, RowKind


def raw_rows(rows: pa.RecordBatch, range_: KeyRange, scanned_from: int | None) -> pa.RecordBatch:
    """The rows (schema change.ROWS) of `range_` with kind RAW. `scanned_from`: the checkpoint of the subscription
    before INITIALIZED, None after it. CorruptObject when one is no write of RawKV."""
    kind, start_ts, commit_ts = (rows.column(name).to_numpy() for name in ("kind", "start_ts", "commit_ts"))
    keys = rows.column("key")
    _refuse(rows, kind != RowKind.COMMITTED, "is a transaction's in a RawKV feed")
    _refuse(rows, start_ts != commit_ts, "of RawKV has two timestamps")
    no_mode = ~pc.starts_with(keys, KeyMode.RAW.value).to_numpy(zero_copy_only=False)
    short = pc.binary_length(keys).to_numpy() < PREFIX_BYTES
    _refuse(rows, no_mode | short, "has a key without a keyspace")
    flags = np.full(rows.num_rows, FLAG_OLD_VALUE_UNKNOWN, np.uint8)
    if scanned_from is not None:
        flags |= np.uint8(FLAG_SCANNED)
        start_ts = np.minimum(np.uint64(scanned_from), commit_ts)
    changed = {
        "kind": pa.array(np.full(rows.num_rows, RowKind.RAW, np.uint8)),
        "start_ts": pa.array(start_ts, pa.uint64()),
        "old_value": pa.nulls(rows.num_rows, pa.binary()),
        "flags": pa.array(flags),
    }
    out = pa.record_batch([changed.get(name, rows.column(name)) for name in ROWS.names], schema=ROWS)
    return _inside(out, range_)


def _inside(rows: pa.RecordBatch, range_: KeyRange) -> pa.RecordBatch:
    """The rows in the range: a region may hold several keyspaces."""
    keys = rows.column("key")
    mask = pc.greater_equal(keys, pa.scalar(range_.start, pa.binary()))
    if range_.end:
        mask = pc.and_(mask, pc.less(keys, pa.scalar(range_.end, pa.binary())))
    return rows if pc.all(mask).as_py() else rows.filter(mask)


def _refuse(rows: pa.RecordBatch, wrong: np.ndarray[tuple[int], np.dtype[np.bool_]], words: str) -> None:
    if wrong.any():
        at = int(wrong.argmax())
        row = rows.slice(at, 1).select(["key", "kind", "start_ts", "commit_ts"]).to_pylist()[0]
        raise CorruptObject(f"a row of the change feed {words}", row=at, **row)
