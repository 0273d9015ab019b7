"""Reduces row versions to the newest of each key (pure).

A *run* is an iterator of tables of schema STATE (or VERSION) with strictly ascending keys: rows or
changes with one version per key. `merged` merges runs block by block, holding one block of each.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tistream.codec.compiled import view
from tistream.codec.table_key import RECORD
from tistream.errors import CorruptObject
from tistream.model.change import COMMITTED, FLAG_OLD_VALUE_UNKNOWN, Op

#: one version of a key; a null value means deleted
STATE = pa.schema(
    [pa.field("key", pa.binary(), False), pa.field("commit_ts", pa.uint64(), False), pa.field("value", pa.binary())]
)

#: a version that can be written again (schema seed_file.SEED without the deleted)
VERSION = pa.schema([STATE.field("key"), pa.field("start_ts", pa.uint64(), False), *list(STATE)[1:]])

#: a version of a key of no table (schema seed_file.KEYS)
KEY_VERSION = VERSION.append(pa.field("expire_ts", pa.uint64(), False))

Run = Iterator[pa.Table]

_ROW_BYTES = 16  # of timestamps and offsets
_INT_KEY_BYTES = 19  # of a record key with an integer handle
_RECORD_MARK = np.frombuffer(RECORD, np.uint8)


def states(rows: pa.Table, schema: pa.Schema = STATE) -> pa.Table:
    """Committed rows (schema change.COMMITTED) as versions of `schema`. CorruptObject for a put that lost its value."""
    deleted = pc.equal(rows["op"], int(Op.DELETE))
    lost = pc.and_(pc.is_null(rows["value"]), pc.invert(deleted))
    if (at := pc.index(lost, True).as_py()) >= 0:
        key, commit_ts = rows["key"][at].as_py(), rows["commit_ts"][at].as_py()
        raise CorruptObject("a committed put has no value", key=key, commit_ts=commit_ts)
    value = pc.if_else(deleted, pa.scalar(None, pa.binary()), rows["value"])
    columns = [value if name == "value" else rows[name] for name in schema.names]
    return pa.Table.from_arrays(columns, schema=schema)


def committed(versions: pa.Table) -> pa.Table:
    """The opposite of `states` for keys of no table (schema KEY_VERSION): rows of schema change.COMMITTED."""
    rows = versions.num_rows
    deleted = pc.is_null(versions["value"])
    made = {
        "table_id": pa.repeat(pa.scalar(0, pa.int64()), rows),
        "op": pc.if_else(deleted, pa.scalar(int(Op.DELETE), pa.uint8()), pa.scalar(int(Op.PUT), pa.uint8())),
        "old_value": pa.nulls(rows, pa.binary()),
        "flags": pa.repeat(pa.scalar(FLAG_OLD_VALUE_UNKNOWN, pa.uint8()), rows),
    }
    columns = [made[name] if name in made else versions[name] for name in COMMITTED.names]
    return pa.Table.from_arrays(columns, schema=COMMITTED)


def newest(versions: pa.Table) -> pa.Table:
    """The newest version per key, in key order. `versions` has schema STATE or VERSION."""
    versions = versions.combine_chunks()
    if versions.num_rows < 2:
        return versions
    numbers = _as_numbers(versions["key"].chunk(0))
    if numbers is None:
        order = pc.sort_indices(versions, sort_keys=[("key", "ascending"), ("commit_ts", "descending")]).to_numpy()
        keys = versions["key"].chunk(0).take(pa.array(order))
        changes = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
    else:
        tables, handles = numbers
        order = np.lexsort((~versions["commit_ts"].to_numpy(), handles, tables))
        tables, handles = tables[order], handles[order]
        changes = (tables[1:] != tables[:-1]) | (handles[1:] != handles[:-1])
    return versions.take(pa.array(order[np.concatenate([[True], changes])])).combine_chunks()


def _as_numbers(keys: pa.BinaryArray) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]] | None:
    """(table, handle) of each key, in whose order the keys are, if all have integer handles (as most tables have);
    these sort several times faster than bytes."""
    offsets = view(keys.buffers()[1], np.int32)[keys.offset : keys.offset + len(keys) + 1]
    if (np.diff(offsets) != _INT_KEY_BYTES).any():
        return None
    data = view(keys.buffers()[2], np.uint8)[offsets[0] : offsets[-1]].reshape(-1, _INT_KEY_BYTES)
    if (data[:, 0] != ord("t")).any() or (data[:, 9:11] != _RECORD_MARK).any():
        return None
    tables, handles = (np.ascontiguousarray(data[:, a : a + 8]).view(">u8").ravel().astype(np.uint64) for a in (1, 11))
    return tables, handles


def merged(runs: Sequence[Run]) -> Run:
    """Merge runs: the newest version of each key. CorruptObject when the keys of a run do not ascend, since the merge
    would then return old versions and deleted rows."""
    checked = [_rising(run) for run in runs]
    heads = [(head, run) for run in checked if (head := _next(run)) is not None]
    while len(heads) > 1:
        bound = min(_last_key(head) for head, _ in heads)
        parts, left = [], []
        for head, run in heads:
            count = bisect_right(_Keys(head), bound)
            parts.append(head.slice(0, count))
            rest = head.slice(count) if count < head.num_rows else _next(run)
            if rest is not None:
                left.append((rest, run))
        yield newest(pa.concat_tables(parts))
        heads = left
    for head, run in heads:
        yield head
        yield from run


def alive(run: Run) -> Run:
    """The run without deleted keys."""
    for table in run:
        kept = table.filter(pc.is_valid(table["value"])) if table["value"].null_count else table
        if kept.num_rows:
            yield kept


def pieces(table: pa.Table, bytes_target: int) -> Run:
    """A sorted table as a run of blocks of `bytes_target` bytes of keys and values, or of one larger row."""
    sizes = pc.add(pc.binary_length(table["key"]), pc.fill_null(pc.binary_length(table["value"]), 0))
    ends = np.cumsum(sizes.to_numpy().astype(np.int64) + _ROW_BYTES)
    at = 0
    while at < table.num_rows:
        begun = int(ends[at - 1]) if at else 0
        upto = max(at + 1, int(np.searchsorted(ends, begun + bytes_target, side="right")))
        yield table.slice(at, upto - at)
        at = upto


def _rising(run: Run) -> Run:
    """The run, with each block checked before it is used."""
    last: bytes | None = None
    for table in run:
        if table.num_rows:
            keys = table["key"]
            at = pc.index(pc.less(keys.slice(0, len(keys) - 1), keys.slice(1)), False).as_py()
            if last is not None and keys[0].as_py() <= last:
                _refuse(keys[0].as_py(), last)
            if at >= 0:
                _refuse(keys[at + 1].as_py(), keys[at].as_py())
            last = _last_key(table)
            yield table


def _refuse(key: bytes, after: bytes) -> None:
    raise CorruptObject("the rows of a table are not in key order and cannot be merged", key=key, after=after)


def _next(run: Run) -> pa.Table | None:
    return next((table for table in run if table.num_rows), None)


def _last_key(table: pa.Table) -> bytes:
    key: bytes = table["key"][table.num_rows - 1].as_py()
    return key


class _Keys:
    """The keys of a table as a sequence to bisect in: only the few compared become Python objects."""

    __slots__ = ("_keys",)

    def __init__(self, table: pa.Table) -> None:
        self._keys = table["key"]

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, at: int) -> bytes:
        key: bytes = self._keys[at].as_py()
        return key
