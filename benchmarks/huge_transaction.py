"""A transaction larger than the sorter's memory, through a real sorter process to committed objects in a folder.

    python -m benchmarks.huge_transaction                                 2,000,000 rows of 1 KB, budget 512 MiB
    python -m benchmarks.huge_transaction --rows 20000000 --value-bytes 73
    python -m benchmarks.huge_transaction --rows 64000 --memory-mb 16     seconds

One task gets every prewrite of the transaction in an order unrelated to the keys, then every commit in another such
order, then the watermark. A second task of the same process gets a small transaction ten times a second: the time for
which its `durable_ts` is stalled is how long other tasks wait. At the end the log is read back and hashed column by
column, and so is the transaction in its final order. Snapshots are off; the batches are made in this process on demand.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sorter.worker.spill import Spill
from sorter.worker.worker import SorterWorker
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.committed import find_segments
from tistream.catalog.log.segments import SegmentRow
from tistream.catalog.tenancy.tenants import NewTask, activate_tenant, register_tenant
from tistream.catalog.work.leader import acquire_leadership
from tistream.catalog.work.stores import issue_incarnation
from tistream.catalog.work.tasks import assign_task, get_task
from tistream.clock import SystemClock
from tistream.codec.committed_file import decode_committed_segment
from tistream.codec.table_key import record_key, table_prefix
from tistream.feed.protocol import FeedBatch, FeedRequest
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.model.change import COMMITTED, REGIONS, ROWS, Op, RowKind
from tistream.objectstore.local import LocalStore

TENANT = Tenant(1, 1)
TABLE, OTHER_TABLE = 100, 200
SPLIT = table_prefix(150)
BASE_TS = 1_000
START_TS, COMMIT_TS, END_TS = 2_000, 3_000, 4_000
BATCH_BYTES = 8 << 20
WIDTH = 100  # characters of the graph
_BLOCK = np.random.default_rng(1).integers(0, 256, 1 << 20, np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A transaction: the number of its rows, all of one table, and the size of each value."""

    rows: int
    value_bytes: int

    @property
    def batch_rows(self) -> int:
        return max(1, BATCH_BYTES // (len(record_key(TABLE, 0)) + self.value_bytes))

    @property
    def nbytes(self) -> int:
        """Of keys and values."""
        return self.rows * (len(record_key(TABLE, 0)) + self.value_bytes)

    def keys(self, handles: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """A row of bytes for each handle."""
        prefix = np.frombuffer(record_key(TABLE, 0)[:-8], np.uint8)
        out = np.empty((len(handles), len(prefix) + 8), np.uint8)
        out[:, :-8] = prefix
        out[:, -8:] = (handles.astype(np.uint64) + np.uint64(1 << 63)).astype(">u8").view(np.uint8).reshape(-1, 8)
        return out

    def values(self, handles: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """A row of bytes for each handle: the handle, then noise that depends on it."""
        noise = np.lib.stride_tricks.sliding_window_view(_BLOCK, self.value_bytes)
        out = noise[handles * 7919 % len(noise)]
        head = min(8, self.value_bytes)
        out[:, :head] = handles.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 8 - head :]
        return out

    def shuffled(self, first: int, count: int, step: int) -> npt.NDArray[np.int64]:
        """Handles `first` to `first + count` of an order that visits each once."""
        while np.gcd(step, self.rows) != 1:
            step += 1
        return np.arange(first, first + count, dtype=np.int64) * step % self.rows


def _binary(rows: npt.NDArray[np.uint8]) -> pa.BinaryArray:
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * np.int32(rows.shape[1])
    return pa.BinaryArray.from_buffers(pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(rows)])


def _rows(kind: RowKind, keys: pa.BinaryArray, values: pa.BinaryArray | None, commit_ts: int) -> pa.RecordBatch:
    count, start_ts = len(keys), commit_ts - 1 if commit_ts > END_TS else START_TS
    fixed = {
        "kind": np.full(count, kind, np.uint8),
        "op": np.full(count, Op.PUT, np.uint8),
        "key": keys,
        "start_ts": np.full(count, start_ts, np.uint64),
        "commit_ts": np.full(count, commit_ts if kind != RowKind.PREWRITE else 0, np.uint64),
        "value": pa.nulls(count, pa.binary()) if values is None else values,
        "old_value": pa.nulls(count, pa.binary()),
    }
    zero = {"generation": np.zeros(count, np.uint64), "expire_ts": np.zeros(count, np.uint64)}
    fixed |= {**zero, "flags": np.zeros(count, np.uint8)}
    return pa.RecordBatch.from_arrays([_array(fixed[name]) for name in ROWS.names], schema=ROWS)


def _array(values: Any) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values)


