"""Runs one store's pusher in a thread for as long as its cluster is followed.

- Transient faults (object store, PD, control plane unavailable) are listed by `problems` and retried; any other error
  ends the thread and stays in `error` for the owner. Nothing is skipped;
- `needed` changes only between steps, so a step registers nothing below the last published value;
- opening scans that lose their GC barrier are closed before they are ready, and opened again;
- the thread of a store that left the cluster ends once its data is durable.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from pusher.tikv.core.effects import HeldBack
from pusher.tikv.history import GcBarrier, HeldFrontier
from pusher.tikv.source import TikvSource
from pusher.uploader import UploadStats
from pusher.worker import PusherWorker
from tistream.clock import Clock
from tistream.errors import ErrorKind, TiStreamError
from tistream.model.problem import Problem

log = structlog.get_logger(__name__)

_STEP_S = 0.2
_PAUSE_S = 0.2  # after a fault
_SHOWN_S = 5.0  # how long a fault is listed; most recur
_NOTHING = UploadStats(files=0, bytes=0, retries=0)


class StorePush:
    """The pusher of one store. Start it once; the other methods and properties are safe from any thread."""

    def __init__(
        self,
        store_id: int,
        make_worker: Callable[[HeldFrontier], tuple[PusherWorker, TikvSource]],
        frontier: HeldFrontier,
        barrier: GcBarrier,
        *,
        clock: Clock,
    ) -> None:
        """`make_worker` is called in the pusher's thread."""
        self.store_id = store_id
        self._make_worker, self._frontier, self._barrier = make_worker, frontier, barrier
        self._clock = clock
        self._stop, self._leaving = threading.Event(), threading.Event()
        self._worker: PusherWorker | None = None
        self._source: TikvSource | None = None
        self._thread = threading.Thread(target=self._run, name=f"store-{store_id}", daemon=True)
        self.needed: int | None = None  #: history above it may still be read; None = unknown yet
        self._problem, self._problem_at = "", float("-inf")
        self.error: TiStreamError | None = None  #: what ended it

    def start(self) -> None:
        self._thread.start()

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    @property
    def stalled(self) -> bool:
        """The stream was dropped because uploads could not keep up."""
        worker = self._worker
        return worker is not None and worker.stalled

    @property
    def rows(self) -> int:
        worker = self._worker
        return worker.rows if worker else 0

    @property
    def overflows(self) -> int:
        worker = self._worker
        return worker.overflows if worker else 0

    def problems(self) -> list[str]:
        """Current problems, one line each."""
        source = self._source
        regions = [described(p) for p in source.problems()] if source else []
        recent = self._problem if self._clock.monotonic() - self._problem_at < _SHOWN_S else ""
        control = [str(e) for e in (self._frontier.error, self._worker and self._worker.control_error) if e]
        return [*control, *(f"store {self.store_id}: {text}" for text in [recent, *regions] if text)]

    def held_back(self) -> tuple[HeldBack, ...]:
        """Regions whose resolved ts is stalled."""
        source = self._source
        return source.held_back if source else ()

    def uploads(self) -> UploadStats:
        worker = self._worker
        return worker.uploads() if worker else _NOTHING

    @property
    def frontier_ts(self) -> int:
        """The lowest durable watermark; 0 = unknown."""
        return self._frontier.lowest or 0

    def leave(self) -> None:
        """The store left the cluster: end once everything is durable."""
        self._leaving.set()

    def ask_to_stop(self) -> None:
        """End soon. What is not durable is dropped, as after a crash."""
        self._stop.set()

    def join(self) -> None:
        self._thread.join()

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._worker, self._source = self._make_worker(self._frontier)
            self._worker.start(self._stop, self._notice)
            self._follow(self._worker)
        except TiStreamError as e:
            self._fail(e)
        except Exception as e:  # a defect: the owner raises `error`
            log.exception("store pusher failed", store=self.store_id)
            self._fail(TiStreamError("the pusher of a store failed", store=self.store_id, cause=repr(e)))
        finally:
            if self._worker is not None:
                self._worker.close()

    def _follow(self, worker: PusherWorker) -> None:
        while not self._stop.is_set():
            try:
                worker.step(_STEP_S)
            except TiStreamError as e:
                if e.kind is not ErrorKind.RETRY:
                    raise
                self._notice(e)
                self._clock.wait(self._stop, _PAUSE_S)
            self._check_history(worker)
            if self._leaving.is_set() and worker.wait_until_durable(_STEP_S):
                log.info("store left, pusher ended", store=self.store_id)
                return

    def _notice(self, error: TiStreamError) -> None:
        self._problem, self._problem_at = str(error), self._clock.monotonic()

    def _check_history(self, worker: PusherWorker) -> None:
        opening_from, lowest = worker.opening_from, self._frontier.lowest
        if opening_from is not None and not self._barrier.covers(opening_from):
            log.warning(
                "opening scans lost their GC barrier, restarting them", store=self.store_id, checkpoint_ts=opening_from
            )
            worker.restart_opening_scans()
        wanted = [ts for ts in (opening_from, lowest) if ts is not None]
        self.needed = min(wanted, default=None)

    def _fail(self, error: TiStreamError) -> None:
        self.error = error


def described(problem: Problem) -> str:
    """A problem and its facts in one line."""
    facts = ", ".join(f"{name} {value}" for name, value in problem.facts.items())
    return f"{problem.message}: {facts}" if facts else problem.message
