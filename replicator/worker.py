"""The role `tistream replicate`: owns lanes of changefeeds and writes them to their destinations.

    heartbeat thread   registers this incarnation and renews its lease
    lanes thread       once a second: which lanes are this worker's; starts and ends their runs
    slot threads       take the lane that is due first, and do a turn of it (`replicator.lane_run`)

A lane costs no thread: slots are for writes that wait for a destination. The process may be killed at any instruction:
the lane's next owner repeats the stretch. A lane that is taken away is given up when its run has stopped writing, so
that the next owner need not wait for the lease to end.
"""

from __future__ import annotations

import random
import threading
from functools import partial
from typing import NamedTuple

import structlog

from destinations.letters.place import open_letters
from reading.deps import Services
from reading.position import Served
from replicator.lane_run import AGAIN_S, LaneRun, Open, OpenLetters
from tistream.catalog.database.engine import Catalog
from tistream.catalog.work.lanes import LaneRow, give_up_lane, lanes_of
from tistream.catalog.work.workers import WorkerKind, drain_worker, heartbeat, register_worker, retire_worker
from tistream.clock import Clock
from tistream.errors import Fenced, TiStreamError
from tistream.ids import Tenant
from tistream.limits import HEARTBEAT_MS
from tistream.runtime.service import Problem, Repeating

log = structlog.get_logger(__name__)

LOOK_S = 1.0
SLOTS = 4
SERVED_S = 0.2  #: how long what is served of a tenant is used for other lanes


class _Left(NamedTuple):
    """An ownership that ended here. Giving it up may be heard of late, so nothing is written under it any more."""

    lane: LaneRow
    waited: bool  #: for the owner before, to its end: the next one waits for both