def _batch(store_id: int, seq: int, rows: pa.RecordBatch, resolved_ts: int) -> FeedBatch:
    start, end = (b"", SPLIT) if store_id == 1 else (SPLIT, b"")
    region: dict[str, list[Any]] = {name: [1] for name in REGIONS.names}
    region |= {"start_key": [start], "end_key": [end], "tenure_ready_ts": [2], "checkpoint_ts": [BASE_TS]}
    region |= {"resolved_ts": [resolved_ts], "row_offset": [0], "row_count": [rows.num_rows]}
    regions = pa.RecordBatch.from_pydict(region, schema=REGIONS)
    cut_ts = max(END_TS, resolved_ts) + 1
    return FeedBatch(store_id=store_id, incarnation=1, seq=seq, cut_ts=cut_ts, rows=rows, regions=regions)


def transaction(shape: Shape) -> Iterator[FeedBatch]:
    """The batches of store 1: prewrites, commits, the watermark."""
    seq = 0
    for kind, step in ((RowKind.PREWRITE, 1_000_003), (RowKind.COMMIT, 7_368_787)):
        for first in range(0, shape.rows, shape.batch_rows):
            handles = shape.shuffled(first, min(shape.batch_rows, shape.rows - first), step)
            values = _binary(shape.values(handles)) if kind == RowKind.PREWRITE else None
            seq += 1
            yield _batch(1, seq, _rows(kind, _binary(shape.keys(handles)), values, COMMIT_TS), BASE_TS)
    yield _batch(1, seq + 1, _no_rows(), END_TS)


def _no_rows() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=ROWS)


def small_ones(stop: threading.Event) -> Iterator[FeedBatch]:
    """The batches of store 2: a one-row change ten times a second."""
    seq = 0
    while not stop.wait(0.1):
        seq += 1
        commit_ts = END_TS + 10 * seq
        key = pa.array([record_key(OTHER_TABLE, seq)], pa.binary())
        yield _batch(2, seq, _rows(RowKind.COMMITTED, key, pa.array([b"v"], pa.binary()), commit_ts), commit_ts + 1)


@dataclass(slots=True)
class _Stream:
    batches: Iterator[FeedBatch]

    def next(self, timeout_s: float) -> FeedBatch | None:
        batch = next(self.batches, None)
        if batch is None:
            time.sleep(timeout_s)
        return batch

    def close(self) -> None:
        pass


class _Feed:
    """Store 1 feeds task 1, store 2 feeds task 2."""

    def __init__(self, shape: Shape) -> None:
        self.stop = threading.Event()
        self._made = {1: transaction(shape), 2: small_ones(self.stop)}

    def subscribe(self, request: FeedRequest) -> _Stream:
        found = self._made[request.store_id] if request.store_id == request.task_id else iter(())
        return _Stream(found)


class _Watched(SorterWorker):
    """Notes how long the turns of its loop take."""

    longest_turn_s = 0.0
    longest_turn_cpu_s = 0.0

    def _round(self) -> None:
        before, cpu_before = time.monotonic(), time.thread_time()
        super()._round()
        self.longest_turn_s = max(self.longest_turn_s, time.monotonic() - before)
        self.longest_turn_cpu_s = max(self.longest_turn_cpu_s, time.thread_time() - cpu_before)


@dataclass(slots=True)
class Watch:
    """Samples, ten a second."""

    seconds: list[float] = field(default_factory=list)
    rss: list[int] = field(default_factory=list)  #: bytes; all
    anonymous: list[int] = field(default_factory=list)  #: bytes; without mapped files
    longest_wait_s: float = 0.0  #: during which the other task's durable watermark was stalled


