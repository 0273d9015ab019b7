"""A whole sorter process on the recording's rows: batches over Arrow Flight in, committed objects and catalog rows out.

The process is the one that the command line runs (SQLite catalog, local folder, default settings); this one serves it
prepared batches (see `store_batches`) of three stores over Arrow Flight, all available at once. The committed rows are
read back through the catalog and must be the prepared ones, each once.

The result is rows per second of processor time of the whole process, user and system, all threads. The yardstick
(`pebble_peer`, needs Go) is Pebble with the options of TiCDC's event store, which writes, flushes and scans the same
rows in turn with the sorter. It neither receives nor matches nor publishes rows. Its cost per row rises until its
compactions keep up with its flushes; a run that is too short for that is refused.

    python -m benchmarks.whole_sorter [row bytes]      one run, and where the time went
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from benchmarks.harness import Result, in_turn
from benchmarks.pebble_peer import PebblePeer
from benchmarks.store_batches import STORES, Workload, in_order, workload
from dispatcher.flight_server import FlightFeedServer
from dispatcher.port_access import AcceptedTokens
from tests.kit.assignments import assign_store, assign_task
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.committed import find_segments
from tistream.catalog.rows.tenants import NewTask
from tistream.catalog.rows.workers import WorkerKind
from tistream.catalog.tenancy.tenants import activate_tenant, register_tenant
from tistream.catalog.work.leader import acquire_leadership
from tistream.catalog.work.service_tokens import accepted_tokens, rotate_service_token
from tistream.catalog.work.stores import issue_incarnation
from tistream.catalog.work.tasks import list_tasks
from tistream.catalog.work.workers import list_workers, register_worker
from tistream.clock import SystemClock
from tistream.codec.committed_file import decode_committed_segment
from tistream.feed.protocol import FeedBatch, FeedRequest, NoBatch, Wake
from tistream.ids import Position, Tenant
from tistream.keyrange import KeyRange
from tistream.model.change import COMMITTED
from tistream.objectstore.factory import open_store

RUNS = 5
RUN_BYTES = 1_400_000_000  #: of keys and values, prepared for one run
WARM_TICKS = 3  #: served first, not counted: kernels are loaded from numba's cache
ROWS_PER_TICK = 25_000
TENANT = Tenant(1, 1)
WAIT_S = 120.0
BAR = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The cost of one run."""

    rows: int
    bytes: float  #: of keys and values
    wall_s: float
    cpu_s: float
    stages: dict[str, float]  #: processor seconds

    @property
    def rows_per_core(self) -> float:
        return self.rows / self.cpu_s


def run() -> Iterator[Result]:
    """A ratio for each size of rows."""
    for row_bytes in (142, 256):
        given = prepared(row_bytes)
        with tempfile.TemporaryDirectory() as folder:
            peer = PebblePeer(Path(folder), given.rows)
            pairs = [in_turn(turn, partial(measure, given), peer.measure) for turn in range(RUNS)]
        ratios = [ours.rows_per_core / theirs.rows_per_core for ours, theirs in pairs]
        yield Result.of(f"whole-sorter/{row_bytes}-byte-rows-vs-pebble", ratios, 2.0)


