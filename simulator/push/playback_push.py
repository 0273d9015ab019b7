"""Pushes a recording of a real cluster with the client and the sources that follow a live one.

    schema snapshot -> wait for the tenant's frontier -> the recorded cluster on the loopback interface
                    -> PD client, region cache, a TiKV source and a pusher per store -> wait until all is durable

Relations:

- a raw or txn tenant begins at the recorder's first checkpoint, without a schema; only its keys are played;
- for a tenant of TiDB the schema snapshot goes first, under the recorder's first checkpoint; without one next to the
  recording it is that of an empty cluster with the DDL job table, because recordings begin before their tables are
  created;
- the recorded cluster waits for its registrations, so nothing is missed, however slow the service is;
- when everything was played, each store gets the time for a last tick, so that the last resolved ts is written;
- then the streams of its stores have ended, at the last resolved ts;
- it always plays from its beginning, so a tenant whose stores have pushed later timestamps is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from pusher.control import PlaybackControl, PushBundle, retrying
from pusher.flush_schedule import FlushSchedule
from pusher.keyspace import Followed, followed_keys
from pusher.schema_push import empty_snapshot, snapshot_ts
from pusher.tikv.source import SourceOptions, TikvSource
from simulator.playback.recording import check_recording
from simulator.playback.server import PlaybackCluster
from simulator.push.recording_push import PushProgress, PushResult, RecordingPush
from tistream.clock import Clock, SystemClock
from tistream.errors import ErrorKind, InvalidInput, TiStreamError
from tistream.keyrange import KeyRange
from tistream.objectstore.protocol import ObjectStore
from tistream.tikv.pd import PdClient
from tistream.tikv.region_cache import RegionCache

SCHEMA = "schema_snapshot.json"
TIDB_KEYS = (KeyRange(b"m", b"n"), KeyRange(b"t", b"u"))  #: the meta range, and all tables
_STEP_S = 0.02
_PATIENCE_S = 3.0  # a region without a registration for longer is reported
_PAUSE_MAX_S = 0.2  # a region that the recorded cluster refused ten times a second
_FLUSH_S = 0.5  # recordings are mostly played faster than real time
_IDLE_S = 2.5 * _FLUSH_S  # after the last row; by then every store has ticked


def push_playback(
    directory: Path,
    control: PlaybackControl,
    open_store: Callable[[str], ObjectStore],
    *,
    speed: float | None = None,
    progress: Callable[[PushProgress], None] = lambda _: None,
    stop: threading.Event | None = None,
    clock: Clock | None = None,
) -> PushResult:
    """Push the recording in `directory`; returns when all of it is durable, or early when `stop` is set.

    `speed`: None = as fast as possible, N = N times the recorded clock. Errors: the recording's (NotFound,
    CorruptObject, InvalidInput), InvalidInput when this tenant's stores have pushed later things already, and the
    pushers' own."""
    waits = threading.Event() if stop is None else stop
    clock = clock or SystemClock()
    check_recording(Path(directory))

    def notice(error: TiStreamError) -> None:
        progress(PushProgress(phase="connecting", problem=str(error)))

    bundle = retrying(control.push_bundle, stop=waits, clock=clock, notice=notice)
    if bundle is None:
        return PushResult(complete=False, last_resolved_ts=0, rows=0, files=0, bytes=0)
    followed = _followed(bundle)
    only = None if bundle.kind == "tidb" else followed.wanted[0]
    with PlaybackCluster(Path(directory), speed=speed, only=only, kv_api=followed.kv_api, wanted=only) as cluster:
        schema = _schema(Path(directory), cluster.start_ts) if only is None else b""
        return _PlaybackPush(cluster, followed, schema, control, progress, waits, clock).run(open_store)


def _followed(bundle: PushBundle) -> Followed:
    if bundle.kind == "tidb":
        return Followed(wanted=TIDB_KEYS)
    if bundle.keyspace_id is None:
        raise InvalidInput("A recording does not know the names of keyspaces: register the tenant with an id.")
    return followed_keys(bundle, bundle.keyspace_id)


class _PlaybackPush(RecordingPush):
    def __init__(
        self,
        cluster: PlaybackCluster,
        followed: Followed,
        schema: bytes,
        control: PlaybackControl,
        progress: Callable[[PushProgress], None],
        stop: threading.Event,
        clock: Clock,
    ) -> None:
        """`schema`: the snapshot of a tenant of TiDB."""
        super().__init__(control, progress, stop, clock)
        self._cluster, self._followed, self._snapshot = cluster, followed, schema
        self._keyspaces = control

    def _begin(self, store: ObjectStore) -> bool:
        keyspace_id, start_ts = self._followed.keyspace_id, self._cluster.start_ts
        if keyspace_id is None:
            return super()._begin(store)
        return self._retry(lambda: self._keyspaces.begin(keyspace_id, start_ts)) is not None

    def _schema(self) -> tuple[int, bytes]:
        return self._cluster.start_ts, self._snapshot

    def _played(self) -> tuple[int, int, int]:
        return *self._cluster.lines, self._cluster.promised_ts

    def _push(self, store: ObjectStore) -> bool:
        self._pd = PdClient([self._cluster.pd_address], clock=self._clock)
        self._region_cache = RegionCache(self._pd, self._followed.wanted, clock=self._clock)
        self._region_cache.start()
        try:
            return super()._push(store)
        finally:
            self._region_cache.stop()
            self._pd.close()

    def _play(self, store: ObjectStore) -> bool:
        options = SourceOptions(kv_api=self._followed.kv_api, pause_max_s=_PAUSE_MAX_S)
        for store_id in self._cluster.store_ids:
            source = TikvSource(
                store_id,
                options,
                pd=self._pd,
                region_cache=self._region_cache,
                ranges=self._followed.wanted,
                clock=self._clock,
                schedule=FlushSchedule(self._clock, flush_s=_FLUSH_S),
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
    """The schema at the recording's start: the file next to it, else that of an empty cluster."""
    path = directory / SCHEMA
    if not path.is_file():
        return empty_snapshot(start_ts)
    data = path.read_bytes()
    ts = snapshot_ts(data)
    if ts != start_ts:
        raise InvalidInput("the schema snapshot is of another timestamp", file=str(path), ts=ts)
    return data
