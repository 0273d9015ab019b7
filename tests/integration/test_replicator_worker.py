"""The worker of lanes: what one lane or its destination does holds up no other, and no lane has two runs here."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from apiserver.control.changefeed_control import ChangefeedSettings
from destinations.protocol import Allowed, DestinationUnavailable, Plan, Stretch
from destinations.storage.destination import StoragePlan
from reading.served.services import Services
from replicator.lane_run import Open
from replicator.worker import ReplicationWorker
from simulator.dst.all_mutants import MUTANTS
from tests.kit.dead_letters import ACCT, CANAL
from tests.kit.lane_feed import T, control_of, give_lanes, letters_of_operators, open_operated
from tests.kit.log_builder import LogBuilder, recording_end
from tests.kit.waiting import WAIT_S, eventually
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS
from tistream.catalog.tenancy.log_readers import ReaderState
from tistream.catalog.work.lanes import LaneJob, lane_places, list_lanes
from tistream.clock import SystemClock
from tistream.objectstore.memory import MemoryStore

CLOCK = SystemClock()


class Odd:
    """A folder of changes, some of whose calls a test replaces."""

    def __init__(self, job: LaneJob, catalog: Catalog) -> None:
        self._inner = open_operated(catalog, job)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Silent(Odd):
    """It takes a request and never answers."""

    answers = threading.Event()

    def plan(self, stretch: Stretch, record: str) -> Plan:
        self.answers.wait()
        raise DestinationUnavailable("no answer")


class Broken(Odd):
    """Its code has a defect."""

    def plan(self, stretch: Stretch, record: str) -> Plan:
        raise ValueError("a value that nothing renders")


class SlowlyClosed(Odd):
    """Its connections take long to close."""

    begun, may_end = threading.Event(), threading.Event()

    def close(self) -> None:
        self.begun.set()
        assert self.may_end.wait(WAIT_S)
        self._inner.close()


class LosesNote(Odd):
    """The first note of its last checkpoint gets lost."""

    target_ts, lost = 0, threading.Event()

    def note_checkpoint(self, ts: int, allowed: Allowed) -> None:
        if ts >= self.target_ts and not self.lost.is_set():
            self.lost.set()
            raise DestinationUnavailable("no answer")
        self._inner.note_checkpoint(ts, allowed)


class Overtaken(Odd):
    """Another file takes a name of the first plan after it was made."""

    def __init__(self, job: LaneJob, catalog: Catalog, folder: Path) -> None:
        super().__init__(job, catalog)
        self._folder, self.taken = folder, ""
        self.seen: list[set[str]] = []  #: data files after each attempt

    def write(self, plan: Plan, allowed: Allowed) -> None:
        if not self.taken:
            assert isinstance(plan, StoragePlan)
            self.taken = [key for step in plan.steps for key, _ in step.data][-1]  # all others are written before
            path = self._folder / self.taken
            path.parent.mkdir(parents=True)
            path.write_bytes(b"of a former owner")
        try:
            self._inner.write(plan, allowed)
        finally:
            self.seen.append({str(p.relative_to(self._folder)) for p in self._folder.rglob("CDC0*.json")})


class World:
    """A log with two changefeeds: `good` has one lane, `bad` has several. One worker owns all lanes."""

    def __init__(
        self, catalog: Catalog, folder: Path, bad_lanes: int, odd: Callable[[LaneJob, Catalog], Any], target: int = 0
    ) -> None:
        """`target`: the quarter of the log after which `bad` ends."""
        self.catalog, self.odd = catalog, odd
        self.log = LogBuilder(catalog, MemoryStore()).activate()
        self.log.flush(self.log.cuts(4)[1])
        self.services = Services.create(catalog, self.log.store, CLOCK)
        control = control_of(catalog, self.log.store)
        for name, lanes, filters in (("bad", bad_lanes, {}), ("good", 1, ACCT)):
            target_ts = self.log.cuts(4)[target - 1] if target and name == "bad" else 0
            wanted = ChangefeedSettings(
                sink_uri=f"file://{folder}/{name}?{CANAL}", filters=filters, target_ts=target_ts
            )
            control.create(T, name, None, wanted, lanes=lanes, actor="")

    @property
    def open(self) -> Open:
        def opened(job: LaneJob) -> Any:
            return (self.odd if job.lane.changefeed_id == "bad" else Odd)(job, self.catalog)

        return opened

    @contextmanager
    def worker(self) -> Iterator[ReplicationWorker]:
        made = ReplicationWorker(self.services, "w", self.open, letters_of_operators, slots=2, look_s=0.05)
        made.start()
        assert made.wait_until_ready(WAIT_S)
        give_lanes(self.catalog, "w")
        try:
            yield made
        finally:
            Silent.answers.set()
            made.stop()

    def reaches(self, name: str, ts: int) -> None:
        eventually(lambda: CHANGEFEEDS.get(self.catalog, T, name).checkpoint_ts >= ts)


def test_a_destination_that_never_answers_delays_no_other(catalog: Catalog, tmp_path: Path) -> None:
    Silent.answers.clear()
    world = World(catalog, tmp_path, 6, Silent)
    with world.worker():
        for ts in (world.log.cuts(4)[1], recording_end()):
            world.log.flush(ts)
            world.reaches("good", ts)
        assert CHANGEFEEDS.get(catalog, T, "bad").checkpoint_ts < recording_end()


def test_a_defect_of_one_lane_is_recorded_and_delays_no_other(catalog: Catalog, tmp_path: Path) -> None:
    world = World(catalog, tmp_path, 6, Broken)
    with world.worker() as worker:
        eventually(lambda: any(lane.error is not None for lane in list_lanes(catalog, T, "bad")))
        began_s = time.monotonic()
        world.log.flush(recording_end())
        world.reaches("good", recording_end())
        assert time.monotonic() - began_s < 10, "its slots would pause for 5 s, again and again"
        failed = [lane for lane in list_lanes(catalog, T, "bad") if lane.error is not None]
        assert {lane.is_stopped for lane in failed} == {False}
        message = "ValueError: a value that nothing renders"
        assert all(lane.error == {"code": "TS-1000", "message": message} for lane in failed)
        assert any("a value that nothing renders" in p.message and p.contained for p in worker.problems())
        assert not any("slot" in p.source for p in worker.problems())


@pytest.mark.parametrize("is_taken_away", [True, False])
def test_a_lane_has_no_second_run_while_the_first_one_closes(
    catalog: Catalog, tmp_path: Path, is_taken_away: bool
) -> None:
    SlowlyClosed.begun.clear()
    SlowlyClosed.may_end.clear()
    world = World(catalog, tmp_path, 1, SlowlyClosed)
    worker = ReplicationWorker(world.services, "w", world.open, letters_of_operators, slots=1)
    worker._beat()
    give_lanes(catalog, "w")
    worker._look()
    worker._round()
    (lane,) = list_lanes(catalog, T, "bad")
    run = worker._runs[lane.lane_id]
    worker._drop(lane.lane_id)
    closing = threading.Thread(target=worker._round)
    closing.start()
    assert SlowlyClosed.begun.wait(WAIT_S)
    if is_taken_away:
        give_lanes(catalog, "w")
    before = [place for place in lane_places(catalog) if place.lane_id == lane.lane_id]
    worker._look()
    assert worker._runs[lane.lane_id] is run
    assert [place for place in lane_places(catalog) if place.lane_id == lane.lane_id] == before, "it is not given up"
    SlowlyClosed.may_end.set()
    closing.join(WAIT_S)
    assert lane.lane_id not in worker._runs
    worker._look()
    assert (lane.lane_id in worker._runs) is is_taken_away
    worker.stop()


@pytest.mark.parametrize(("mutant", "ends"), [(None, True), ("end-not-looked-for", False)])
def test_a_changefeed_ends_although_the_note_of_its_target_was_lost_once(
    catalog: Catalog, tmp_path: Path, mutant: str | None, ends: bool
) -> None:
    world = World(catalog, tmp_path, 1, LosesNote, target=1)
    LosesNote.target_ts = world.log.cuts(4)[0]
    LosesNote.lost.clear()

    def is_over() -> bool:
        return CHANGEFEEDS.get(catalog, T, "bad").state is ReaderState.FINISHED

    with MUTANTS[mutant].patch() if mutant else nullcontext(), world.worker():
        assert LosesNote.lost.wait(WAIT_S)
        assert not is_over(), "the folder does not know of its end yet"
        if ends:
            eventually(is_over)
            assert json.loads((tmp_path / "bad" / "metadata").read_text()) == {"checkpoint-ts": LosesNote.target_ts}
        else:
            time.sleep(3)
            assert not is_over()


def test_only_the_folder_in_which_a_name_is_taken_gets_files_again(catalog: Catalog, tmp_path: Path) -> None:
    """The files of the other folders are there after the first attempt, and keep their names in the second one."""
    made: list[Overtaken] = []

    def opened(job: LaneJob, catalog: Catalog) -> Overtaken:
        made.append(Overtaken(job, catalog, tmp_path / "bad"))
        return made[-1]

    world = World(catalog, tmp_path, 1, opened)
    with world.worker():
        world.reaches("bad", world.log.cuts(4)[1])
    (destination,) = made
    first, second = destination.seen[:2]
    assert len({key.rpartition("/")[0] for key in first}) > 5, "one attempt writes to many folders"
    assert first < second
    assert {key.rpartition("/")[0] for key in second - first} == {destination.taken.rpartition("/")[0]}
    assert (tmp_path / "bad" / destination.taken).read_bytes() == b"of a former owner"
