"""The role `tistream replicate`: owns lanes of changefeeds and writes them to their destinations.

    heartbeat thread   registers this incarnation and renews its lease
    lanes thread       once a second: which lanes are this worker's; starts and ends their runs
    slot threads       take the lane that has the next turn (`replicator.core.turns`), and do it (`replicator.lane_run`)

A lane costs no thread: slots are for writes that wait for a destination. A run whose lane has gone ends in a slot, too,
because closing a destination may wait for it; until then the lane gets no other run here. The process may be killed at
any instruction: the lane's next owner repeats the stretch. A lane that is taken away is given up when its run has
stopped writing, so that the next owner need not wait for the lease to end.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import structlog

from reading.served.position import Served
from reading.served.services import Services
from replicator.core.turns import Turns
from replicator.lane_run import AGAIN_S, LaneRun, Open, OpenLetters
from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.workers import WorkerKind
from tistream.catalog.work.heartbeat import Heartbeat
from tistream.catalog.work.lanes import LaneRow, give_up_lane, lanes_of
from tistream.clock import Clock
from tistream.errors import Fenced, TiStreamError
from tistream.ids import Tenant
from tistream.model.problem import Problem
from tistream.runtime.service import Repeating

log = structlog.get_logger(__name__)

LOOK_S = 1.0
SLOTS = 4
SERVED_S = 0.2  #: how long what is served of a tenant is used for other lanes


class _Released(NamedTuple):
    """An ownership that ended here. The catalog may see its release late, so nothing is written under it any more."""

    lane: LaneRow
    waited: bool  #: for the owner before, to its end: the next one waits for both


class ReplicationWorker:
    """The service. `start`, `wait_until_ready`, `stop` and `problems` as in tistream.runtime.service."""

    def __init__(
        self,
        services: Services,
        name: str,
        open_destination: Open,
        open_letters: OpenLetters,
        *,
        slots: int = SLOTS,
        look_s: float = LOOK_S,
        look_first: Callable[[], None] = lambda: None,
        rand: random.Random | None = None,
    ) -> None:
        """`slots`: lanes that are written at the same time, besides those whose destinations do not answer.
        `look_first` raises when the catalog was restored, which the old one does not know: no lane is owned then."""
        self.name, self._open_letters = name, open_letters
        self._services, self._open, self._rand = services, open_destination, rand or random.Random()
        self._catalog: Catalog = services.catalog
        self._clock: Clock = services.clock
        self._lock, self._look_first = threading.Lock(), look_first
        self._runs: dict[int, LaneRun] = {}
        self._turns = Turns(slots)  # of the runs
        self._ended: set[int] = set()  # runs to end instead of their next turns
        self._released: dict[int, _Released] = {}  # by lane: the last ownership that ended here
        self._served: dict[Tenant, tuple[float, Served]] = {}
        self._heartbeat = Heartbeat(self._catalog, self._clock, name, self.kind, step=self._beat)
        self._lanes = Repeating(f"{name}/lanes", self._look, interval_s=look_s, clock=self._clock, lasting=True)
        self._slots = [
            Repeating(f"{name}/slot {n}", self._round, interval_s=AGAIN_S, clock=self._clock, lasting=True)
            for n in range(self._turns.threads)
        ]

    @property
    def kind(self) -> WorkerKind:
        return WorkerKind.REPLICATE

    def start(self) -> None:
        """Register, then take up the assigned lanes."""
        self._heartbeat.start()
        self._lanes.start()
        for slot in self._slots:
            slot.start()

    def wait_until_ready(self, timeout_s: float) -> bool:
        return self._heartbeat.wait_until_ready(timeout_s)

    def stop(self) -> None:
        """Finish the turns that run, give up all lanes, and end this incarnation."""
        self._lanes.stop()
        for slot in self._slots:
            slot.stop()
        self._heartbeat.stop()
        for run in list(self._runs.values()):
            self._end(run)
        self._runs.clear()
        self._heartbeat.retire()

    def begin_drain(self) -> None:
        """Ask for the lanes to be moved to other workers."""
        self._heartbeat.drain()

    def drained(self) -> bool:
        """Whether no lane is left."""
        return not lanes_of(self._catalog, self.name, self._heartbeat.incarnation)

    def problems(self) -> list[Problem]:
        problems = [p for part in (self._heartbeat, self._lanes, *self._slots) for p in part.problems()]
        return problems + [run.defect for run in list(self._runs.values()) if run.defect is not None]

    def lease_age_s(self) -> float | None:
        """Seconds since the last successful heartbeat; None before the first."""
        return self._heartbeat.succeeded_age_s

    def _beat(self) -> None:
        if self._heartbeat.beat():
            self._lanes.wake()

    def _look(self) -> None:
        """Start the runs of new lanes, and mark those that are over."""
        if self._heartbeat.crashed:
            raise self._heartbeat.ended()
        if not self._heartbeat.incarnation:
            return
        asked_s = self._clock.monotonic()
        self._look_first()
        jobs = {job.lane.lane_id: job for job in lanes_of(self._catalog, self.name, self._heartbeat.incarnation)}
        answered_s = self._clock.monotonic()
        for lane_id, run in list(self._runs.items()):
            job = jobs.get(lane_id)
            if job is None or job.lane.is_stopped or not run.seen(job, asked_s, answered_s):
                self._drop(lane_id)
        for lane_id, job in jobs.items():
            if lane_id in self._runs:  # looked at before `_released`, which is noted before a run is forgotten
                continue
            released = self._released.get(lane_id)
            if released is not None and job.lane.epoch <= released.lane.epoch:
                self._release(released)  # not seen yet, or the list is older
            elif not job.lane.is_stopped:
                run = LaneRun(
                    self._services, self._clock, job, self._open, self._open_letters, self._rand, self._look_first
                )
                run.seen(job, asked_s, answered_s)
                with self._lock:
                    self._runs[lane_id] = run
                    self._turns.add(lane_id, run.changefeed, asked_s)
        for slot in self._slots:
            slot.wake()

    def _drop(self, lane_id: int) -> None:
        """A slot ends the run, now or when its turn is over."""
        with self._lock:
            if lane_id in self._runs:
                self._ended.add(lane_id)
                self._turns.hurry(lane_id)

    def _end(self, run: LaneRun) -> None:
        """It writes no more under this epoch, so that the next owner need not wait."""
        try:
            run.close()
        finally:
            released = self._released[run.lane.lane_id] = _Released(run.lane, run.waits)
            self._release(released)

    def _release(self, released: _Released) -> None:
        try:
            give_up_lane(self._catalog, released.lane, waited=released.waited)
        except TiStreamError as e:
            log.warning("could not give a lane up, its lease will end", lane=released.lane.lane_id, error=str(e))

    def _round(self) -> None:
        """Turns of the lanes that are due, one after the other."""
        while (taken := self._take()) is not None:
            lane_id, run, is_over = taken
            if is_over:
                self._finish(lane_id, run)
                continue
            tried = run.core.tries
            try:
                next_s = run.turn(partial(self._served_of, run.job.lane.tenant))
            except Fenced as e:
                log.info("a lane has ended here", lane=lane_id, changefeed=run.job.lane.changefeed_id, why=str(e))
                self._finish(lane_id, run)
            except BaseException:
                self._put_back(lane_id, run, 1.0, has_failed=True)  # the catalog is away: the slot reports it
                raise
            else:
                self._put_back(lane_id, run, next_s, has_failed=run.core.tries > tried)

    def _take(self) -> tuple[int, LaneRun, bool] | None:
        with self._lock:
            lane_id = None if self._heartbeat.crashed else self._turns.take(self._clock.monotonic())
            return None if lane_id is None else (lane_id, self._runs[lane_id], lane_id in self._ended)

    def _put_back(self, lane_id: int, run: LaneRun, next_s: float, *, has_failed: bool) -> None:
        now_s, has_moved = self._clock.monotonic(), next_s == 0.0
        with self._lock:
            self._turns.ended(lane_id, now_s, now_s + next_s, has_moved=has_moved, has_failed=has_failed)
            if lane_id in self._ended:
                self._turns.hurry(lane_id)
            elif has_moved:
                self._turns.wake(run.changefeed, now_s)  # the others may wait for this one at a DDL statement

    def _finish(self, lane_id: int, run: LaneRun) -> None:
        """The run writes no more. The lane has another one here only after it was given up."""
        try:
            self._end(run)
        finally:
            with self._lock:
                del self._runs[lane_id]
                self._turns.forget(lane_id)
                self._ended.discard(lane_id)
            self._lanes.wake()

    def _served_of(self, tenant: Tenant) -> Served:
        now_s = self._clock.monotonic()
        known = self._served.get(tenant)
        if known is not None and now_s - known[0] < SERVED_S:
            return known[1]
        served = self._services.served(tenant)
        self._served[tenant] = now_s, served
        return served