def prepared(row_bytes: int) -> Workload:
    """The input of one run, in rows of that size."""
    return workload(row_bytes, ticks=RUN_BYTES // (row_bytes * ROWS_PER_TICK * STORES), rows_per_tick=ROWS_PER_TICK)


def measure(given: Workload) -> Run:
    """One run in a separate folder. ValueError when the process has not written exactly the prepared rows."""
    with tempfile.TemporaryDirectory() as folder:
        return _measure(given, Path(folder))


def _measure(given: Workload, folder: Path) -> Run:
    urls = [f"sqlite:///{folder}/catalog.db", f"file://{folder}/bucket"]
    (folder / "bucket").mkdir()
    catalog = Catalog(urls[0])
    catalog.migrate()
    feed = PreparedFeed(given)
    server = FlightFeedServer("127.0.0.1", 0, AcceptedTokens(partial(accepted_tokens, catalog), SystemClock()))
    server.source = feed
    _set_up(catalog, f"grpc://127.0.0.1:{server.port}", given)
    command = [sys.executable, "-m", "benchmarks.sorter_process", *urls]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            _assign(catalog, lambda: process.poll() is not None or len(list_workers(catalog, WorkerKind.SORTER)) > 0)
            warm_upto = min(_resolved(batches[WARM_TICKS - 1]) for batches in given.batches.values())
            _wait(lambda: list_tasks(catalog)[0].durable_ts >= warm_upto, "the warm-up")
            done = sum(s.rows for s in find_segments(catalog, TENANT, after_ts=0, upto_ts=warm_upto, limit=1 << 20))
            _tell(process, "start")
            began = time.perf_counter()
            feed.everything.set()
            _wait(lambda: list_tasks(catalog)[0].durable_ts >= given.last_ts, "the last row")
            wall_s = time.perf_counter() - began
            stages = _tell(process, "stop")
        finally:
            process.send_signal(signal.SIGTERM)
    _prove(catalog, urls[1], given)
    catalog.close()
    server.shutdown()
    rows = given.rows.num_rows - done
    return Run(rows=rows, bytes=rows * given.row_bytes, wall_s=wall_s, cpu_s=stages.pop("process"), stages=stages)


def _set_up(catalog: Catalog, address: str, given: Workload) -> None:
    register_tenant(catalog, TENANT)
    first_ts = int(given.batches[1][0].regions.column("checkpoint_ts")[0].as_py())
    activate_tenant(catalog, TENANT, first_ts, [NewTask(kind="data", range=KeyRange())])
    register_worker(catalog, "dispatcher-1", WorkerKind.DISPATCHER, address)
    epoch = acquire_leadership(catalog, "meta", starts=True)
    assert epoch is not None
    rotate_service_token(catalog, rotate_ms=86_400_000, leader_epoch=epoch)
    for store in given.batches:
        issue_incarnation(catalog, TENANT, store)
        assign_store(catalog, TENANT, store, worker_id="dispatcher-1", seen_epoch=0, leader_epoch=epoch)


def _assign(catalog: Catalog, is_up: Callable[[], bool]) -> None:
    _wait(is_up, "the sorter")
    epoch = acquire_leadership(catalog, "meta", starts=True)
    (task,) = list_tasks(catalog)
    assert epoch is not None
    assign_task(catalog, task.task_id, worker_id="sorter-1", seen_epoch=task.epoch, leader_epoch=epoch)


def _resolved(batch: FeedBatch) -> int:
    return int(batch.regions.column("resolved_ts")[0].as_py())


def _wait(until: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not until():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen in time")
        time.sleep(0.02)


def _tell(process: subprocess.Popen[str], word: str) -> dict[str, float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(word + "\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    return dict(json.loads(answer)) if answer.strip() else {}


def _prove(catalog: Catalog, bucket: str, given: Workload) -> None:
    store, parts = open_store(bucket), []
    for s in find_segments(catalog, TENANT, after_ts=0, upto_ts=given.last_ts, limit=1 << 20):
        data = store.get_range(s.object_key, s.offset, s.length)
        parts.append(decode_committed_segment(s.object_key, s.number, data, crc=s.crc, rows=s.rows))
    if not in_order(pa.concat_tables([COMMITTED.empty_table(), *parts])).equals(given.rows):
        raise ValueError("the process has not written the prepared rows, each once")


class PreparedFeed:
    """A Source of prepared batches. Those after the warm-up come when `everything` is set."""

    def __init__(self, given: Workload) -> None:
        self.given = given
        self.everything = threading.Event()

    def open(self, request: FeedRequest, wake: Wake) -> PreparedStream:
        return PreparedStream(self, request)


class PreparedStream:
    def __init__(self, feed: PreparedFeed, request: FeedRequest) -> None:
        self._feed = feed
        self._at = request.positions.get(1, Position(seq=0)).seq
        self._batches = feed.given.batches[request.store_id]

    def check(self) -> None:
        """All stores are served."""

    def look(self) -> FeedBatch | NoBatch:
        if self._at == len(self._batches) or (self._at >= WARM_TICKS and not self._feed.everything.is_set()):
            return None, time.monotonic() + 0.05
        self._at += 1
        return self._batches[self._at - 1]

    def close(self) -> None:
        """NoBatch is held."""


def show(given: Workload, result: Run) -> None:
    """Where the time of one run went, as bars."""
    stages = {name: s for name, s in result.stages.items() if s >= 0.001 * result.cpu_s}
    stages["other threads (gRPC, ...)"] = result.cpu_s - sum(result.stages.values())
    print(f"{result.rows:,} rows of {given.row_bytes:.0f} bytes from {STORES} stores in {result.wall_s:.2f} s")
    print(f"{result.rows / result.wall_s:,.0f} rows/s, {result.bytes / result.wall_s / 1e6:.0f} MB/s")
    cpu = f"{result.cpu_s:.2f} s of processor time: {result.rows_per_core:,.0f} rows/s"
    print(f"{cpu}, {result.bytes / result.cpu_s / 1e6:.0f} MB/s a core")
    for name, seconds in sorted(stages.items(), key=lambda s: -s[1]):
        share = seconds / result.cpu_s
        print(f"{name:28} {seconds / result.rows * 1e9:6.0f} ns/row {share:6.1%} {'#' * round(BAR * share)}")


if __name__ == "__main__":
    one = prepared(int(sys.argv[1]) if len(sys.argv) > 1 else 142)
    show(one, measure(one))
