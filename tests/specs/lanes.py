"""Lanes: one writer under a lease, and what a destination has that cannot fence.

The log has versions 1, 2, 3, ... of one key. A worker that owns the lane records what it attempts, sends it, and moves
the checkpoint. Its requests arrive at any time until their deadline, even when another worker owns the lane. Time
passes in steps of half a lease, for everybody at the same speed; a worker that is paused does nothing meanwhile.

Three kinds of destinations:

    VALUES      shows the newest version that arrived (RawKV): at least once, never older than the checkpoint
    FILES       has a file for each stretch, created once under a number (the storage sink): each change once
    CURSOR      moves a cursor of its own in the transaction of the changes (`tistream.client.cursors.SqlCursorStore`):
                each change once, whatever leases, clocks and owners do

One window is the product's as well: a store that begins with a request before its deadline and ends long after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.specs.explore import Spec, State, put

RULES = {
    # tistream.catalog.work.lanes._IS_MINE in `_ATTEMPT` and `_FINISH`
    "epoch_guard": "attempts and checkpoints are recorded only under the lane's epoch",
    # replicator.core.lane.LaneCore.allowed_s; mutant lane-lease-ignored
    "lease": "an owner sends nothing that may be in progress after its lease",
    # replicator.core.lane.LaneCore.confirmed
    "lease_from_asking": "an owner counts its lease from when it asked the catalog, not from the answer",
    # replicator.core.lane.LaneCore.waits; mutant owner-before-ignored
    "new_owner_waits": "a new owner sends nothing until the one before can no longer",
    # replicator.core.lane.LaneCore.owned
    "wait_from_answer": "a new owner counts that time from the catalog's answer, not from when it asked",
    # tistream.catalog.work.lanes.give_up_lane; mutant given-up-for-others
    "given_up_for_one": "who gives a lane up says nothing of owners before that one",
    # replicator.worker: a lane that is given up has no run any more; mutant written-after-giving-up
    "silent_when_given_up": "an owner that gives a lane up sends nothing from then on",
    # replicator.lane_run.LaneRun._plan; mutant attempted-too-late
    "attempt_first": "attempted_ts rises before anything is sent",
    # replicator.core.lane.LaneCore.next (`exact`); mutant attempt-not-repeated
    "same_stretch": "a stretch that failed is tried again to the same end, with its record",
    # replicator.lane_run.LaneRun._finish; mutant checkpoint-of-a-failed-batch
    "all_written": "the checkpoint moves once everything is written",
    # destinations.tikv: nothing is sent to a key while a request of it may be applied; mutant retried-before-deadline
    "deadline_passes": "after a request without a reply nothing is sent before its deadline",
    # destinations.tikv: the deadline that each request carries
    "late_is_dropped": "a store drops a request whose deadline has passed",
    # tistream.client.cursors.SqlCursorStore.save
    "cursor_guard": "the destination's cursor moves only from where its writer saw it",
    # tistream.client.cursors.SqlCursorStore.save: one transaction
    "cursor_together": "changes and cursor become visible in one transaction",
}

VALUES, FILES, CURSOR = range(3)
LEASE = 2  #: steps of time
PLANNED, SENT, ANSWERED = range(3)
ASKING, READ = 1, 2

#: bounds that show each rule
SIZES: dict[str, dict[str, Any]] = {
    "leases": {"kind": VALUES, "versions": 1, "owners": 2, "ticks": 2, "sends": 2},
    "values": {"kind": VALUES, "versions": 2, "owners": 2, "ticks": 2, "sends": 2},
    "thirds": {"kind": VALUES, "versions": 1, "owners": 3, "ticks": 0, "sends": 2},
    "files": {"kind": FILES, "versions": 2, "owners": 2, "ticks": 2, "sends": 2},
    "cursor": {"kind": CURSOR, "versions": 2, "owners": 2, "ticks": 2, "sends": 2},
}
LARGE = {"kind": VALUES, "versions": 3, "owners": 3, "ticks": 4, "sends": 3}


class Lane(NamedTuple):
    """Its row in the catalog."""

    epoch: int
    owner: int  #: 0 = none
    checkpoint: int
    attempted: int
    record: State  #: of an unfinished stretch: its end and, of FILES, the number
    redo: int
    is_free: int  #: no owner before can write


class Worker(NamedTuple):
    """What a process knows. Durations are in steps that are left."""

    epoch: int = 0  #: of its ownership; 0 = none
    checkpoint: int = 0
    record: State = ()
    until: int = 0  #: it may send so long
    waits: int = 0  #: and from then on
    query: State = ()  #: (ASKING, its age), or (READ, its age, epoch, checkpoint, record, is_free)
    doing: State = ()  #: (end, number or cursor, stage, steps to the deadline)


class World(NamedTuple):
    """A state."""

    served: int  #: the log is final up to here
    lane: Lane
    workers: tuple[Worker, ...]
    requests: State  #: (epoch, after, end, number or cursor, steps to the deadline)
    there: State  #: of VALUES (version, its epoch), of FILES (number, after, end), of CURSOR (cursor, versions)
    newest: int  #: the highest epoch that has sent a request
    owners: int  #: how often this may still happen
    ticks: int
    sends: int
    broken: int = 0  #: what an arrival has broken, of BROKEN


BROKEN = ("", "a request of an owner before arrived after one of its successor",
          "the key went back under one owner", "the key went back to before what may be written again")  # fmt: skip


class Lanes(Spec):
    """See the module."""

    rules_known = RULES

    def __init__(self, rules: Any = None, *, kind: int, versions: int, owners: int, ticks: int, sends: int) -> None:
        """The kind of destination, and how many versions, owners, steps of time and requests there are."""
        super().__init__(rules)
        self.kind, self.versions, self.budget = kind, versions, (owners - 1, ticks, sends)
        self.workers = owners

    def initial(self) -> World:
        """Worker 1 owns the lane and has seen that a step of time ago."""
        workers = (Worker(epoch=1, until=LEASE - 1), *(Worker() for _ in range(self.workers - 1)))
        there = ((0, 0), (), (0, ()))[self.kind]
        return World(0, Lane(1, 1, 0, 0, (), 0, 1), workers, (), there, 0, *self.budget)

    def violations(self, state: Any) -> list[str]:
        """The destination, compared with the log and the lane."""
        if state.broken:
            return [BROKEN[state.broken]]
        lane, there = state.lane, state.there
        if self.kind == VALUES:
            if lane.checkpoint <= there[0] <= lane.attempted:
                return []
            return [
                f"the key shows {there[0]}, outside of {lane.checkpoint} (checkpoint) to {lane.attempted} (attempted)"
            ]
        if self.kind == FILES:
            written = [version for _, after, end in there for version in range(after + 1, end + 1)]
        else:
            written = list(there[1])
        complete = list(range(1, len(written) + 1))
        if written != complete or len(written) < lane.checkpoint:
            return [f"the destination has the versions {written}, the checkpoint is {lane.checkpoint}"]
        return []

    def actions(self, state: Any) -> Iterator[tuple[str, World]]:
        """Of the log and the leader, of time, of requests and of workers."""
        if state.broken:
            return
        if state.served < self.versions:
            yield f"version {state.served + 1} is served", state._replace(served=state.served + 1)
        if state.owners:
            lane = state.lane
            for w in range(1, len(state.workers) + 1):
                if w != lane.owner and w <= lane.epoch + 1:  # those that never owned it are alike
                    is_free = 0 if lane.owner else lane.is_free
                    given = lane._replace(epoch=lane.epoch + 1, owner=w, redo=lane.attempted, is_free=is_free)
                    yield f"the lane is assigned to worker {w}", state._replace(lane=given, owners=state.owners - 1)
        if state.ticks:
            yield "time passes", self._later(state)
        yield from self._arrivals(state)
        for at, worker in enumerate(state.workers):
            for label, after in (*self._query(state, at, worker), *self._work(state, at, worker)):
                yield f"worker {at + 1} {label}", after

    def _later(self, state: World) -> World:
        workers = tuple(
            worker._replace(
                until=max(worker.until - 1, 0),
                waits=max(worker.waits - 1, 0),
                query=worker.query and put(worker.query, 1, min(worker.query[1] + 1, LEASE)),
                doing=worker.doing and put(worker.doing, 3, max(worker.doing[3] - 1, 0)),
            )
            for worker in state.workers
        )
        is_kept = self.kind == CURSOR or "late_is_dropped" not in self.rules
        left = ((*request[:4], max(request[4] - 1, 0)) for request in state.requests)
        requests = tuple(sorted(request for request in left if request[4] or is_kept))
        return state._replace(workers=workers, requests=requests, ticks=state.ticks - 1)

    def _query(self, state: World, at: int, worker: Worker) -> Iterator[tuple[str, World]]:
        """Look into the catalog: a question, what the catalog has when it reads, the answer."""

        def to(worker: Worker) -> World:
            return state._replace(workers=put(state.workers, at, worker))

        lane = state.lane
        if not worker.query:
            if (lane.owner == at + 1) != (worker.epoch == lane.epoch) or worker.until < LEASE:
                yield "asks for its lanes", to(worker._replace(query=(ASKING, 0)))
            return
        stage, age, *seen = worker.query
        if stage == ASKING:
            own_epoch = lane.epoch if lane.owner == at + 1 else 0
            query = (READ, age, own_epoch, lane.checkpoint, lane.record, lane.is_free)
            yield "is read by the catalog", to(worker._replace(query=query))
            return
        epoch, checkpoint, record, is_free = seen
        until = LEASE - age if "lease_from_asking" in self.rules else LEASE
        waits = LEASE if "wait_from_answer" in self.rules else LEASE - age
        if is_free or "new_owner_waits" not in self.rules:
            waits = 0
        if worker.epoch and epoch == worker.epoch:
            same = worker._replace(until=max(until, worker.until), waits=min(waits, worker.waits), query=())
            yield "hears that the lane is still its own", to(same)
        elif worker.epoch:
            yield "hears that it has lost the lane", to(worker._replace(query=(), until=0))
        elif epoch:
            yield "hears that the lane is its own", to(Worker(epoch, checkpoint, record, until, waits))
        else:
            yield "hears that it owns nothing", to(Worker())

    def _work(self, state: World, at: int, worker: Worker) -> Iterator[tuple[str, World]]:
        """A stretch: plan and attempt, send, finish."""
        if not worker.epoch:
            return
        lane, is_owner = state.lane, state.lane.epoch == worker.epoch or "epoch_guard" not in self.rules

        def to(worker: Worker, lane: Lane = lane, **others: Any) -> World:
            return state._replace(workers=put(state.workers, at, worker), lane=lane, **others)

        may_send = not worker.waits and (worker.until > 0 or "lease" not in self.rules)
        if not worker.doing:
            if may_send and is_owner and (worker.checkpoint == lane.checkpoint or "epoch_guard" not in self.rules):
                yield from self._plans(state, worker, to)
            yield from self._gives_up(state, worker, to)
            return
        end, number, stage, left = worker.doing
        after = worker.checkpoint
        if stage == PLANNED and may_send and state.sends:
            deadline = worker.until if "lease" in self.rules else LEASE
            sent = worker._replace(doing=(end, number, SENT, deadline))
            requests = tuple(sorted((*state.requests, (worker.epoch, after, end, number, deadline))))
            newest = max(state.newest, worker.epoch)
            yield f"sends up to {end}", to(sent, requests=requests, newest=newest, sends=state.sends - 1)
        if stage == PLANNED or (stage == SENT and (not left or "deadline_passes" not in self.rules)):
            record = worker.record if "attempt_first" not in self.rules else (end, number)
            yield "hears nothing and begins again", to(worker._replace(doing=(), record=record))
        if stage == PLANNED or (stage == SENT and not left):
            yield from self._gives_up(state, worker, to)
        if is_owner and (stage == ANSWERED or "all_written" not in self.rules):
            attempted, checkpoint = max(lane.attempted, end), max(lane.checkpoint, end)
            done = lane._replace(checkpoint=checkpoint, attempted=attempted, record=(), is_free=1)
            yield f"moves the checkpoint to {end}", to(worker._replace(checkpoint=end, record=(), doing=()), done)

    def _plans(self, state: World, worker: Worker, to: Any) -> Iterator[tuple[str, World]]:
        lane, start, number = state.lane, worker.checkpoint, 0
        if self.kind == FILES:
            number = 1 + max((file[0] for file in state.there), default=0)
        elif self.kind == CURSOR:
            start = number = state.there[0]
        plans = [(end, number) for end in range(start + 1, state.served + 1)]
        if worker.record and self.kind != CURSOR and "same_stretch" in self.rules:
            plans = [worker.record]
        for end, number in plans:
            planned = worker._replace(doing=(end, number, PLANNED, 0))
            noted = lane
            if "attempt_first" in self.rules:
                noted = lane._replace(attempted=max(lane.attempted, end), record=(end, number), is_free=1)
            yield f"attempts up to {end}", to(planned, noted)

    def _gives_up(self, state: World, worker: Worker, to: Any) -> Iterator[tuple[str, World]]:
        """It has ended what it was doing; a request without an answer has passed its deadline."""
        lane = state.lane
        for_all = "given_up_for_one" not in self.rules
        freed = lane
        if lane.epoch == worker.epoch:
            freed = lane._replace(
                epoch=lane.epoch + 1, owner=0, redo=lane.attempted, is_free=lane.is_free or int(for_all)
            )
        elif lane.epoch == worker.epoch + 1 and (not worker.waits or for_all):
            freed = lane._replace(is_free=1)
        after = Worker() if "silent_when_given_up" in self.rules else worker
        if freed != lane:
            yield "gives the lane up", to(after, freed)

    def _arrivals(self, state: World) -> Iterator[tuple[str, World]]:
        for n, (epoch, after, end, number, _) in enumerate(state.requests):
            rest = state._replace(requests=state.requests[:n] + state.requests[n + 1 :])
            label = f"the request of epoch {epoch} up to {end} arrives"
            for there, done, broken in self._applied(state, epoch, after, end, number):
                arrived = rest._replace(there=there, broken=broken)
                yield f"{label}, the answer is lost" if done else f"{label} and is refused", arrived
                for at, worker in enumerate(state.workers) if done else ():
                    if worker.epoch == epoch and worker.doing[:3] == (end, number, SENT):
                        answered = worker._replace(doing=(end, number, ANSWERED, 0))
                        yield f"{label} and is answered", arrived._replace(workers=put(state.workers, at, answered))

    def _applied(
        self, state: World, epoch: int, after: int, end: int, number: int
    ) -> Iterator[tuple[State, bool, int]]:
        """(what the destination has then, whether it took the request, what that breaks)."""
        there = state.there
        if self.kind == VALUES:
            broken = 1 if epoch < state.newest else 0
            if end < there[0] and not broken:
                broken = 2 if epoch == there[1] else 3 if there[0] > state.lane.redo else 0
            yield (end, epoch), True, broken
        elif self.kind == FILES:
            file = (number, after, end)
            is_taken = any(one[0] == number for one in there)
            yield (there if is_taken else tuple(sorted((*there, file)))), not is_taken or file in there, 0
        elif number != there[0] and "cursor_guard" in self.rules:
            yield there, False, 0
        else:
            versions = there[1] + tuple(range(number + 1, end + 1))
            yield (end, versions), True, 0
            if "cursor_together" not in self.rules:
                yield (there[0], versions), True, 0
