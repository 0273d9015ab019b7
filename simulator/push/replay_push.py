"""Pushes a recording of a real cluster, by the same client and sources that follow a living one.

    schema snapshot -> wait for the tenant's frontier -> the recorded cluster on the loopback interface
                    -> PD client, region region_cache, a TiKV source and a pusher per store -> wait until all is durable

Relations:

- the schema snapshot goes first, under the recorder's first checkpoint; without one beside the recording it is an empty
  cluster that only has the DDL job table, because recordings begin before their tables are created;
- the recorded cluster waits for its registrations, so nothing of it passes by unheard, however slow the service is;
- when everything was played, each store is given the time for a last tick, so that the last resolved ts is written;
- it plays from its beginning only: what the stores of a tenant have pushed lies ahead of it then, and that is refused.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import structlog

from pusher.control import Control
from pusher.push_run import PushRun
from pusher.schema_push import empty_snapshot, put_schema_snapshot, snapshot_ts
from pusher.tikv.source import TikvSource
from pusher.worker import PusherWorker
from simulator.push.capture_push import PushProgress, PushResult
from simulator.replay.server import ReplayCluster
from tistream.clock import Clock, SystemClock
from tistream.errors import ErrorKind, InvalidInput, TiStreamError
from tistream.keyrange import KeyRange
from tistream.objectstore.layout import SchemaSnapKey
from tistream.objectstore.protocol import ObjectStore
from tistream.tikv.pd import PdClient
from tistream.tikv.region_cache import RegionCache

log = structlog.get_logger(__name__)

SCHEMA = "schema_snapshot.json"
TIDB_KEYS = (KeyRange(b"m", b"n"), KeyRange(b"t", b"u"))  #: the meta range, and all tables
_STEP_S = 0.02
_PATIENCE_S = 3.0  # a region that nobody registers for longer is told of
_FLUSH_S = 0.5  # recordings are mostly played faster than they went
_QUIET_S = 2.5 * _FLUSH_S  # so long after the last row every store has had its last tick


def push_replay(
    directory: Path,
    control: Control,
    open_store: Callable[[str], ObjectStore],
    *,
    speed: float | None = None,
    progress: Callable[[PushProgress], None] = lambda _: None,
    stop: threading.Event | None = None,
    clock: Clock | None = None,
    rand: random.Random | None = None,
) -> PushResult:
    """Push the recording in `directory`; returns when all of it is durable, or early when `stop` is set.

    `speed`: None = as fast as possible, N = N times the recorded clock. Errors: the recording's (NotFound,
    CorruptObject, InvalidInput), InvalidInput when this tenant's stores have pushed later things already, and the
    pushers' own."""
    with ReplayCluster(Path(directory), speed=speed) as cluster:
        push = _Push(cluster, control, progress, stop, clock or SystemClock(), rand)
        return push.run(_schema(Path(directory), cluster.start_ts), open_store)


class _Push(PushRun):
    """One run of push_replay."""

    def __init__(
        self,
        cluster: ReplayCluster,
        control: Control,
        progress: Callable[[PushProgress], None],
        stop: threading.Event | None,
        clock: Clock,
        rand: random.Random | None,
    ) -> None:
        super().__init__(control, stop, clock, rand)
        self._cluster, self._control, self._progress = cluster, control, progress
        self._workers: list[PusherWorker] = []

    def run(self, schema: bytes, open_store: Callable[[str], ObjectStore]) -> PushResult:
        bundle = self._retry(self._control.push_bundle)
        if bundle is None:
            return self._result(complete=False)
        store = open_store(bundle.object_store)
        key = SchemaSnapKey(tenant=self._control.tenant, ts=self._cluster.start_ts)
        put = self._retry(lambda: put_schema_snapshot(store, key, schema))
        if put is None or not self._wait_for_frontier(bundle.state):
            return self._result(complete=False)
        pd = PdClient([self._cluster.pd_address], clock=self._clock)
        region_cache = RegionCache(pd, TIDB_KEYS, clock=self._clock)
        region_cache.start()
        try:
            self._start_workers(pd, region_cache, store)
            complete = self._play() and self._wait_until_durable(self._workers)
        finally:
            for worker in self._workers:
                worker.close()
            region_cache.stop()
            pd.close()
        self._report("done")
        return self._result(complete=complete)

    def _start_workers(self, pd: PdClient, region_cache: RegionCache, store: ObjectStore) -> None:
        for store_id in self._cluster.store_ids:
            source = TikvSource(
                store_id,
                pd=pd,
                region_cache=region_cache,
                wanted=TIDB_KEYS,
                clock=self._clock,
                flush_interval_s=_FLUSH_S,
            )
            worker = PusherWorker(
                source=source,
                control=self._control,
                frontier=self._frontier,
                store=store,
                clock=self._clock,
                rand=self._rand,
            )
            self._workers.append(worker)
            worker.start(self._stop)

    def _play(self) -> bool:
        """Push until everything was played and has had its last tick; False when told to stop."""
        quiet_since, rows = self._clock.monotonic(), -1
        while not self._stop.is_set():
            problem = self._step_all()
            now = self._clock.monotonic()
            handed = sum(worker.rows for worker in self._workers)
            if not self._cluster.played or handed != rows or any(w.stalled for w in self._workers):
                quiet_since, rows = now, handed
            elif now - quiet_since >= _QUIET_S:
                return True
            region, waited_s = self._cluster.waiting_for
            if waited_s > _PATIENCE_S:
                problem = problem or f"nobody has registered {region} for {waited_s:.0f} s"
            self._report("pushing", problem=problem)
        return False

    def _step_all(self) -> str:
        """What could not be reached, if anything."""
        problem = ""
        for worker in self._workers:
            try:
                worker.step(_STEP_S / len(self._workers))
            except TiStreamError as e:
                if e.kind is not ErrorKind.RETRY:
                    raise
                problem = str(e)
        return problem

    # -- what it says ----------------------------------------------------------------------------------------------

    def _report(self, phase: str, *, problem: str = "") -> None:
        uploads = [w.uploads() for w in self._workers]
        played, total = self._cluster.lines
        self._progress(
            PushProgress(
                phase=phase,
                ticks=played,
                ticks_total=total,
                now_ts=self._cluster.promised_ts,
                rows=sum(w.rows for w in self._workers),
                files=sum(u.files for u in uploads),
                bytes=sum(u.bytes for u in uploads),
                problem=problem,
            )
        )

    def _result(self, *, complete: bool) -> PushResult:
        uploads = [w.uploads() for w in self._workers]
        return PushResult(
            complete=complete,
            last_resolved_ts=self._cluster.promised_ts,
            rows=sum(w.rows for w in self._workers),
            files=sum(u.files for u in uploads),
            bytes=sum(u.bytes for u in uploads),
        )


def _schema(directory: Path, start_ts: int) -> bytes:
    """The schema at the recording's start: what lies beside it, else that of an empty cluster."""
    path = directory / SCHEMA
    if not path.is_file():
        return empty_snapshot(start_ts)
    data = path.read_bytes()
    found = snapshot_ts(data)
    if found != start_ts:
        raise InvalidInput("the schema snapshot belongs to another moment", file=str(path), ts=found)
    return data
