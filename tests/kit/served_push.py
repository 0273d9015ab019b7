"""The real pushers of a served cluster's stores, stepped by a test's thread, and a plain judge behind their bucket.

    with ServedPush(served, start_ts=floor_ts) as push:
        push.run_until(lambda: push.watermark >= end_ts, timeout_s=30)
        push.changes

The judge takes the batch files as they appear, a WatermarkOracle for each followed range, and publishes the frontier
that new subscriptions start at, as sorters would; where a commit stays undecided it asks for new subscriptions, once
for each.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

from pusher.frontier import FrontierEntry, FrontierReader
from pusher.tikv.source import TikvSource
from pusher.worker import PusherWorker
from simulator.serve.served import ServedCluster
from tests.kit.memory_control import MemoryControl
from tests.kit.oracle import Change, WatermarkOracle, batch_files
from tistream.clock import SystemClock
from tistream.codec.batch_file import BatchFile
from tistream.errors import ErrorKind, TiStreamError
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.objectstore.memory import MemoryStore
from tistream.tikv.pd import PdClient
from tistream.tikv.region_cache import RegionCache

TIDB_KEYS = (KeyRange(b"m", b"n"), KeyRange(b"t", b"u"))
_JUDGE_S = 0.2


class ServedPush:
    """Pushers into a bucket in memory. Used from one thread; `close` it, or use it as a context."""

    def __init__(
        self,
        served: ServedCluster,
        *,
        start_ts: int,
        wanted: Sequence[KeyRange] = TIDB_KEYS,
        store: MemoryStore | None = None,
        flush_s: float = 0.1,
        refresh_s: float = 1.0,
        seed: int = 1,
        queue_bytes_max: int = 64 << 20,
    ) -> None:
        clock, rand = SystemClock(), random.Random(seed)
        self.store = store or MemoryStore()
        self.oracles = [WatermarkOracle(start_ts, part) for part in wanted]
        self.files: list[BatchFile] = []  #: in the order in which the judge took them
        self._decoded: dict[str, BatchFile] = {}
        self._taken: dict[tuple[int, int], int] = {}
        self._judge_at = 0.0
        self.control = MemoryControl(Tenant(1, 2))
        self._asked: list[set[tuple[bytes, int]]] = [set() for _ in wanted]  # commits, for each range
        self._resubscribe_ids = [0 for _ in wanted]
        self._publish()
        self._pd = PdClient([served.pd_address])
        self._region_cache = RegionCache(self._pd, wanted, clock=clock, refresh_s=refresh_s)
        self._region_cache.start()
        frontier = FrontierReader(self.control, clock)
        self.workers: list[PusherWorker] = []
        for store_id in served.store_ids:
            source = TikvSource(
                store_id,
                pd=self._pd,
                region_cache=self._region_cache,
                wanted=wanted,
                clock=clock,
                flush_interval_s=flush_s,
            )
            worker = PusherWorker(
                source=source,
                control=self.control,
                frontier=frontier,
                store=self.store,
                clock=clock,
                rand=rand,
                queue_bytes_max=queue_bytes_max,
            )
            worker.start(threading.Event())
            self.workers.append(worker)

    @property
    def lives(self) -> list[tuple[int, int]]:
        """(store, incarnation) of the files that were taken."""
        return list(self._taken)

    @property
    def watermark(self) -> int:
        """What is complete in every range; 0 while something was never promised."""
        return min(0 if oracle.watermark is None else oracle.durable_ts for oracle in self.oracles)

    @property
    def resubscribed(self) -> bool:
        """Whether new subscriptions were asked for, because a commit stayed undecided."""
        return any(self._asked)

    @property
    def changes(self) -> dict[tuple[bytes, int], Change]:
        """(key, commit_ts) -> change, of what is complete."""
        return {place: change for oracle in self.oracles for place, change in oracle.served.items()}

    def run_until(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Step all pushers until it is so; False when it did not become so in time."""
        until = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() >= until:
                return False
            self.step()
        return True

    def run_for(self, seconds: float) -> None:
        """Step all pushers for so long."""
        self.run_until(lambda: False, seconds)

    def step(self) -> None:
        for worker in self.workers:
            try:
                worker.step(0.01)
            except TiStreamError as e:
                if e.kind is not ErrorKind.RETRY:
                    raise
        if time.monotonic() >= self._judge_at:
            self._judge_at = time.monotonic() + _JUDGE_S
            self._judge()

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self._region_cache.stop()
        self._pd.close()

    def __enter__(self) -> ServedPush:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the judge -------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        for life, files in batch_files(self.store, decoded=self._decoded).items():
            for file in files[self._taken.get(life, 0) :]:
                self.files.append(file)
                for oracle in self.oracles:
                    oracle.feed(file)
            self._taken[life] = len(files)
        self._publish()

    def _publish(self) -> None:
        for at, (oracle, asked) in enumerate(zip(self.oracles, self._asked, strict=True)):
            if oracle.undecided - asked:
                asked |= oracle.undecided
                self._resubscribe_ids[at] += 1
        self.control.entries = [
            FrontierEntry(range=o.range, durable_ts=o.durable_ts, resubscribe_id=resubscribe_id)
            for o, resubscribe_id in zip(self.oracles, self._resubscribe_ids, strict=True)
        ]