class ReplicationWorker:
    """The service. `start`, `wait_until_ready`, `stop` and `problems` as in tistream.runtime.service."""

    def __init__(
        self,
        services: Services,
        name: str,
        open_destination: Open,
        *,
        slots: int = SLOTS,
        look_s: float = LOOK_S,
        rand: random.Random | None = None,
        open_letters: OpenLetters = open_letters,
    ) -> None:
        """`slots`: lanes that are written at the same time."""
        self.name, self._open_letters = name, open_letters
        self._services, self._open, self._rand = services, open_destination, rand or random.Random()
        self._catalog: Catalog = services.catalog
        self._clock: Clock = services.clock
        self._incarnation = 0
        self._lock = threading.Lock()
        self._runs: dict[int, LaneRun] = {}
        self._due: dict[int, float] = {}  # of the lanes that no slot has
        self._ended: set[int] = set()  # runs to end as soon as no slot has them
        self._left: dict[int, _Left] = {}  # by lane: the last ownership that ended here
        self._served: dict[Tenant, tuple[float, Served]] = {}
        self._heartbeat = Repeating(f"{name}/heartbeat", self._beat, interval_s=HEARTBEAT_MS / 1000, clock=self._clock)
        self._lanes = Repeating(f"{name}/lanes", self._look, interval_s=look_s, clock=self._clock, lasting=True)
        self._slots = [
            Repeating(f"{name}/slot {n}", self._round, interval_s=AGAIN_S, clock=self._clock, lasting=True)
            for n in range(slots)
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
        if self._incarnation and not self._heartbeat.crashed:
            try:
                retire_worker(self._catalog, self.name, self._incarnation)
            except TiStreamError as e:
                log.warning("could not retire, the lease will expire", worker=self.name, error=str(e))

    def begin_drain(self) -> None:
        """Ask for the lanes to be moved to other workers."""
        if self._incarnation:
            drain_worker(self._catalog, self.name, self._incarnation)

    def drained(self) -> bool:
        """Whether no lane is left."""
        return not lanes_of(self._catalog, self.name, self._incarnation)

    def problems(self) -> list[Problem]:
        return [p for part in (self._heartbeat, self._lanes, *self._slots) for p in part.problems()]

    def lease_age_s(self) -> float | None:
        """Seconds since the last successful heartbeat; None before the first."""
        return self._heartbeat.succeeded_age_s

    def _beat(self) -> None:
        if self._incarnation:
            heartbeat(self._catalog, self.name, self._incarnation)
            return
        self._incarnation = register_worker(self._catalog, self.name, WorkerKind.REPLICATE, "")
        self._lanes.wake()

    def _look(self) -> None:
        """Start the runs of new lanes, and mark those that are over."""
        if self._heartbeat.crashed:
            raise Fenced("a newer process runs under this worker's name", worker_id=self.name)
        if not self._incarnation:
            return
        asked_s = self._clock.monotonic()
        jobs = {job.lane.lane_id: job for job in lanes_of(self._catalog, self.name, self._incarnation)}
        answered_s = self._clock.monotonic()
        for lane_id, run in list(self._runs.items()):
            job = jobs.get(lane_id)
            if job is None or job.lane.is_stopped or not run.seen(job, asked_s, answered_s):
                self._drop(lane_id)
        for lane_id, job in jobs.items():
            left = self._left.get(lane_id)
            if left is not None and job.lane.epoch <= left.lane.epoch:
                self._give_up(left)  # not heard of yet, or the list is older
            elif lane_id not in self._runs and not job.lane.is_stopped:
                run = LaneRun(self._services, self._clock, job, self._open, self._rand, self._open_letters)
                run.seen(job, asked_s, answered_s)
                with self._lock:
                    self._runs[lane_id], self._due[lane_id] = run, asked_s
        for slot in self._slots:
            slot.wake()

    def _drop(self, lane_id: int) -> None:
        """End a run, now or when its turn is over."""
        with self._lock:
            if lane_id not in self._due:
                self._ended.add(lane_id)
                return
            del self._due[lane_id]
            run = self._runs.pop(lane_id)
        self._end(run)

    def _end(self, run: LaneRun) -> None:
        """It writes no more under this epoch, so that the next owner need not wait."""
        run.close()
        left = self._left[run.lane.lane_id] = _Left(run.lane, run.waits)
        self._give_up(left)

    def _give_up(self, left: _Left) -> None:
        try:
            give_up_lane(self._catalog, left.lane, waited=left.waited)
        except TiStreamError as e:
            log.warning("could not give a lane up, its lease will end", lane=left.lane.lane_id, error=str(e))

    def _round(self) -> None:
        """Turns of the lanes that are due, one after the other."""
        while (taken := self._take()) is not None:
            lane_id, run = taken
            try:
                next_s: float | None = run.turn(partial(self._served_of, run.job.lane.tenant))
            except Fenced as e:
                log.info("a lane has ended here", lane=lane_id, changefeed=run.job.lane.changefeed_id, why=str(e))
                next_s = None
            except BaseException:
                self._put_back(lane_id, run, 1.0)  # a defect, or the catalog is away: the slot reports it
                raise
            self._put_back(lane_id, run, next_s)

    def _take(self) -> tuple[int, LaneRun] | None:
        with self._lock:
            if self._heartbeat.crashed or not self._due:
                return None
            lane_id = min(self._due, key=lambda each: (self._due[each], each))
            if self._due[lane_id] > self._clock.monotonic():
                return None
            del self._due[lane_id]
            return lane_id, self._runs[lane_id]

    def _put_back(self, lane_id: int, run: LaneRun, next_s: float | None) -> None:
        with self._lock:
            over = next_s is None or lane_id in self._ended
            self._ended.discard(lane_id)
            if not over:
                assert next_s is not None
                self._due[lane_id] = self._clock.monotonic() + next_s
                if next_s == 0.0:
                    self._wake_others(run)
                return
            self._runs.pop(lane_id, None)
        self._end(run)
        self._lanes.wake()

    def _wake_others(self, moved: LaneRun) -> None:
        """The other lanes of its changefeed may wait for this one at a DDL statement."""
        ours = moved.job.lane.tenant, moved.job.lane.changefeed_id
        now_s = self._clock.monotonic()
        for lane_id in self._due:
            lane = self._runs[lane_id].job.lane
            if (lane.tenant, lane.changefeed_id) == ours:
                self._due[lane_id] = min(self._due[lane_id], now_s)

    def _served_of(self, tenant: Tenant) -> Served:
        now_s = self._clock.monotonic()
        known = self._served.get(tenant)
        if known is not None and now_s - known[0] < SERVED_S:
            return known[1]
        found = self._services.served(tenant)
        self._served[tenant] = now_s, found
        return found
