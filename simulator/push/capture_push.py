"""Pushes a recording of a real cluster, as its stores would have pushed it.

    schema snapshot -> wait until the tenant's frontier is published -> the rows at the start, as a seed
                    -> a pusher per store over the cluster model -> one batch file per store and tick
                    -> wait until all are durable

Relations:

- the schema snapshot goes first, under the recording's start; the same content being there already is fine;
- the seed comes before the first batch file, and is left alone when it is there;
- a tick's now_ts is the cut_ts of its files; what is recorded behind the last tick is promised by nobody, so the last
  resolved ts is the last tick's now_ts;
- pushed again, the recording first plays silently to the first tick that is not behind what any of its stores has
  pushed, and writes that tick anew, as new incarnations whose subscriptions start at the frontier. So a recording
  that was pushed whole still writes one file per store, with the final watermarks;
- the player waits for the uploads: a recording can be held, unlike a cluster.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import structlog

from pusher.control import CaptureControl
from pusher.push_run import STORE_UNAVAILABLE, WAIT_S, PushRun
from pusher.schema_push import put_schema_snapshot
from pusher.seed_push import push_seed
from pusher.worker import PusherWorker
from simulator.capture import Capture, CapturePlayer, captured_rows
from simulator.push.model_source import ModelSource
from tistream import ts
from tistream.clock import Clock, SystemClock
from tistream.errors import InvalidInput
from tistream.objectstore.layout import SchemaSnapKey
from tistream.objectstore.protocol import ObjectStore

T = TypeVar("T")
log = structlog.get_logger(__name__)

_QUEUED_BYTES_MAX = 32 << 20  # per store; the player waits when more waits to be uploaded
_UNBOUNDED_BYTES = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class PushProgress:
    """How far a recording has been pushed."""

    phase: str  #: connecting, waiting (for the frontier), seeding, pushing, finishing (the uploads), done
    ticks: int = 0  #: played so far
    ticks_total: int = 0
    now_ts: int = 0  #: of the newest tick
    rows: int = 0  #: written to files, all stores together
    files: int = 0  #: durable
    bytes: int = 0  #: durable
    problem: str = ""  #: what is being waited for, if it is a fault


@dataclass(frozen=True, slots=True, kw_only=True)
class PushResult:
    """What was pushed."""

    complete: bool  #: False when it was stopped before the end
    last_resolved_ts: int  #: cut_ts of the last files; 0 when there are none
    rows: int
    files: int
    bytes: int


def push_capture(
    directory: Path,
    control: CaptureControl,
    open_store: Callable[[str], ObjectStore],
    *,
    speed: float | None = None,
    progress: Callable[[PushProgress], None] = lambda _: None,
    stop: threading.Event | None = None,
    clock: Clock | None = None,
    rand: random.Random | None = None,
) -> PushResult:
    """Push the recording in `directory`; returns when all of it is durable, or early when `stop` is set.

    `speed`: None = as fast as possible, N = N times the speed of the recorded clock. Service and object store may be
    away for any time. NotFound and CorruptObject for the recording's files, ObjectConflict when somebody else pushes
    as one of these incarnations, InvalidInput when another recording was pushed to this tenant before."""
    if speed is not None and speed <= 0:
        raise InvalidInput("the speed must be positive", speed=speed)
    push = _Push(Capture(Path(directory)), control, speed, progress, stop, clock or SystemClock(), rand)
    return push.run(open_store)


class _Push(PushRun):
    """One run of push_capture."""

    def __init__(
        self,
        capture: Capture,
        control: CaptureControl,
        speed: float | None,
        progress: Callable[[PushProgress], None],
        stop: threading.Event | None,
        clock: Clock,
        rand: random.Random | None,
    ) -> None:
        super().__init__(control, stop, clock, rand)
        self._capture, self._control, self._speed, self._progress = capture, control, speed, progress
        self._workers: list[PusherWorker] = []
        self._sources: list[ModelSource] = []
        self._ticks = 0
        self._tick_ts = 0
        self._paced_from: tuple[float, int] | None = None  # (monotonic seconds, tick ts) of the first tick

    def run(self, open_store: Callable[[str], ObjectStore]) -> PushResult:
        self._report("connecting")
        bundle = self._retry(self._control.push_bundle, "connecting")
        if bundle is None:
            return self._result(complete=False)
        store = open_store(bundle.object_store)
        player = CapturePlayer(self._capture)
        if not self._put_schema(store) or not self._wait_for_frontier(bundle.state):
            return self._result(complete=False)
        if not self._put_seed(store):
            return self._result(complete=False)
        try:
            self._start_workers(player, store)
            complete = self._play(player)
            complete = self._wait_until_durable(self._workers) and complete
        finally:
            for worker in self._workers:
                worker.close()
        self._report("done")
        return self._result(complete=complete)

    # -- before the first file -------------------------------------------------------------------------------------

    def _put_schema(self, store: ObjectStore) -> bool:
        """False when told to stop."""
        key = SchemaSnapKey(tenant=self._control.tenant, ts=self._capture.meta.start_ts)
        text = self._capture.schema_snapshot()
        return self._retry(lambda: put_schema_snapshot(store, key, text), "connecting") is not None

    def _put_seed(self, store: ObjectStore) -> bool:
        """False when told to stop."""
        ts = self._capture.meta.start_ts
        self._report("seeding")
        if (known := self._retry(lambda: self._control.has_seed(ts, 0), "seeding")) is None:
            return False
        if known:
            return True

        def once() -> bool:
            push_seed(self._control, store, ts, captured_rows(self._capture))
            return True

        return self._retry(once, "seeding") is not None

    def _start_workers(self, player: CapturePlayer, store: ObjectStore) -> None:
        pushed_to = 0
        for store_id in self._capture.meta.store_ids:
            source = ModelSource(player.cluster, store_id)
            worker = PusherWorker(
                source=source,
                control=self._control,
                frontier=self._frontier,
                store=store,
                clock=self._clock,
                rand=self._rand,
                queue_bytes_max=_UNBOUNDED_BYTES,  # the player waits instead: see _make_room
            )
            self._sources.append(source)
            self._workers.append(worker)
            pushed_to = max(pushed_to, worker.start(self._stop))
        if pushed_to and not self._stop.is_set():
            self._skip(player, pushed_to)

    def _skip(self, player: CapturePlayer, pushed_to: int) -> None:
        """Play silently to where the stores have pushed already, and say that tick again."""
        tick_ts = player.skip_to(pushed_to)
        if not tick_ts:
            raise InvalidInput(
                "the stores of this tenant have pushed beyond the end of the recording",
                recording=str(self._capture.directory),
                pushed_to=pushed_to,
                last_tick_ts=player.last_tick_ts,
            )
        log.info("recording was pushed before", resumed_at=tick_ts)
        self._tick(player, tick_ts)

    # -- the recording ---------------------------------------------------------------------------------------------

    def _play(self, player: CapturePlayer) -> bool:
        """Play to the end; False when told to stop before."""
        self._step_all()
        while (step := player.step()) is not None:
            if self._stop.is_set():
                return False
            if step.tick_ts:
                self._pace(step.tick_ts)
                if not self._make_room():
                    return False
                self._tick(player, step.tick_ts)
            else:
                self._step_all()
        return True

    def _tick(self, player: CapturePlayer, tick_ts: int) -> None:
        self._step_all()  # regions without a subscription get one before the tick, so that it speaks for them too
        player.cluster.tick(tick_ts)
        for source in self._sources:
            source.tick(tick_ts)
        self._step_all()
        self._ticks += 1
        self._tick_ts = tick_ts
        self._report("pushing")
        if tick_ts == self._capture.meta.last_resolved_ts and any(w.resubscribing for w in self._workers):
            self._tick(player, tick_ts)  # no later tick would say what the new subscriptions promise

    def _step_all(self) -> None:
        for worker in self._workers:
            worker.step()

    def _pace(self, tick_ts: int) -> None:
        if self._speed is None:
            return
        if self._paced_from is None:
            self._paced_from = (self._clock.monotonic(), tick_ts)
        began, first_ts = self._paced_from
        due = began + (ts.physical_ms(tick_ts) - ts.physical_ms(first_ts)) / 1000 / self._speed
        if (pause := due - self._clock.monotonic()) > 0:
            self._clock.wait(self._stop, pause)

    def _make_room(self) -> bool:
        """Wait for the uploads if there is much to upload; False when told to stop."""
        for worker in self._workers:
            while not worker.wait_until_queued_at_most(_QUEUED_BYTES_MAX, WAIT_S):
                if self._stop.is_set():
                    return False
                self._report("pushing", problem=STORE_UNAVAILABLE)
        return True

    # -- what it says ----------------------------------------------------------------------------------------------

    def _report(self, phase: str, *, problem: str = "") -> None:
        uploads = [w.uploads() for w in self._workers]
        self._progress(
            PushProgress(
                phase=phase,
                ticks=self._ticks,
                ticks_total=self._capture.meta.ticks,
                now_ts=self._tick_ts,
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
            last_resolved_ts=self._tick_ts,
            rows=sum(w.rows for w in self._workers),
            files=sum(u.files for u in uploads),
            bytes=sum(u.bytes for u in uploads),
        )
