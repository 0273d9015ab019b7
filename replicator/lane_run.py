"""Runs one ownership of a lane: a turn reads a stretch, writes it to the destination and moves the checkpoint.

`replicator.core.lane` decides; this module asks the log, the destination and the catalog, and sorts their errors:

    the catalog or another owner    Fenced ends the run; what passes is tried again
    the destination is away         recorded with the lane, tried again after a pause
    a refused change                becomes a dead letter, if the changefeed has a place for them; otherwise its table
                                    or key gets its own lane, which waits for an operator
    a log that lacks what follows   the changefeed is failed, with the way out
    anything else, a defect         recorded with the lane, tried again after a pause
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import structlog

from destinations.letters.core.letter import letter_of
from destinations.protocol import (
    DeadLetters,
    DeadLetterUnavailable,
    Destination,
    DestinationRefused,
    DestinationUnavailable,
    LeaseOver,
    NamesTaken,
    Plan,
    Share,
    Stretch,
    together,
)
from reading.filters import part_name
from reading.log.memory import ReadsFull
from reading.served.position import Served
from reading.served.services import Services
from replicator.core.lane import Attempt, Barriers, Finish, LaneCore, Read, Stop, Wait
from replicator.stretch import LaneReader, concerns, newest_ts, split_off
from replicator.table_counts import count_tables
from tistream import ts as tso
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS
from tistream.catalog.work.changefeeds import end_changefeed, fail_changefeed, note_current
from tistream.catalog.work.core.lane_scope import KeyScope, change_key, may_isolate
from tistream.catalog.work.lanes import (
    LaneJob,
    LaneRow,
    attempt_stretch,
    fail_stretch,
    finish_stretch,
    isolate,
    list_lanes,
)
from tistream.clock import Clock
from tistream.errors import ErrorKind, Fenced, TiStreamError, TsExpired
from tistream.ids import Tenant
from tistream.limits import LANE_LEASE_MS
from tistream.model.problem import Problem
from tistream.runtime import metrics
from tistream.runtime.service import stops_item

log = structlog.get_logger(__name__)

AGAIN_S = 0.25  #: between two looks at the watermark
_CURRENT_S = 900.0  # between two notes that a lane has all of the log; less when the log is held for a short time only
_OF_LANE = DeadLetterUnavailable, DestinationUnavailable, ReadsFull  # other faults that pass are of the whole service
_ROWS_OUT = metrics.ROWS.labels("replicator", "out")
_BYTES_OUT = metrics.BYTES.labels("replicator", "out")

Open = Callable[[LaneJob], Destination]
OpenLetters = Callable[[LaneJob, str, Clock], DeadLetters]
"""The place of dead letters of a lane, by its URI."""


class LaneRun:
    """One ownership. `turn` is called by one thread at a time; `seen` by any."""

    def __init__(
        self,
        services: Services,
        clock: Clock,
        job: LaneJob,
        open_destination: Open,
        open_letters: OpenLetters,
        rand: random.Random,
        look_first: Callable[[], None] = lambda: None,
    ) -> None:
        """`look_first`: see `replicator.worker`."""
        self.job, self._look_first = job, look_first
        self._open_letters = open_letters
        self._services, self._clock, self._open, self._rand = services, clock, open_destination, rand
        self._reader = LaneReader(services=services, job=job)
        lane = job.lane
        self.core = LaneCore(
            checkpoint_ts=lane.checkpoint_ts,
            record=lane.record,
            record_ts=lane.record_ts,
            target_ts=job.target_ts,
            lease_s=LANE_LEASE_MS / 1000,
            tries=lane.tries,
            keeps_letters=bool(self._reader.dead_letter),
        )
        self._destination: Destination | None = None
        self._letters: DeadLetters | None = None
        self.defect: Problem | None = None  #: of the last try, which no other part can mend
        self._noted_ts = 0
        self._current_s = float("-inf")  # when it was noted last that the lane has all of the log
        self._stretch: Stretch | None = None

    @property
    def changefeed(self) -> tuple[Tenant, str]:
        """Its tenant and id."""
        return self.job.lane.tenant, self.job.lane.changefeed_id

    @property
    def lane(self) -> LaneRow:
        """The lane as it is now."""
        return replace(self.job.lane, checkpoint_ts=self.core.checkpoint_ts)

    @property
    def waits(self) -> bool:
        """Whether it has not written yet, because an owner before may still write."""
        return self.core.waits(self._clock.monotonic())

    def seen(self, job: LaneJob, asked_s: float, answered_s: float) -> bool:
        """The catalog, asked at `asked_s`, has the lane as this worker's. False when that is another ownership, or the
        changefeed has other settings: this run must end."""
        same = _identity(self.job) == _identity(job)
        if same:
            self.core.confirmed(asked_s)
            self.core.owned(answered_s, is_free=job.lane.is_free)
        return same

    def turn(self, served: Callable[[], Served]) -> float:
        """One stretch, or less; seconds until the next turn. Fenced when it has ended."""
        now_s = self._clock.monotonic()
        try:
            return self._turn(served)
        except Fenced:
            raise
        except LeaseOver as e:
            return self._failed(e, now_s)
        except DestinationRefused as e:
            self._refused(e)
            raise Fenced("the lane was stopped or divided") from e
        except TsExpired as e:
            fail_changefeed(self._services.catalog, self.lane, self._way_out(e))
            raise Fenced("the changefeed is failed") from e
        except TiStreamError as e:
            return self._failed(e, now_s)
        except BaseException as e:
            if not stops_item(e):
                raise
            if self.defect is None:
                log.error("a lane failed by a defect, retrying", lane=self.lane.lane_id, exc_info=e)
            return self._failed(TiStreamError(f"{type(e).__name__}: {e}"), now_s)
        finally:
            self._stretch = None  # its memory is given back

    def close(self) -> None:
        """Close the destination."""
        if self._destination is not None:
            self._destination.close()
            self._destination = None
        if self._letters is not None:
            self._letters.close()
            self._letters = None

    def _turn(self, served: Callable[[], Served]) -> float:
        if self.core.allowed_s(self._clock.monotonic()) <= 0:
            return AGAIN_S
        view = served()
        if self.core.is_finished:
            return self._complete()
        step = self.core.next(view.resolved, self._clock.monotonic(), self._barriers(view))
        if isinstance(step, Wait):
            self._note_current(view.resolved)
            return min(step.seconds, AGAIN_S)
        with self._services.reader.memory.held(self.job.lane.tenant) as held:
            self._stretch = self._reader.read(step, view, held)
            self._finish(*self._deliver(self._stretch, step))
        return 0.0

    def _note_current(self, resolved_ts: int) -> None:
        """While the source is away a lane has nothing to write. The log that comes afterwards is held for it."""
        now_s, limit_s = self._clock.monotonic(), self.job.idle_limit_ms / 1000
        is_due = bool(limit_s) and now_s - self._current_s >= min(_CURRENT_S, limit_s / 4)
        if is_due and self.core.checkpoint_ts >= resolved_ts:
            note_current(self._services.catalog, self.lane, resolved_ts)
            self._current_s = now_s

    def _deliver(self, stretch: Stretch, step: Read) -> tuple[Finish, Plan | None]:
        """Write the stretch. What is refused becomes dead letters, and the rest is planned again."""
        if stretch.undecodable:
            stretch = self._keep(stretch, together(stretch.undecodable))
        while True:
            try:
                plan, wanted = self._plan(stretch, step)
                done = wanted if isinstance(wanted, Finish) else self._write(plan)
                if plan is not None:
                    count_tables(self.job.lane, stretch)
                return done, plan
            except DestinationRefused as e:
                stretch = self._keep(stretch, e)
            except NamesTaken:
                assert plan is not None
                step = replace(step, record=plan.record)  # what is there already keeps its names
                self.core.replan()

    def _keep(self, stretch: Stretch, refusal: DestinationRefused) -> Stretch:
        """The stretch without its refused changes, which are durable as dead letters then. DestinationRefused when an
        operator must decide."""
        rest, refused_rows = split_off(stretch, refusal.each) if self.core.keeps_letters else (stretch, [])
        step = self.core.refused(len(refused_rows))
        if isinstance(step, Stop):
            raise refusal
        lane = self.job.lane
        share = Share(tenant=lane.tenant, changefeed_id=lane.changefeed_id, number=lane.number, of=self.job.lanes)
        if self._letters is None:
            self._letters = self._open_letters(self.job, self._reader.dead_letter, self._clock)
        self._letters.keep([letter_of(share, row, stretch.history, why) for why, row in refused_rows], self._allowed)
        self.core.kept(step.count)
        log.warning(
            "refused changes became dead letters", tenant=str(lane.tenant), changefeed=lane.changefeed_id,
            lane=lane.number, letters=step.count, error=str(refusal),
        )  # fmt: skip
        return rest

    def _plan(self, stretch: Stretch, step: Read) -> tuple[Plan | None, Attempt | Finish]:
        """(the plan of the stretch, None when there is nothing to write; its attempt, which is recorded)."""
        is_empty = not stretch.rows.num_rows and not stretch.events and not step.record
        plan = None if is_empty else self._opened().plan(stretch, step.record)
        wanted = self.core.planned(stretch.upto, "" if plan is None else plan.record, is_empty=is_empty)
        if isinstance(wanted, Attempt):
            asked_s = self._ask()
            again = bool(step.record) and wanted.record != step.record
            attempt_stretch(self._services.catalog, self.lane, wanted.upto, wanted.record, again=again)
            self.core.confirmed(asked_s)
            self.core.attempted()
        return plan, wanted

    def _write(self, plan: Plan | None) -> Finish:
        if plan is None:
            return self.core.written()
        began_s = self._clock.monotonic()
        self._opened().write(plan, self._allowed)
        done = self.core.written()
        _ROWS_OUT.inc(plan.rows)
        _BYTES_OUT.inc(plan.size)
        metrics.REPLICATION_WRITE.observe(self._clock.monotonic() - began_s)
        return done

    def _finish(self, done: Finish, plan: Plan | None) -> None:
        asked_s = self._ask()
        rows, size = (0, 0) if plan is None else (plan.rows, plan.size)
        of_all = finish_stretch(
            self._services.catalog, self.lane, done.upto, rows=rows, size=size, letters=done.letters
        )
        self.core.confirmed(asked_s)
        self.core.finished(done.upto)
        self.defect = None
        if self._notes_checkpoints:
            self._note(of_all)
        if self.core.is_finished:
            self._complete()

    @property
    def _notes_checkpoints(self) -> bool:
        """Whether this lane notes the checkpoints of the changefeed. Only one does: the notes of two could come in the
        wrong order."""
        return self.job.lane.number == self.job.first

    def _note(self, of_all: int) -> None:
        if of_all > self._noted_ts:
            self._opened().note_checkpoint(of_all, self._allowed)
            self._noted_ts = of_all

    def _complete(self) -> float:
        """The lane has reached its target. When all have, the destination learns it, and then the changefeed ends."""
        if self._notes_checkpoints and self.core.allowed_s(self._clock.monotonic()) > 0:
            lane = self.job.lane
            of_all = CHANGEFEEDS.get(self._services.catalog, lane.tenant, lane.changefeed_id).checkpoint_ts
            if of_all >= self.job.target_ts:
                self._note(of_all)
                end_changefeed(self._services.catalog, self.lane)
        return 1.0

    def _barriers(self, served: Served) -> Barriers | None:
        """The DDL statements at which the lanes meet; None for a keyspace and for a single lane."""
        if served.history is None or self.job.lanes == 1:
            return None
        ddl = self._reader.ddl_from(served, self.core.checkpoint_ts, served.resolved)
        if not ddl:
            return None
        lane = self.job.lane
        every = list_lanes(self._services.catalog, lane.tenant, lane.changefeed_id)
        others = [other for other in every if other.lane_id != lane.lane_id]
        moving = [other.checkpoint_ts for other in others if not other.is_stopped]
        stopped = [other for other in others if other.is_stopped]
        held = {
            ts: min(of_it)
            for ts, names in ddl.items()
            if (of_it := [other.checkpoint_ts for other in stopped if concerns(other.scope, names)])
        }
        return Barriers(ddl=list(ddl), others_ts=min(moving, default=served.resolved), held=held)

    def _opened(self) -> Destination:
        if self._destination is None:
            self._destination = self._open(self.job)
        return self._destination

    def _ask(self) -> float:
        """When the catalog is asked to confirm the ownership. CatalogReplaced when it was restored: the one before
        would confirm it still."""
        asked_s = self._clock.monotonic()
        self._look_first()
        return asked_s

    def _allowed(self) -> float:
        return self.core.allowed_s(self._clock.monotonic())

    def _failed(self, error: TiStreamError, now_s: float) -> float:
        lane = self.job.lane
        pause_s = self.core.failed(self._clock.monotonic(), self._rand.random())
        if error.kind is ErrorKind.INTERNAL:
            self.defect = Problem.of(f"lane {lane.number} of {lane.changefeed_id}", error, fatal=True, contained=True)
        metrics.REPLICATION_RETRIES.inc()
        log.warning(
            "a stretch failed, retrying", tenant=str(lane.tenant), changefeed=lane.changefeed_id, lane=lane.number,
            pause_s=round(pause_s, 1), error=str(error),
        )  # fmt: skip
        if error.kind is not ErrorKind.RETRY or isinstance(error, _OF_LANE):
            fail_stretch(self._services.catalog, self.lane, shown(error))
        self.close()  # the next try opens new connections
        return pause_s

    def _refused(self, error: DestinationRefused) -> None:
        """Stop the change's table or key alone; the whole lane when the destination does not say which change it is."""
        lane, facts = self.lane, error.facts
        if "key" not in facts:
            fail_stretch(self._services.catalog, lane, {**shown(error), "stopped": True})
            return
        is_key = isinstance(lane.scope, KeyScope)
        item = str(facts["key"]) if is_key else part_name(str(facts["db"]), str(facts["table"]))
        named = change_key(bytes.fromhex(str(facts["key"])))
        why = {**shown(error), "key": named, "item": named if is_key else item}
        if is_key:
            why.setdefault("commit_ts", self._newest_of(item))
        log.warning("a change is refused", tenant=str(lane.tenant), changefeed=lane.changefeed_id, **why)
        rest, alone = lane.scope.isolate(item)
        if alone == lane.scope or not may_isolate(rest):  # it is alone already, or too many are
            fail_stretch(self._services.catalog, lane, {**why, "stopped": True})
        else:
            isolate(self._services.catalog, lane, rest, alone, why)

    def _newest_of(self, key: str) -> str:
        """The timestamp of the key's newest change in the stretch, which is the one that is written."""
        stretch = self._stretch
        return "0" if stretch is None else str(newest_ts(stretch.rows, [bytes.fromhex(key)]).get(key, 0))

    def _way_out(self, error: TsExpired) -> dict[str, object]:
        at = f"Its checkpoint is {tso.described(self.lane.checkpoint_ts)}. "
        way = "Load the destination again, from a backup or a snapshot, and create a changefeed from its timestamp."
        return {**shown(error), "message": f"{error.message} {at}{way}"}


def _identity(job: LaneJob) -> tuple[object, ...]:
    """Of an ownership and the settings of its changefeed."""
    return job.lane.epoch, job.lane.scope, job.sink_uri, job.options, job.filters, job.target_ts


def shown(error: TiStreamError) -> dict[str, object]:
    """An error as the catalog keeps it."""
    return {"code": error.code, "message": error.message, **{name: str(fact) for name, fact in error.facts.items()}}
