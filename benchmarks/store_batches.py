"""Feed batches of a few stores under ordinary transactions, and the committed rows expected from them.

Rows are those of the recording's table `shop_arch.bulk5k` (10 columns; key and value together 142 bytes on average)
under new handles, with as many bytes of each value replaced as make zstd(1) compress them like the recording's. Larger
rows are two values put together. Every tenth row updates an older one, the others insert.

A transaction has five rows in any regions of any stores. Each row is prewritten up to 20 ms after the start of its
transaction, the commit follows within 300 ms and reaches the store up to 50 ms later. A store's file holds the rows of
its tick, clustered by region in the order of arrival; every region is resolved up to the oldest open lock of its store.
The stores cut their files at different times. Everything is drawn from a seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.rows import BASE_TS
from tests.kit.made_rows import batch_of, table_of
from tests.kit.recording import committed_rows, recorded_history
from tistream.codec.table_key import record_key
from tistream.feed.protocol import FeedBatch
from tistream.model.change import COMMITTED, REGIONS, ROWS, Op, RowKind

STORES = 3
REGION_COUNT = 300
TABLES = 10
TXN_ROWS = 5
UPDATES = 10  #: one of this many rows has an old value
NOISE = 0.06  #: of the bytes of a value
POOL = 50_000  #: distinct values
MS = 1 << 18

_Stamps = npt.NDArray[np.uint64]
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Batches of each store in their order, and the committed rows by (commit_ts, start_ts, key)."""

    batches: dict[int, list[FeedBatch]]
    rows: pa.Table  #: schema change.COMMITTED
    last_ts: int  #: every region is resolved up to here in the end
    row_bytes: float  #: keys and values, mean


