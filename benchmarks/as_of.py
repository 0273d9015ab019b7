"""A table as of a timestamp: newest version of each key over a base, against a replay of the same rows into a dict.

A base of 100,000 rows in key order, and 200,000 changes in commit order to its keys and to new ones, a tenth of them
deletes. Both sides begin with unpacked Arrow tables of seed and log segments, and end with the live keys and values in
key order. Decoding columns is excluded: it is the same for both, see `row-decode`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import Result, compare
from tistream.codec.newest import STATE, alive, merged, newest, pieces, states
from tistream.codec.table_key import record_key
from tistream.model import change

BASE, CHANGES, SEGMENTS = 100_000, 200_000, 20
BLOCK_BYTES = 4 << 20


def run() -> Iterator[Result]:
    """One ratio."""
    base, log = _base(), _log()

    def columnar() -> pa.Table:
        changes = newest(pa.concat_tables([states(segment) for segment in log]))
        return pa.concat_tables(list(alive(merged([pieces(base, BLOCK_BYTES), pieces(changes, BLOCK_BYTES)]))))

    def replayed() -> pa.Table:
        rows = dict(zip(base["key"].to_pylist(), base["value"].to_pylist(), strict=True))
        for segment in log:
            columns = (segment[name].to_pylist() for name in ("key", "op", "value"))
            for key, op, value in zip(*columns, strict=True):
                if op == change.Op.DELETE:
                    rows.pop(key, None)
                else:
                    rows[key] = value
        keys = sorted(rows)
        return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array([rows[k] for k in keys], pa.binary())})

    def same(mine: pa.Table, theirs: pa.Table) -> bool:
        shown = mine.select(["key", "value"]).combine_chunks()
        return bool(shown.equals(theirs.cast(shown.schema)))

    yield compare("newest versions over a base, dict replay = 1", columnar, replayed, proof=same, target=1.0, runs=5)


def _values(rand: np.random.Generator, count: int) -> pa.Array:
    data = rand.integers(0, 256, count * 120, np.uint8).tobytes()
    return pa.array([data[120 * i : 120 * (i + 1)] for i in range(count)], pa.binary())


def _base() -> pa.Table:
    keys = pa.array([record_key(7, handle) for handle in range(BASE)], pa.binary())
    return pa.table([keys, np.full(BASE, 1, np.uint64), _values(np.random.default_rng(1), BASE)], schema=STATE)


def _log() -> list[pa.Table]:
    rand = np.random.default_rng(2)
    handles = rand.integers(0, BASE + BASE // 10, CHANGES)
    deleted = rand.random(CHANGES) < 0.1
    values = _values(rand, CHANGES)
    rows = pa.table(
        {
            "table_id": np.full(CHANGES, 7, np.int64),
            "op": np.where(deleted, int(change.Op.DELETE), int(change.Op.PUT)).astype(np.uint8),
            "key": pa.array([record_key(7, int(handle)) for handle in handles], pa.binary()),
            "start_ts": np.arange(2, CHANGES + 2, dtype=np.uint64),
            "commit_ts": np.arange(2, CHANGES + 2, dtype=np.uint64),
            "value": pc.if_else(pa.array(deleted), pa.scalar(None, pa.binary()), values),
            "old_value": pa.nulls(CHANGES, pa.binary()),
            "expire_ts": np.zeros(CHANGES, np.uint64),
            "flags": np.zeros(CHANGES, np.uint8),
        }
    )
    size = CHANGES // SEGMENTS
    return [rows.slice(size * n, size).cast(change.COMMITTED) for n in range(SEGMENTS)]
