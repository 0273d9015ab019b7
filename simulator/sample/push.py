"""Pushes the shop to a service, as the pushers of a real cluster do, until it is stopped.

    file -> schema snapshot -> the tenant's frontier -> a pusher per store over the modelled cluster
         -> what is due happens, a tick each second

Relations:

- the file covers everything that has happened: it is written first, WRITTEN_MS ahead of the clock;
- a restart builds the cluster from the file and repeats what has happened since; the opening scans send it again;
- the state in the file is one that the service's log has reached, so no pusher asks for anything below it;
- after a break of the process or of the machine the shop opens a new session: it never makes up for lost time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import orjson

from pusher.control import Control, PushBundle
from pusher.frontier import lowest_durable_ts
from pusher.push_run import STORE_UNAVAILABLE, PushRun
from pusher.schema_push import put_schema_snapshot
from pusher.worker import PusherWorker
from simulator.push.model_source import ModelSource
from simulator.sample import kept as files
from simulator.sample.core.tables import Schema
from simulator.sample.core.upstream import STORES, Session, State, Upstream, first_state
from simulator.sample.kept import Kept
from tistream import ts
from tistream.clock import Clock, SystemClock
from tistream.errors import InvalidInput
from tistream.objectstore.layout import SchemaSnapKey
from tistream.objectstore.protocol import ObjectStore

SEED = 1
HEAD_START_MS = 60_000  #: the shop has been open for a minute when it is first seen
WRITTEN_MS = 20_000  #: the file covers as much of the time that comes
REWRITE_MS = 10_000  #: before the file ends to cover the clock it is written again
_TURN_S = 0.1
_TICK_MS = 1000


class SamplePush(PushRun):
    """One run. `upstream` may be looked at while `lock` is held, once `opened` is set."""

    def __init__(
        self,
        path: Path,
        control: Control,
        *,
        key: str = "",
        seed: int = SEED,
        stop: threading.Event | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`path`: the shop's file. `key`: kept in it."""
        super().__init__(control, stop, clock or SystemClock())
        self._path, self._control, self._key, self._seed = path, control, key, seed
        self._workers: list[PusherWorker] = []
        self._sources: list[ModelSource] = []
        self._candidate: State | None = None  # kept once the log has reached it
        self.problem = ""  #: what the push waits for
        self.now_ms = 0  #: everything that is due before has happened
        self.readable = threading.Event()  #: the service's log has the first rows
        self.opened, self.lock = threading.Event(), threading.Lock()
        self.upstream: Upstream

    def run(self, open_store: Callable[[str], ObjectStore]) -> None:
        """Push until `stop` is set. InvalidInput when the tenant's log is not that of the file."""
        if (bundle := self._retry(self._control.push_bundle)) is None:
            return
        store = open_store(bundle.object_store)
        self._kept = self._read(bundle)
        schema = orjson.dumps(Schema().snapshot(self._kept.start_ts))
        key = SchemaSnapKey(tenant=self._control.tenant, ts=self._kept.start_ts)
        put = bool(bundle.start_ts) or self._retry(lambda: put_schema_snapshot(store, key, schema)) is not None
        if put and self._wait_for_frontier(bundle.state):
            try:
                self._open(store)
                self._go_on()
            finally:
                for worker in self._workers:
                    worker.close()

    def _report(self, phase: str, *, problem: str = "") -> None:
        self.problem = problem

    # -- the file --------------------------------------------------------------------------------------------------

    def _read(self, bundle: PushBundle) -> Kept:
        kept = files.read(self._path)
        if bundle.start_ts and (kept is None or kept.start_ts != bundle.start_ts):
            raise InvalidInput(
                f"Tenant {self._control.tenant} has a log that is not the sample's: {self._path} is missing or of"
                " another log. Run the sample over another folder.",
                start_ts=bundle.start_ts,
            )
        if kept is None:
            first_ms = self._clock.unix_ms() - HEAD_START_MS
            state = first_state(first_ms)
            sessions = [Session(0, first_ms)]
            until_ms = first_ms + HEAD_START_MS
            kept = Kept(seed=self._seed, start_ts=state.ts, state=state, sessions=sessions, until_ms=until_ms)
        kept.key = self._key or kept.key
        files.write(self._path, kept)
        return kept

    def _write(self, now_ms: int) -> None:
        """Cover the time that comes, and keep a newer state once the log has reached it."""
        kept, durable_ts = self._kept, lowest_durable_ts(self._frontier.read())
        if self._candidate is not None and durable_ts is not None and self._candidate.ts <= durable_ts:
            kept.state = self._candidate
            self.upstream.forget(kept.state)
            self._candidate = None
        kept.sessions, kept.until_ms = list(self.upstream.sessions), now_ms + WRITTEN_MS
        files.write(self._path, kept)
        if self._candidate is None:
            self._candidate = self.upstream.state()

    # -- the shop --------------------------------------------------------------------------------------------------

    def _open(self, store: ObjectStore) -> None:
        self.upstream = Upstream(self._kept.seed, self._kept.state, self._kept.sessions)
        pushed_ts = 0
        for store_id in range(1, STORES + 1):
            source = ModelSource(self.upstream.cluster, store_id)
            worker = PusherWorker(
                source=source,
                control=self._control,
                frontier=self._frontier,
                store=store,
                clock=self._clock,
            )
            self._sources.append(source)
            self._workers.append(worker)
            pushed_ts = max(pushed_ts, worker.start(self._stop))
        self.now_ms = max(self._kept.until_ms, ts.physical_ms(pushed_ts) + 1)  # a clock that was set back waits
        self.upstream.advance(self._kept.until_ms)
        self._opened_ts = ts.compose(self._kept.until_ms)
        self._ticked_ms = 0
        self.opened.set()

    def _go_on(self) -> None:
        while not self._stop.is_set():
            with self.lock:
                self._turn(max(self.now_ms, self._clock.unix_ms()))
            slow = any(worker.stalled for worker in self._workers)
            self._report("pushing", problem=STORE_UNAVAILABLE if slow else "")
            self._clock.wait(self._stop, _TURN_S)

    def _turn(self, now_ms: int) -> None:
        self.now_ms = now_ms
        if now_ms > self._kept.until_ms:
            self.upstream.advance(self._kept.until_ms)
            self.upstream.open_session(now_ms)
        if now_ms > self._kept.until_ms - REWRITE_MS:
            self._write(now_ms)
        self.upstream.advance(now_ms)
        for worker in self._workers:
            worker.step()
        if now_ms - self._ticked_ms >= _TICK_MS:
            self._tick(now_ms)

    def _tick(self, now_ms: int) -> None:
        now_ts = ts.compose(now_ms)
        self.upstream.cluster.tick(now_ts)
        for source in self._sources:
            source.tick(now_ts)
        for worker in self._workers:
            worker.step()
        self._ticked_ms = now_ms
        if not self.readable.is_set() and (lowest_durable_ts(self._frontier.read()) or 0) >= self._opened_ts:
            self.readable.set()