def workload(row_bytes: int, *, ticks: int, rows_per_tick: int, seed: int = 1) -> Workload:
    """`ticks` files of each store, with about `rows_per_tick` rows of about `row_bytes` bytes committed in each."""
    rng = np.random.default_rng(seed)
    count = ticks * rows_per_tick * STORES // TXN_ROWS * TXN_ROWS
    tick_ts = 1000 * MS
    txn_start = np.sort(rng.integers(0, ticks * tick_ts - 400 * MS, count // TXN_ROWS)).astype(np.uint64)
    start = np.repeat(txn_start + np.uint64(BASE_TS), TXN_ROWS)
    commit = start + np.repeat(rng.integers(20 * MS, 300 * MS, count // TXN_ROWS), TXN_ROWS).astype(np.uint64)
    arrived = start + rng.integers(0, 20 * MS, count).astype(np.uint64)
    decided = commit + rng.integers(0, 50 * MS, count).astype(np.uint64)
    region = rng.integers(0, REGION_COUNT, count)
    keys = _keys(region, rng.permutation(count))
    values = _values(row_bytes - 19, rng).take(pa.array(rng.integers(0, POOL, count)))
    updates = np.arange(count) % UPDATES == 0
    old = pc.if_else(pa.array(updates), values.take(pa.array(rng.permutation(count))), None)
    times = {"start": start, "commit": commit, "came": arrived, "decided": decided}
    data = _Rows(**times, region=region, keys=keys, values=values, old=old)
    batches = {s: _batches_of(data, s, ticks, tick_ts) for s in range(1, STORES + 1)}
    whole = _committed(data)
    size = sum(int(pc.sum(pc.binary_length(whole[name])).as_py()) for name in ("key", "value")) / count
    return Workload(batches=batches, rows=whole, last_ts=BASE_TS + (ticks + 1) * tick_ts, row_bytes=size)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    start: _Stamps
    commit: _Stamps
    came: _Stamps  #: when its store saw the prewrite
    decided: _Stamps  #: and the commit
    region: _Ints
    keys: pa.BinaryArray
    values: pa.BinaryArray
    old: pa.BinaryArray


def _keys(region: _Ints, handles: _Ints) -> pa.BinaryArray:
    flat = np.frombuffer(record_key(1, 0) * len(region), np.uint8).reshape(-1, 19).copy()
    flat[:, 8] = 100 + region * TABLES // REGION_COUNT
    flat[:, 11:] = ((region << 32 | handles) ^ np.int64(-(2**63))).astype(">i8").view(np.uint8).reshape(-1, 8)
    offsets = np.arange(0, 19 * len(region) + 1, 19, dtype=np.int32)
    return pa.BinaryArray.from_buffers(pa.binary(), len(region), [None, pa.py_buffer(offsets), pa.py_buffer(flat)])


def _values(mean_bytes: int, rng: np.random.Generator) -> pa.BinaryArray:
    history, log = recorded_history(), committed_rows()
    table = history.find("shop_arch", "bulk5k", history.resolved_ts).id
    rows = log.filter(pc.and_(pc.equal(log["table_id"], table), pc.is_valid(log["value"])))
    values = rows["value"].combine_chunks().take(pa.array(rng.integers(0, rows.num_rows, POOL)))
    more = values.take(pa.array(rng.permutation(POOL)))
    lengths = pc.binary_length(values).to_numpy()
    extra = max(0.0, mean_bytes / float(lengths.mean()) - 1)
    if extra > 0:
        cut = pl.DataFrame({"a": pl.from_arrow(values), "b": pl.from_arrow(more)})
        sizes = (pc.binary_length(more).to_numpy() * extra).astype(np.int64).tolist()
        values = pa.array([a + (b * 2)[:n] for a, b, n in zip(cut["a"], cut["b"], sizes, strict=True)], pa.binary())
    _, offsets, data = values.buffers()
    octets = np.frombuffer(data, np.uint8).copy()
    at = rng.integers(0, len(octets), int(NOISE * len(octets)))
    octets[at] = octets[rng.integers(0, len(octets), len(at))]
    return pa.BinaryArray.from_buffers(pa.binary(), POOL, [None, offsets, pa.py_buffer(octets)])


def _batches_of(data: _Rows, store: int, ticks: int, tick_ts: int) -> list[FeedBatch]:
    of_store = np.flatnonzero(data.region % STORES == store - 1)
    arrived, decided, start = data.came[of_store], data.decided[of_store], data.start[of_store]
    out = []
    low = np.uint64(0)
    for k in range(ticks):
        cut = np.uint64(BASE_TS + (k + 1) * tick_ts + store * 37 * MS)
        resolved = cut
        if k + 1 < ticks:
            open_ = (arrived < cut) & (decided >= cut)
            resolved = min(cut, start[open_].min() - np.uint64(1)) if open_.any() else cut
        else:
            cut = resolved = np.uint64(BASE_TS + (ticks + 1) * tick_ts)
        prewrites, commits = of_store[(arrived >= low) & (arrived < cut)], of_store[(decided >= low) & (decided < cut)]
        out.append(_batch(data, store, k + 1, prewrites, commits, int(resolved), int(cut)))
        low = cut
    return out


def _batch(data: _Rows, store: int, seq: int, prewrites: _Ints, commits: _Ints, resolved: int, cut: int) -> FeedBatch:
    at = np.concatenate([prewrites, commits])
    is_commit = np.arange(len(at)) >= len(prewrites)
    order = np.lexsort((np.where(is_commit, data.decided[at], data.came[at]), data.region[at]))
    at, is_commit = at[order], is_commit[order]
    at_rows, none = pa.array(at), pa.array(is_commit)
    rows = batch_of(
        ROWS,
        kind=np.where(is_commit, RowKind.COMMIT, RowKind.PREWRITE),
        op=Op.PUT,
        key=data.keys.take(at_rows),
        start_ts=data.start[at],
        commit_ts=np.where(is_commit, data.commit[at], np.uint64(0)),
        value=data.values.take(pc.if_else(none, None, at_rows)),
        old_value=data.old.take(pc.if_else(none, None, at_rows)),
    )
    regions = _regions(store, np.bincount(data.region[at], minlength=REGION_COUNT), resolved)
    return FeedBatch(store_id=store, incarnation=1, seq=seq, cut_ts=cut, rows=rows, regions=regions)


def _regions(store: int, counts: _Ints, resolved: int) -> pa.RecordBatch:
    ids = np.arange(store - 1, REGION_COUNT, STORES)
    edges = _keys(np.arange(1, REGION_COUNT), np.zeros(REGION_COUNT - 1, np.int64)).to_pylist()
    edges = [b"", *edges, b""]
    of = counts[ids]
    return batch_of(
        REGIONS,
        region_id=ids + 1,
        version=1,
        start_key=[edges[i] for i in ids],
        end_key=[edges[i + 1] for i in ids],
        subscription_open_ts=BASE_TS,
        subscription_ready_ts=BASE_TS,
        checkpoint_ts=BASE_TS,
        resolved_ts=resolved,
        row_offset=np.cumsum(of) - of,
        row_count=of,
    )


def _committed(data: _Rows) -> pa.Table:
    tables = 100 + data.region * TABLES // REGION_COUNT
    stamps = {"start_ts": data.start, "commit_ts": data.commit}
    images = {"value": data.values, "old_value": data.old}
    return in_order(table_of(COMMITTED, table_id=tables, op=Op.PUT, key=data.keys, **stamps, **images))


def in_order(rows: pa.Table) -> pa.Table:
    """Rows by (commit_ts, start_ts, key), in one chunk."""
    order = [(name, "ascending") for name in ("commit_ts", "start_ts", "key")]
    return rows.take(pc.sort_indices(rows, sort_keys=order)).combine_chunks()
