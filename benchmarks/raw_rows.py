"""RawKV rows against transactional ones: the same keys (but for mode and keyspace), values and commit timestamps.

The transactional side gets a prewrite and a commit of each write, the RawKV side one row; both write everything up to
the watermark. What they write is compared: in the core before the clock counts, of the process after every run.

    raw-rows/core       a tick of 100,000 writes in a task's core, in this process
    raw-rows/process    a whole sorter process, per core (see `whole_sorter`), 142-byte rows, in turn
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import Result, compare, in_turn
from benchmarks.match_sort import SECOND, RunSorter, Ticks, batch_of
from benchmarks.rows import BASE_TS
from benchmarks.store_batches import Workload, in_order, workload
from benchmarks.whole_sorter import ROWS_PER_TICK, measure
from tistream.codec.raw.keys import PREFIX_BYTES, KeyMode, keyspace_prefix
from tistream.feed.protocol import FeedBatch
from tistream.model.change import COMMITTED, FLAG_OLD_VALUE_UNKNOWN, REGIONS, ROWS, RowKind

TICKS = 24
PROCESS_TICKS, PROCESS_RUNS = 16, 5
TARGET = 1.2
_KEY = COMMITTED.names.index("key")
_SAME = ("key", "commit_ts", "op", "value")


def in_keyspace(keys: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The keys as keys of RawKV."""
    prefix, nothing = (pa.scalar(text, pa.binary()) for text in (keyspace_prefix(KeyMode.RAW, 1), b""))
    return pc.binary_join_element_wise(prefix, keys, nothing)


class RawTicks(Ticks):
    """The rows of `Ticks`, each committed in its tick, and the same rows as RawKV writes."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = in_keyspace(self.data.column("key"))
        self.carried = np.zeros(self.rows, np.bool_)

    def raw(self, n: int) -> FeedBatch:
        """The writes of tick n."""
        end = BASE_TS + (n + 1) * SECOND
        commit = np.uint64(BASE_TS + n * SECOND) + self.commit
        fixed = {
            "kind": np.full(self.rows, RowKind.RAW, np.uint8),
            "key": self.keys,
            "start_ts": commit,
            "commit_ts": commit,
            "flags": np.full(self.rows, FLAG_OLD_VALUE_UNKNOWN, np.uint8),
        }
        columns = [pa.array(fixed[name]) if name in fixed else self.data.column(name) for name in ROWS.names]
        return batch_of(pa.RecordBatch.from_arrays(columns, schema=ROWS), n + 1, end, end + SECOND // 2)


class Side:
    """A sorter that gets its next tick with each call."""

    def __init__(self, batches: list[FeedBatch]) -> None:
        self.sorter, self.batches, self.at = RunSorter(), batches, 0

    def __call__(self) -> pa.Table:
        self.at += 1
        return self.sorter.tick(self.batches[self.at - 1])


def same(raw: pa.Table, transactional: pa.Table) -> bool:
    """Whether both wrote the same."""
    order = [("commit_ts", "ascending"), ("key", "ascending")]
    want = transactional.set_column(_KEY, "key", in_keyspace(transactional["key"])).select(_SAME).sort_by(order)
    rows = raw.select(_SAME).sort_by(order)
    return raw.num_rows > 0 and all(rows[name].combine_chunks().equals(want[name].combine_chunks()) for name in _SAME)


def run() -> Iterator[Result]:
    """Both ratios."""
    ticks = RawTicks()
    sides = Side([ticks.raw(n) for n in range(TICKS)]), Side([ticks.batch(n) for n in range(TICKS)])
    yield compare("raw-rows/core", *sides, proof=same, target=TARGET)
    transactional = workload(142, ticks=PROCESS_TICKS, rows_per_tick=ROWS_PER_TICK)
    raw = as_raw(transactional)
    pairs = [in_turn(turn, partial(measure, raw), partial(measure, transactional)) for turn in range(PROCESS_RUNS)]
    yield Result.of("raw-rows/process", [a.rows_per_core / b.rows_per_core for a, b in pairs], TARGET)


def as_raw(given: Workload) -> Workload:
    """The same writes in RawKV, each when its commit was seen."""
    values = pl.DataFrame(given.rows.select(["key", "commit_ts", "value"]))
    commit = given.rows["commit_ts"]
    changed = {
        "table_id": pa.array(np.zeros(len(commit), np.int64)),
        "key": in_keyspace(given.rows["key"]),
        "start_ts": commit,
        "old_value": pa.nulls(len(commit), pa.binary()),
        "flags": pa.array(np.full(len(commit), FLAG_OLD_VALUE_UNKNOWN, np.uint8)),
    }
    rows = pa.table([changed.get(name, given.rows[name]) for name in COMMITTED.names], schema=COMMITTED)
    batches = {store: [_raw_batch(batch, values) for batch in listed] for store, listed in given.batches.items()}
    return replace(given, batches=batches, rows=in_order(rows), row_bytes=given.row_bytes + PREFIX_BYTES)


def _raw_batch(batch: FeedBatch, values: pl.DataFrame) -> FeedBatch:
    is_commit = batch.rows.column("kind").to_numpy() == RowKind.COMMIT
    rows = batch.rows.filter(pa.array(is_commit))
    joined = pl.DataFrame(rows).drop("value").join(values, ["key", "commit_ts"], how="left", maintain_order="left")
    changed = {
        "kind": pa.array(np.full(rows.num_rows, RowKind.RAW, np.uint8)),
        "key": in_keyspace(rows.column("key")),
        "start_ts": rows.column("commit_ts"),
        "value": joined["value"].to_arrow().cast(pa.binary()),
        "flags": pa.array(np.full(rows.num_rows, FLAG_OLD_VALUE_UNKNOWN, np.uint8)),
    }
    raw = pa.RecordBatch.from_arrays([changed.get(name, rows.column(name)) for name in ROWS.names], schema=ROWS)
    ends = np.concatenate([[0], np.cumsum(is_commit)])
    offset, count = (batch.regions.column(name).to_numpy().astype(np.int64) for name in ("row_offset", "row_count"))
    bounds = {"row_offset": ends[offset], "row_count": ends[offset + count] - ends[offset]}
    columns = {name: pa.array(numbers.astype(np.uint64)) for name, numbers in bounds.items()}
    for name in ("start_key", "end_key"):  # an empty one is no bound
        keys = batch.regions.column(name)
        columns[name] = pc.if_else(pc.equal(keys, pa.scalar(b"", pa.binary())), keys, in_keyspace(keys))
    regions = [columns.get(name, batch.regions.column(name)) for name in REGIONS.names]
    return replace(batch, rows=raw, regions=pa.RecordBatch.from_arrays(regions, schema=REGIONS))