def _memory() -> tuple[int, int]:
    """(resident bytes, resident bytes without mapped files) of this process."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return tuple(int(lines[name].split()[0]) << 10 for name in ("VmRSS", "RssAnon"))  # type: ignore[return-value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a run."""

    same: bool  #: whether the log holds the transaction, in order
    rows: int
    objects: int
    largest_object: int
    seconds: float
    longest_turn_s: float
    longest_turn_cpu_s: float
    watch: Watch
    rss_before: int


def play(shape: Shape, memory_mb: int, folder: Path, *, spill: Spill | None = None, wait_s: float = 3600.0) -> Report:
    """Run it, and compare."""
    catalog = Catalog(f"sqlite:///{folder}/catalog.db")
    catalog.migrate()
    register_tenant(catalog, TENANT)
    ranges = [KeyRange(b"", SPLIT), KeyRange(SPLIT, b"")]
    assert activate_tenant(catalog, TENANT, BASE_TS, [NewTask(kind="data", range=r) for r in ranges])
    for store_id in (1, 2):
        issue_incarnation(catalog, TENANT, store_id)
    epoch = acquire_leadership(catalog, "benchmark", starts=True)
    assert epoch is not None
    for task_id in (1, 2):
        assert assign_task(catalog, task_id, worker_id="s", seen_epoch=0, leader_epoch=epoch)
    store, feed = LocalStore(folder / "objects"), _Feed(shape)
    disk = spill or Spill(memory_mb << 20, folder)
    clock = SystemClock()
    worker = _Watched(catalog, store, feed, clock, worker_id="s", snapshot_interval_s=1e9, spill=disk)
    watch, began, rss_before = Watch(), time.monotonic(), _memory()[0]
    worker.start()
    try:
        _look(catalog, watch, began, wait_s)
    finally:
        feed.stop.set()
        seconds = time.monotonic() - began
        worker.stop()
    found = find_segments(catalog, TENANT, after_ts=0, upto_ts=COMMIT_TS, limit=100_000)
    mine = sorted((s for s in found if s.task_id == 1), key=lambda s: (s.object_key, s.number))
    same = _hash_of_log(store, mine) == _hash_of(shape)
    sizes = [store.size(key) for key in {s.object_key for s in mine}]
    catalog.close()
    return Report(
        same=same,
        rows=sum(s.rows for s in mine),
        objects=len(sizes),
        largest_object=max(sizes, default=0),
        seconds=seconds,
        longest_turn_s=worker.longest_turn_s,
        longest_turn_cpu_s=worker.longest_turn_cpu_s,
        watch=watch,
        rss_before=rss_before,
    )


def _look(catalog: Catalog, watch: Watch, began: float, wait_s: float) -> None:
    """Until the transaction is in the log."""
    seen, moved = 0, time.monotonic()
    while get_task(catalog, 1).durable_ts < COMMIT_TS:
        now = time.monotonic()
        assert now - began < wait_s, "the transaction did not get through"
        durable_ts = get_task(catalog, 2).durable_ts
        if durable_ts != seen:
            seen, moved = durable_ts, now
        if seen > END_TS:
            watch.longest_wait_s = max(watch.longest_wait_s, now - moved)
        rss, anonymous = _memory()
        watch.seconds.append(now - began)
        watch.rss.append(rss)
        watch.anonymous.append(anonymous)
        time.sleep(0.1)


class _Columns:
    """A hash of each column, the same however the rows are cut."""

    def __init__(self) -> None:
        self.hashes: dict[str, Any] = {}

    def add_bytes(self, name: str, data: Any) -> None:
        self.hashes.setdefault(name, hashlib.blake2b(digest_size=16)).update(data)

    def digest(self) -> dict[str, str]:
        return {name: h.hexdigest() for name, h in self.hashes.items()}


