"""Pushes a recording of a real cluster through the cluster model.

    schema snapshot -> wait until the tenant's frontier is published -> the rows at the start, as a seed
                    -> a pusher per store over the cluster model -> one batch file per store and tick
                    -> wait until all are durable

Relations:

- the schema snapshot goes first, under the recording's start; the same content being there already is fine;
- the seed comes before the first batch file, unless it exists;
- a tick's now_ts is the cut_ts of its files. No watermark covers what is recorded after the last tick, so the last
  resolved ts is the last tick's now_ts;
- pushed again, the recording first plays silently to the first tick that is not behind what any of its stores has
  pushed, and writes that tick again, as new incarnations whose subscriptions start at the frontier. So a recording
  that was pushed completely still writes one file per store, with the final watermarks;
- a recording knows its end: the service learns it before the first tick, and lag counts up to there;
- the player waits for the uploads: a recording can be held, unlike a cluster.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import structlog

from pusher.control import CaptureControl
from pusher.push_run import STORE_UNAVAILABLE, WAIT_S
from pusher.seed_push import push_seed
from simulator.capture import Capture, CapturePlayer, captured_rows
from simulator.push.model_source import ModelSource
from simulator.push.recording_push import PushProgress, PushResult, RecordingPush
from tistream import ts
from tistream.clock import Clock
from tistream.errors import InvalidInput
from tistream.objectstore.protocol import ObjectStore

log = structlog.get_logger(__name__)

_QUEUED_BYTES_MAX = 32 << 20  # per store; the player waits when more waits to be uploaded
_UNBOUNDED_BYTES = 1 << 62


def push_capture(
    directory: Path,
    control: CaptureControl,
    open_store: Callable[[str], ObjectStore],
    *,
    speed: float | None = None,
    progress: Callable[[PushProgress], None] = lambda _: None,
    stop: threading.Event | None = None,
    clock: Clock | None = None,
) -> PushResult:
    """Push the recording in `directory`; returns when all of it is durable, or early when `stop` is set.

    `speed`: None = as fast as possible, N = N times the speed of the recorded clock. Service and object store may be
    unavailable for any time. NotFound and CorruptObject for the recording's files, ObjectConflict when another process
    pushes as one of these incarnations, InvalidInput when another recording was pushed to this tenant before."""
    if speed is not None and speed <= 0:
        raise InvalidInput("the speed must be positive", speed=speed)
    capture = Capture(Path(directory))
    return _CapturePush(capture, speed, control, progress, stop, clock).run(open_store)


class _CapturePush(RecordingPush):
    def __init__(
        self,
        capture: Capture,
        speed: float | None,
        control: CaptureControl,
        progress: Callable[[PushProgress], None],
        stop: threading.Event | None,
        clock: Clock | None,
    ) -> None:
        super().__init__(control, progress, stop, clock)
        self._capture, self._speed, self._seeds = capture, speed, control
        self._sources: list[ModelSource] = []
        self._ticks = 0
        self._tick_ts = 0
        self._paced_from: tuple[float, int] | None = None  # (monotonic seconds, tick ts) of the first tick

    def _schema(self) -> tuple[int, bytes]:
        return self._capture.meta.start_ts, self._capture.schema_snapshot()

    def _played(self) -> tuple[int, int, int]:
        return self._ticks, self._capture.meta.ticks, self._tick_ts

    def _play(self, store: ObjectStore) -> bool:
        if not self._put_seed(store):
            return False
        player = CapturePlayer(self._capture)
        self._start_workers(player, store)
        return self._play_all(player)

    def _put_seed(self, store: ObjectStore) -> bool:
        """False when stopped."""
        ts = self._capture.meta.start_ts
        self._report("seeding")
        if (known := self._retry(lambda: self._seeds.has_seed(ts, 0), "seeding")) is None:
            return False
        if known:
            return True

        def once() -> bool:
            push_seed(self._seeds, store, ts, captured_rows(self._capture))
            return True

        return self._retry(once, "seeding") is not None

    def _start_workers(self, player: CapturePlayer, store: ObjectStore) -> None:
        pushed_to = 0
        for store_id in self._capture.meta.store_ids:
            self._sources.append(ModelSource(player.cluster, store_id))
            # the player waits instead of the worker: see _wait_for_uploads
            pushed_to = max(pushed_to, self._start_worker(self._sources[-1], store, _UNBOUNDED_BYTES))
        if self._stop.is_set() or not self._end_streams(self._capture.meta.last_resolved_ts):
            return
        if pushed_to:
            self._skip(player, pushed_to)

    def _skip(self, player: CapturePlayer, pushed_to: int) -> None:
        """Play silently to where the stores have pushed already, and repeat that tick."""
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

    def _play_all(self, player: CapturePlayer) -> bool:
        """False when stopped before the end."""
        self._step_all()
        while (step := player.step()) is not None:
            if self._stop.is_set():
                return False
            if step.tick_ts:
                self._pace(step.tick_ts)
                if not self._wait_for_uploads():
                    return False
                self._tick(player, step.tick_ts)
            else:
                self._step_all()
        return True

    def _tick(self, player: CapturePlayer, tick_ts: int) -> None:
        self._step_all()  # regions without a subscription get one before the tick, so that it covers them too
        player.cluster.tick(tick_ts)
        for source in self._sources:
            source.tick(tick_ts)
        self._step_all()
        self._ticks += 1
        self._tick_ts = tick_ts
        self._report("pushing")
        if tick_ts == self._capture.meta.last_resolved_ts and any(w.resubscribing for w in self._workers):
            self._tick(player, tick_ts)  # no later tick has the promises of the new subscriptions

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

    def _wait_for_uploads(self) -> bool:
        """Wait while a worker has much to upload; False when stopped."""
        for worker in self._workers:
            while not worker.wait_until_queued_at_most(_QUEUED_BYTES_MAX, WAIT_S):
                if self._stop.is_set():
                    return False
                self._report("pushing", problem=STORE_UNAVAILABLE)
        return True
