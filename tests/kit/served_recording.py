"""The recorded change stream as a living cluster: its stores and PD served over gRPC, its clock the recording's.

    with ServedRecording(directory) as cluster:
        ... tistream push --pd {cluster.pd_address} --start-ts {cluster.start_ts} ...
        cluster.play(speed=8)

Resolved ts are given at the recorded ticks only, because nothing else promises that no older commit follows. Behind the
last one they are given again and again, so that whoever registers late hears them too.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from simulator.capture import Capture, CapturePlayer
from simulator.serve.served import ServedCluster
from tistream import ts
from tistream.clock import SystemClock

_NEVER_S = 1e9
_AGAIN_S = 0.3


class RecordedClock(SystemClock):
    """Does not say what time it is: the newest timestamp of the recording is later."""

    def unix_ms(self) -> int:
        return 0


class ServedRecording:
    """Use it as a context."""

    def __init__(self, directory: Path) -> None:
        capture = Capture(directory)
        self._player = CapturePlayer(capture)
        self.start_ts = capture.meta.start_ts
        stores = len(capture.meta.store_ids)
        self.served = ServedCluster(self._player.cluster, stores=stores, resolved_s=_NEVER_S, clock=RecordedClock())
        self.pd_address = self.served.pd_address
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def play(self, *, speed: float) -> None:
        """Play to the end; `speed` times as fast as it was recorded."""
        began, first_ts = time.monotonic(), 0
        while True:
            with self.served.changing():
                step = self._player.step()
            if step is None:
                break
            if step.tick_ts:
                first_ts = first_ts or step.tick_ts
                due = began + (ts.physical_ms(step.tick_ts) - ts.physical_ms(first_ts)) / 1000 / speed
                time.sleep(max(due - time.monotonic(), 0.0))
                self._tick()
        self._thread = threading.Thread(target=self._tick_on, daemon=True)
        self._thread.start()

    def __enter__(self) -> ServedRecording:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self.served.close()

    def _tick(self) -> None:
        with self.served.changing():
            self.served.feed.tick(self._player.last_tick_ts, time.monotonic())

    def _tick_on(self) -> None:
        while not self._over.wait(_AGAIN_S):
            self._tick()
