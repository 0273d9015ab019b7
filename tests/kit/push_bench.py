"""A push of a living cluster, a bucket, and a control plane that publishes what a plain judge found complete.

for bench in a_bench(at):
    bench.start()
    bench.until(lambda: bench.watermark > at)
    complete(bench)              nothing more happens, and every commit is there, once and as it was
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import grpc
import orjson

from pusher.control import ClusterControl
from pusher.frontier import FrontierEntry
from pusher.tikv_options import TikvPushOptions, TikvPushProgress
from pusher.tikv_push import push_cluster
from simulator.profiles import DEFAULT
from simulator.serve.content import workload_cluster
from simulator.serve.faults import CALM, Faults
from simulator.serve.served import ServedCluster
from simulator.workload import Workload
from tests.kit.memory_control import MemoryControl
from tests.kit.oracle import Change, WatermarkOracle, batch_files
from tistream.clock import Clock
from tistream.codec.batch_file import BatchFile
from tistream.errors import TiStreamError
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.objectstore.layout import schema_snap_prefix
from tistream.objectstore.memory import MemoryStore
from tistream.objectstore.protocol import ObjectStore

TENANT = Tenant(1, 2)
KEYS = (KeyRange(b"m", b"n"), KeyRange(b"t", b"u"))
HOLD = "tistream-"
LIMIT_S = 40.0


class PushBench:
    """A bucket, a control plane that publishes what a judge found complete, and one push at a time."""

    def __init__(self, served: ServedCluster, at: int, **options: object) -> None:
        self.served = served
        self.options: dict[str, object] = {"flush_interval_s": 0.1, **options}
        self.store, self.control = MemoryStore(), MemoryControl(TENANT)
        self.push_control: ClusterControl = self.control  #: as the push sees it
        self.open_store: Callable[[str], ObjectStore] = lambda _: self.store
        self.clock: Clock | None = None
        self.oracles = [WatermarkOracle(at, part) for part in KEYS]
        self.decoded: dict[str, BatchFile] = {}
        self.taken: dict[tuple[int, int], int] = {}  #: files of each (store, incarnation)
        self.asked: list[set[tuple[bytes, int]]] = [set() for _ in KEYS]  # commits that stayed undecided, by range
        self.resubscribe_ids = [0 for _ in KEYS]  #: raised for new subscriptions, once for each such commit
        self.seen = TikvPushProgress(phase="")
        self.problems: set[str] = set()
        self.judging = True
        self.error: TiStreamError | None = None
        self.thread: threading.Thread | None = None

    def start(self, **options: object) -> None:
        self.stop_event = threading.Event()
        whole = TikvPushOptions(**{**self.options, **options})  # type: ignore[arg-type]
        self.thread = threading.Thread(target=self.run, args=(whole,))
        self.thread.start()

    def run(self, options: TikvPushOptions) -> None:
        try:
            push_cluster(
                [self.served.pd_address],
                self.push_control,
                self.open_store,
                options,
                progress=self.heard,
                stop=self.stop_event,
                clock=self.clock,
            )
        except TiStreamError as e:
            self.error = e

    def heard(self, p: TikvPushProgress) -> None:
        self.seen = p
        self.problems.update(p.problems)

    def stop(self) -> None:
        if self.thread is not None:
            self.stop_event.set()
            self.thread.join()
            self.thread = None

    def activate(self) -> None:
        """As the meta server: the first snapshot is the beginning."""
        if not self.control.entries and list(self.store.list(schema_snap_prefix(TENANT))):
            self.publish()

    def publish(self) -> None:
        for at, (oracle, asked_of) in enumerate(zip(self.oracles, self.asked, strict=True)):
            if oracle.undecided - asked_of:
                asked_of |= oracle.undecided
                self.resubscribe_ids[at] += 1
        self.control.entries = [
            FrontierEntry(range=o.range, durable_ts=o.durable_ts, resubscribe_id=resubscribe_id)
            for o, resubscribe_id in zip(self.oracles, self.resubscribe_ids, strict=True)
        ]

    def judge(self) -> None:
        for life, files in batch_files(self.store, decoded=self.decoded).items():
            for file in files[self.taken.get(life, 0) :]:
                for oracle in self.oracles:
                    oracle.feed(file)
            self.taken[life] = len(files)
        self.publish()

    @property
    def watermark(self) -> int:
        return min(oracle.watermark or 0 for oracle in self.oracles)

    @property
    def changes(self) -> dict[tuple[bytes, int], Change]:
        """(key, commit_ts) -> change, of what is complete."""
        return {place: change for oracle in self.oracles for place, change in oracle.served.items()}

    def until(self, done: Callable[[], bool]) -> None:
        """Wait, as a service does, until it is so."""
        deadline = time.monotonic() + LIMIT_S
        while not done():
            assert time.monotonic() < deadline, self.seen
            if self.error is not None:
                raise self.error
            self.activate()
            if self.control.entries and self.judging:
                self.judge()
            time.sleep(0.05)

    def until_it_fails(self) -> TiStreamError:
        assert self.thread is not None
        deadline = time.monotonic() + LIMIT_S
        while self.thread.is_alive() and time.monotonic() < deadline:
            self.activate()
            time.sleep(0.02)
        assert self.error is not None, self.seen
        return self.error

    def snapshots(self) -> list[str]:
        return [info.key for info in self.store.list(schema_snap_prefix(TENANT))]

    def held(self) -> list[int]:
        with self.served.changing():
            return [at for name, at in self.served.pd.holds.items() if name.startswith(HOLD.encode())]


def a_bench(at: int, faults: Faults = CALM, interceptors: Sequence[grpc.ServerInterceptor] = ()) -> Iterator[PushBench]:
    """A small cluster with a workload that begins at `at`."""
    plain = tuple((name, weight) for name, weight in DEFAULT.transactions if name != "pipelined")
    profile = replace(DEFAULT, transactions=plain)  # what the plain judge can tell apart
    cluster = workload_cluster(profile, floor_ts=at)
    workload = Workload(7, cluster, profile)
    with ServedCluster(
        cluster, workload=workload, steps_per_s=150, resolved_s=0.2, faults=faults, interceptors=interceptors
    ) as served:
        snapshot = {**workload.schema_snapshot(), "ts": str(at)}
        bench = PushBench(served, at, schema_snapshot=orjson.dumps(snapshot))
        yield bench
        bench.stop()


def truth(workload: Workload) -> dict[tuple[bytes, int], Change]:
    """(key, commit_ts) -> change, of what was committed."""
    return {(r.key, r.commit_ts): Change(r.start_ts, int(r.op), r.value, r.old_value) for r in workload.committed}


def complete(bench: PushBench, least: int = 50) -> int:
    """Nothing more happens; what was committed, at `least` so much, is complete, once and as it was. Up to when."""
    workload = bench.served.workload
    assert workload is not None
    bench.until(lambda: len(workload.committed) > least)
    end_ts = bench.served.settle()
    bench.until(lambda: bench.watermark >= end_ts)
    assert bench.changes == truth(workload)
    return end_ts
