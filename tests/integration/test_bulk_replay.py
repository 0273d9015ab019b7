"""A backlog replayed in bulk, in threads and on Spark, and what a live service makes of it afterwards."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compactor.spark import new_session
from metaserver.collect import Collector
from tistream.bulk.executors import Executor, Progress, SparkExecutor, ThreadsExecutor
from tistream.bulk.job import Replay, ReplaySettings, Report
from tistream.bulk.part import PartResult
from tistream.bulk.plan import PlanRow
from tistream.catalog.owner import acquire_owner
from tistream.catalog.tasks import assign_task, list_tasks
from tistream.catalog.workers import WorkerKind, list_workers, register_worker
from tistream.clock import SystemClock
from tistream.errors import Fenced, TiStreamError
from tistream.testing.backlog_world import CAPTURE, LAST, TENANT, BacklogWorld, backlog_world, truth
from tistream.testing.spark_session import SPARK_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HALF = CAPTURE.meta.ticks // 2
LEG = 2 << 20  #: bytes of batch files: the recording has 14 MB, 4 of them in its first half


@pytest.fixture
def world(tmp_path: Path) -> Iterator[BacklogWorld]:
    with backlog_world(tmp_path) as made:
        yield made


def run(world: BacklogWorld, executor: Executor | None = None, **settings: int) -> Report:
    wanted = replace(ReplaySettings(), **settings)
    return Replay(world.catalog, world.store, TENANT, executor or ThreadsExecutor(world.store), wanted).run(
        SystemClock()
    )


def whole(world: BacklogWorld) -> None:
    """The log is what was committed, and nobody may say otherwise later."""
    assert world.uppers() == [LAST] * 4
    assert world.log() == truth()


def leave_nothing_behind(world: BacklogWorld) -> None:
    """After a collection the bucket holds what the catalog names, and the log is still there."""
    before = world.log()
    Collector(world.catalog, world.store, SystemClock(), grace_ms=0).step()
    assert world.orphans() == set()
    assert world.log() == before


def test_a_backlog_is_replayed_in_parts_and_legs_and_a_live_service_goes_on(world: BacklogWorld) -> None:
    world.push(HALF)
    files = world.batch_files()
    report = run(world, parts=6, leg_bytes=LEG)
    upto = report.resolved_ts
    assert report.legs > 1
    assert (report.files, report.tasks) == (files, 4)
    assert CAPTURE.meta.start_ts < upto < LAST
    log = world.log()
    assert log == {version: change for version, change in truth().items() if version in log}
    assert {version for version in truth() if version[1] <= upto} <= log.keys()
    with world.live():
        world.push()
        world.wait_for(LAST)
    whole(world)
    leave_nothing_behind(world)


def test_a_live_service_loses_its_tasks_and_gets_them_again(world: BacklogWorld) -> None:
    world.push(HALF)
    with world.live():
        world.wait_for(CAPTURE.meta.start_ts + 1)
        world.push()
        report = run(world, parts=3, leg_bytes=LEG)
        assert report.resolved_ts == LAST
        whole(world)
        world.wait_until(lambda: all(row.owner == "sorter-1" for row in list_tasks(world.catalog, TENANT)))
    whole(world)
    leave_nothing_behind(world)


def test_it_ends_where_it_was_told_to(world: BacklogWorld) -> None:
    world.push()
    middle = (CAPTURE.meta.start_ts + LAST) // 2
    assert run(world, until=middle, parts=4, leg_bytes=LEG).resolved_ts == middle
    assert world.log() == truth(middle)
    assert run(world, until=middle).files == 0, "there is nothing more to do"
    run(world, parts=2)
    whole(world)


class Interrupted:
    """An Executor in whose course something happens once: after so many parts."""

    def __init__(self, inner: Executor, after: int, event: object) -> None:
        self.inner, self.left, self.event = inner, after, event

    def __call__(self, rows: Sequence[PlanRow], progress: Progress) -> Iterable[PartResult]:
        for result in self.inner(rows, progress):
            yield result
            self.left -= 1
            if self.left == 0:
                assert callable(self.event)
                self.event()


def test_a_task_that_was_given_away_meanwhile_is_not_handed_over(world: BacklogWorld) -> None:
    world.push(HALF)

    def give_away() -> None:
        epoch = acquire_owner(world.catalog, "meta")
        assert epoch is not None
        register_worker(world.catalog, "sorter-9", WorkerKind.SORTER, "")
        for row in list_tasks(world.catalog, TENANT):
            new = assign_task(world.catalog, row.task_id, worker_id="sorter-9", seen_epoch=row.epoch, owner_epoch=epoch)
            assert new is not None

    before = [(row.upper, row.snapshot_key) for row in list_tasks(world.catalog, TENANT)]
    with pytest.raises(Fenced, match="taken away"):
        run(world, Interrupted(ThreadsExecutor(world.store), 1, give_away))
    assert [(row.upper, row.snapshot_key) for row in list_tasks(world.catalog, TENANT)] == before
    assert world.log() == {}
    leave_nothing_behind(world)
    assert run(world).files > 0
    leave_nothing_behind(world)


def test_the_later_one_of_two_replays_wins(world: BacklogWorld) -> None:
    world.push(HALF)
    with pytest.raises(Fenced):
        run(world, Interrupted(ThreadsExecutor(world.store), 2, lambda: run(world, parts=4)))
    log = world.log()
    assert log
    assert log == {version: change for version, change in truth().items() if version in log}
    assert [w.state for w in list_workers(world.catalog, WorkerKind.REPLAY)] == ["gone"]


def test_an_error_of_a_worker_leaves_what_was_handed_over(world: BacklogWorld) -> None:
    world.push()

    def fail() -> None:
        raise TiStreamError("a worker is lost")

    with pytest.raises(TiStreamError, match="a worker is lost"):
        run(world, Interrupted(ThreadsExecutor(world.store), 6, fail), parts=4, leg_bytes=LEG)
    upto = min(world.uppers())
    assert CAPTURE.meta.start_ts < upto < LAST
    run(world, parts=4)
    whole(world)
    leave_nothing_behind(world)


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Spark's own
        made = new_session("local[2]", SPARK_OPTIONS)
        yield made
        made.stop()


@pytest.mark.filterwarnings("ignore")
def test_a_backlog_is_replayed_on_spark(session: SparkSession, world: BacklogWorld) -> None:
    world.push()
    report = run(world, SparkExecutor(session, world.store_url, SystemClock()), parts=4)
    assert report.rows == len(truth())
    whole(world)
    leave_nothing_behind(world)
