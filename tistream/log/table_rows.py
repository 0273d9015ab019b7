"""Rows of a table at a timestamp, from a base and the log above it, in bounded memory.

    base: rows in key order ───────────────────────┐
                                                   ├─> merged by key, newest version wins ─> without the deleted
    committed rows, in any order ─> sorted runs ───┘

The log is in commit order, the result in key order. The log is read once and cut into sorted runs of bounded size with
the newest version of each key; completed runs spill to temporary files. FAN_IN of them become one larger run, so there
are at most FAN_IN files for each power of FAN_IN: 64 GiB of log need about thirty descriptors, and a block of the merge
is compared with as many runs. Memory holds one run under construction, and one block of each run and of the base during
a merge.

AS OF reads and base builds both use this, with their own sources. A tenant without tables has its keys in place of the
rows: then deletions and expiries are the caller's matter.
"""

from __future__ import annotations

import itertools
import mmap
import tempfile
from collections.abc import Iterable, Iterator

import pyarrow as pa

from tistream.catalog.rows.bases import KEY_RANGE
from tistream.catalog.rows.segments import SegmentRow
from tistream.codec.newest import KEY_VERSION, STATE, Run, alive, merged, newest, pieces, states
from tistream.codec.seed_file import KEYS, SEED, decode_seed_segment
from tistream.codec.table_key import is_record
from tistream.errors import CorruptObject
from tistream.objectstore.protocol import ObjectStore

RUN_BYTES_MAX = 64 << 20  # of a run under construction
BLOCK_BYTES = 4 << 20
FAN_IN = 16  # spilled runs that become one


def rows_at(base: Run, changes: Iterable[pa.Table], schema: pa.Schema = STATE) -> Iterator[pa.Table]:
    """The rows (of `schema`, STATE or newest.VERSION) in key order, none deleted. `base` is a run of it; `changes` are
    committed rows (schema change.COMMITTED) in any order, possibly repeated."""
    yield from alive(merged([base, *_runs(changes, schema)]))


def keys_at(base: Run, changes: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The newest version of each key (schema newest.KEY_VERSION) in key order, also of those that are deleted or have
    expired. `base` and `changes` as for `rows_at`."""
    yield from merged([base, *_runs(changes, KEY_VERSION)])


def base_rows(store: ObjectStore, row: SegmentRow, ts: int, schema: pa.Schema = STATE) -> pa.Table:
    """The rows of one segment of a seed or base of `ts`. ObjectNotFound when it was deleted."""
    try:
        data = store.get_range(row.object_key, row.offset, row.length)
    except CorruptObject as e:
        facts = {"object": row.object_key, "segment": row.number, "offset": row.offset}
        raise CorruptObject(f"segment of a base missing: {e.message}", **facts) from e
    stored = KEYS if row.table_lo == KEY_RANGE else SEED
    place = {"crc": row.crc, "rows": row.rows, "offset": row.offset}
    table = decode_seed_segment(row.object_key, row.number, data, ts=ts, schema=stored, **place)
    return table.select(schema.names).cast(schema)


def _runs(changes: Iterable[pa.Table], schema: pa.Schema) -> list[Run]:
    spilled = _Spilled()
    held: list[pa.Table] = []
    size = 0
    for rows in changes:
        if schema is not KEY_VERSION:
            rows = rows.filter(pa.array(is_record(rows["key"])))  # not index entries
        held.append(states(rows, schema))
        size += held[-1].nbytes
        if size < RUN_BYTES_MAX:
            continue
        reduced = newest(pa.concat_tables(held))
        if reduced.nbytes > RUN_BYTES_MAX // 2:  # else there were many versions of few keys: continue with the result
            spilled.add(pieces(reduced, BLOCK_BYTES))
            held, size = [], 0
        else:
            held, size = [reduced], reduced.nbytes
    runs = spilled.runs()
    if held:
        runs.append(pieces(newest(pa.concat_tables(held)), BLOCK_BYTES))
    return runs


class _Spilled:
    """Sorted runs in files: fewer than FAN_IN of each level; a run of a level is made of FAN_IN of the one below."""

    def __init__(self) -> None:
        self._levels: list[list[Run]] = []

    def add(self, run: Run) -> None:
        """Write a run, and merge those of each level that is full."""
        made = _spilled(run)
        for level in self._levels:
            level.append(made)
            if len(level) < FAN_IN:
                return
            made = _spilled(_blocked(merged(level)))
            level.clear()
        self._levels.append([made])

    def runs(self) -> list[Run]:
        """All of them."""
        return [run for level in self._levels for run in level]


def _blocked(run: Run) -> Run:
    """The same rows in blocks of at least BLOCK_BYTES, but for the last: a merge ends one wherever a run's ends."""
    held: list[pa.Table] = []
    size = 0
    for table in run:
        held.append(table)
        size += table.nbytes
        if size >= BLOCK_BYTES:
            yield pa.concat_tables(held).combine_chunks()
            held, size = [], 0
    if held:
        yield pa.concat_tables(held).combine_chunks()


def _spilled(run: Run) -> Run:
    """Write the run to an unnamed mapped file, which disappears with its reader."""
    with tempfile.TemporaryFile(prefix="tistream-rows-") as file:
        first = next(run)
        with pa.ipc.new_file(file, first.schema) as writer:
            for block in itertools.chain([first], run):
                for batch in block.to_batches():
                    writer.write_batch(batch)
        file.flush()
        return _blocks(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _blocks(file: mmap.mmap) -> Run:
    reader = pa.ipc.open_file(pa.py_buffer(file))
    for n in range(reader.num_record_batches):
        yield pa.Table.from_batches([reader.get_batch(n)])