def _hash_of_log(store: LocalStore, segments: list[SegmentRow]) -> dict[str, str]:
    columns = _Columns()
    for s in segments:
        data = store.get_range(s.object_key, s.offset, s.length)
        table = decode_committed_segment(s.object_key, s.number, data, crc=s.crc, rows=s.rows, offset=s.offset)
        for name in COMMITTED.names:
            column = table.column(name).chunk(0)
            if pa.types.is_binary(column.type):
                _, offsets, buffer = column.buffers()
                bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
                columns.add_bytes(name, memoryview(buffer or b"")[bounds[0] : bounds[-1]])
                columns.add_bytes(name + " sizes", np.diff(bounds).astype(np.int32))
                columns.add_bytes(name + " nulls", column.is_null().to_numpy(zero_copy_only=False))
            else:
                columns.add_bytes(name, np.ascontiguousarray(column.to_numpy()))
    return columns.digest()


def _hash_of(shape: Shape) -> dict[str, str]:
    """The transaction in the order of the log: by key."""
    columns = _Columns()
    for first in range(0, shape.rows, shape.batch_rows):
        handles = np.arange(first, min(first + shape.batch_rows, shape.rows))
        count = len(handles)
        for name, data in (("key", shape.keys(handles)), ("value", shape.values(handles)), ("old_value", None)):
            columns.add_bytes(name, b"" if data is None else np.ascontiguousarray(data))
            columns.add_bytes(name + " sizes", np.full(count, 0 if data is None else data.shape[1], np.int32))
            columns.add_bytes(name + " nulls", np.full(count, data is None))
        numbers = {"table_id": (TABLE, np.int64), "op": (Op.PUT, np.uint8), "start_ts": (START_TS, np.uint64)}
        numbers |= {"commit_ts": (COMMIT_TS, np.uint64), "expire_ts": (0, np.uint64), "flags": (0, np.uint8)}
        for name, (value, kind) in numbers.items():
            columns.add_bytes(name, np.full(count, value, kind))
    return columns.digest()


def graph(watch: Watch, height: int = 12) -> str:
    """Memory over time: `#` without mapped files, `:` with them."""
    if not watch.rss:
        return ""
    top, width = max(watch.rss), min(WIDTH, len(watch.rss))
    edges = np.linspace(0, len(watch.rss), width + 1).astype(int)
    columns = [(max(watch.anonymous[a:b]), max(watch.rss[a:b])) for a, b in pairwise(edges)]
    lines = []
    for level in range(height, 0, -1):
        least = top * (level - 0.5) / height
        marks = "".join("#" if a >= least else ":" if r >= least else " " for a, r in columns)
        lines.append(f"{top * level / height / (1 << 20):7.0f} MiB |{marks}")
    return "\n".join([*lines, " " * 12 + "+" + "-" * width, f"{'':13}0 s{watch.seconds[-1]:{max(1, width - 5)}.0f} s"])


def main() -> int:
    """Run it and print the curve; 1 when the log is not the transaction."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--value-bytes", type=int, default=1000)
    parser.add_argument("--memory-mb", type=int, default=512)
    parser.add_argument("--folder", type=Path, default=None, help="for objects and spilled rows; it is emptied")
    given = parser.parse_args()
    shape = Shape(rows=given.rows, value_bytes=given.value_bytes)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        report = play(shape, given.memory_mb, Path(folder))
    peak, anonymous = max(report.watch.rss), max(report.watch.anonymous)
    print(graph(report.watch))
    print(
        f"{shape.rows:,} rows, {shape.nbytes / (1 << 20):,.0f} MiB, budget {given.memory_mb} MiB\n"
        f"the log holds it in order: {report.same}\n"
        f"{report.objects} objects, the largest {report.largest_object:,} bytes\n"
        f"{report.seconds:.1f} s; peak {peak >> 20} MiB, {anonymous >> 20} MiB without mapped files, "
        f"{report.rss_before >> 20} MiB at the start\n"
        f"longest turn of the loop {report.longest_turn_s:.2f} s, {report.longest_turn_cpu_s:.2f} s of a processor; "
        f"the other task waited {report.watch.longest_wait_s:.2f} s at most"
    )
    return 0 if report.same else 1


if __name__ == "__main__":
    raise SystemExit(main())
