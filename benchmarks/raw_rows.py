"""A RawKV tick of a task against a transactional one: the same keys, values and commit timestamps, in one process.

A tick has 100,000 writes. The transactional side gets a prewrite and a commit of each, the RawKV side one row; both
write everything up to the watermark. What they write is compared before the clock counts: the same keys (but for mode
and keyspace), timestamps, operations and values.

    raw-rows/transactional      speed of a RawKV row in units of a transactional one's
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import Result, compare
from benchmarks.match_sort import SECOND, RunSorter, Ticks, batch_of
from benchmarks.rows import BASE_TS
from tistream.codec.raw.keys import KeyMode, keyspace_prefix
from tistream.feed.protocol import FeedBatch
from tistream.model.change import COMMITTED, FLAG_OLD_VALUE_UNKNOWN, ROWS, RowKind

TICKS = 24
TARGET = 1.2
_KEY = COMMITTED.names.index("key")
_SAME = ("key", "commit_ts", "op", "value")


def in_keyspace(keys: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The keys as keys of RawKV."""
    prefix, nothing = (pa.scalar(text, pa.binary()) for text in (keyspace_prefix(KeyMode.RAW, 1), b""))
    return pc.binary_join_element_wise(prefix, keys, nothing)


class RawTicks(Ticks):
    """The rows of `Ticks`, all of which commit in their tick, and the same as they are written in RawKV."""

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
    wanted = transactional.set_column(_KEY, "key", in_keyspace(transactional["key"])).select(_SAME).sort_by(order)
    found = raw.select(_SAME).sort_by(order)
    return raw.num_rows > 0 and all(
        found[name].combine_chunks().equals(wanted[name].combine_chunks()) for name in _SAME
    )


def run() -> Iterator[Result]:
    """One ratio."""
    ticks = RawTicks()
    sides = Side([ticks.raw(n) for n in range(TICKS)]), Side([ticks.batch(n) for n in range(TICKS)])
    yield compare("raw-rows/transactional", *sides, proof=same, target=TARGET)
