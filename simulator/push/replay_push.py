"""Pushes a recording of a real cluster with the client and the sources that follow a live one.

    schema snapshot -> wait for the tenant's frontier -> the recorded cluster on the loopback interface
                    -> PD client, region cache, a TiKV source and a pusher per store -> wait until all is durable

Relations:

- the schema snapshot goes first, under the recorder's first checkpoint; without one beside the recording it is that of
  an empty cluster with the DDL job table, because recordings begin before their tables are created;
- the recorded cluster waits for its registrations, so nothing is missed, however slow the service is;
- when everything was played, each store gets the time for a last tick, so that the last resolved ts is written;
- then the streams of its stores have ended, at the last resolved ts;
- it always plays from its beginning, so a tenant whose stores have pushed later timestamps is refused.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

from pusher.control import RecordingControl
from pusher.schema_push import empty_snapshot, snapshot_ts
from pusher.tikv.source import TikvSource
from simulator.push.recording_push import PushProgress, PushResult, RecordingPush
from simulator.replay.server import ReplayCluster
from tistream.clock import Clock
from tistream.errors import ErrorKind, InvalidInput, TiStreamError
from tistream.keyrange import KeyRange
from tistream.objectstore.protocol import ObjectStore
from tistream.tikv.pd import PdClient
from tistream.tikv.region_cache import RegionCache

SCHEMA = "schema_snapshot.json"
TIDB_KEYS = (KeyRange(b"m", b"n"), KeyRange(b"t", b"u"))  #: the meta range, and all tables
_STEP_S = 0.02
_PATIENCE_S = 3.0  # a region without a registration for longer is reported
_FLUSH_S = 0.5  # recordings are mostly played faster than real time
_IDLE_S = 2.5 * _FLUSH_S  # after the last row; by then every store has ticked


def push_replay(
    directory: Path,
    control: RecordingControl,
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
        schema = _schema(Path(directory), cluster.start_ts)
        return _ReplayPush(cluster, schema, control, progress, stop, clock, rand).run(open_store)


class _ReplayPush(RecordingPush):
    def __init__(
        self,
        cluster: ReplayCluster,
        schema: bytes,
        control: RecordingControl,
        progress: Callable[[PushProgress], None],
        stop: threading.Event | None,
        clock: Clock | None,
        rand: random.Random | None,
    ) -> None:
        super().__init__(control, progress, stop, clock, rand)
        self._cluster, self._snapshot = cluster, schema

    def _schema(self) -> tuple[int, bytes]:
        return self._cluster.start_ts, self._snapshot

    def _played(self) -> tuple[int, int, int]:
        return *self._cluster.lines, self._cluster.promised_ts

    def _push(self, store: ObjectStore) -> bool:
        self._pd = PdClient([self._cluster.pd_address], clock=self._clock)
        self._region_cache = RegionCache(self._pd, TIDB_KEYS, clock=self._clock)
        self._region_cache.start()
        try:
            return super()._push(store)
        finally:
            self._region_cache.stop()
            self._pd.close()

    def _play(self, store: ObjectStore) -> bool:
        for store_id in self._cluster.store_ids:
            source = TikvSource(
                store_id,
                pd=self._pd,
                region_cache=self._region_cache,
                wanted=TIDB_KEYS,
                clock=self._clock,
                flush_interval_s=_FLUSH_S,
            )
            self._start_worker(source, store)
        return self._play_all()

    def _play_all(self) -> bool:
        """Push until everything was played and the last tick is over; False when stopped."""
        idle_since, rows = self._clock.monotonic(), -1
        while not self._stop.is_set():
            problem = self._step_all()
            now = self._clock.monotonic()
            pushed = sum(worker.rows for worker in self._workers)
            if not self._cluster.played or pushed != rows or any(w.stalled for w in self._workers):
                idle_since, rows = now, pushed
            elif now - idle_since >= _IDLE_S:
                return True
            region, waited_s = self._cluster.waiting_for
            if waited_s > _PATIENCE_S:
                problem = problem or f"{region} has not been registered for {waited_s:.0f} s"
            self._report("pushing", problem=problem)
        return False

    def _step_all(self) -> str:
        """The fault that a worker waits for, or ""."""
        problem = ""
        for worker in self._workers:
            try:
                worker.step(_STEP_S / len(self._workers))
            except TiStreamError as e:
                if e.kind is not ErrorKind.RETRY:
                    raise
                problem = str(e)
        return problem


def _schema(directory: Path, start_ts: int) -> bytes:
    """The schema at the recording's start: the file beside it, else that of an empty cluster."""
    path = directory / SCHEMA
    if not path.is_file():
        return empty_snapshot(start_ts)
    data = path.read_bytes()
    found = snapshot_ts(data)
    if found != start_ts:
        raise InvalidInput("the schema snapshot is of another timestamp", file=str(path), ts=found)
    return data
