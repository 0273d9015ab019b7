"""A backlog replayed in bulk, in threads and on Spark, and what a live service makes of it afterwards."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Connection, bindparam, update
from starlette.testclient import TestClient

from apiserver.app import create_app
from backfill.core.plan import ReplayPlanRow
from backfill.job import Replay, ReplayReport, ReplaySettings
from backfill.replay import Executor, PartitionResult, Progress, SparkReplayExecutor, ThreadsExecutor
from backfill.survey import Batch, Survey
from metaserver.collect import Collector
from reading.served.services import Services
from tests.kit.assignments import assign_task
from tests.kit.backlog_world import CAPTURE, LAST, TENANT, BacklogWorld, backlog_world, truth
from tests.kit.catalog_cases import elected
from tests.kit.manual_clock import ManualClock
from tests.kit.spark_session import local_session
from tests.kit.ticdc import compare_canal
from tistream import ts as tso
from tistream.catalog.database import tables
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log import committed, snapshots
from tistream.catalog.rows.workers import WorkerKind
from tistream.catalog.work.handover import hand_over
from tistream.catalog.work.tasks import list_tasks
from tistream.catalog.work.workers import list_workers
from tistream.clock import SystemClock
from tistream.errors import CatalogUnavailable, Fenced, InvalidInput, TiStreamError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PART = CAPTURE.meta.ticks // 5
BATCH = 300_000  #: bytes of batch files
EXPECTED = Path(__file__).parents[1] / "expected"


def pushed(folder: Path, ticks: int | None) -> Path:
    with backlog_world(folder) as backlog:
        backlog.push(ticks)
    return folder


@pytest.fixture(scope="module")
def beginning(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pushed(tmp_path_factory.mktemp("beginning"), PART)


@pytest.fixture
def world(tmp_path: Path, beginning: Path) -> Iterator[BacklogWorld]:
    """A quarter of the recording was pushed."""
    with backlog_world(tmp_path, beginning) as new_world:
        yield new_world


def silent(done: int, total: int, note: str) -> None:
    """Hears the progress."""


def run(
    world: BacklogWorld,
    progress: Callable[[int, int, str], None] = silent,
    *,
    executor: Executor | None = None,
    **settings: int,
) -> ReplayReport:
    replay_settings = replace(ReplaySettings(), **settings)
    inner = executor or ThreadsExecutor(world.store)
    return Replay(world.catalog, world.store, SystemClock(), TENANT, inner, replay_settings).run(progress)


def leave_nothing_behind(world: BacklogWorld) -> None:
    """After a collection the bucket holds what the catalog names, and the log is still there."""
    before = world.log()
    Collector(world.catalog, world.store, SystemClock(), grace_ms=0).step()
    assert world.orphans() == set()
    assert world.log() == before


def is_right(world: BacklogWorld) -> None:
    """Whatever is visible was committed, and nothing is missing up to where the log is complete."""
    log, upto = world.log(), min(world.durable_timestamps())
    assert log == {version: change for version, change in truth().items() if version in log}
    assert {version for version in truth() if version[1] <= upto} <= log.keys()


def test_a_backlog_is_replayed_in_partitions_and_batches(world: BacklogWorld) -> None:
    progress: list[tuple[int, int]] = []
    report = run(world, lambda done, total, _: progress.append((done, total)), partitions=6, batch_bytes=BATCH)
    assert (report.files, report.tasks) == (world.batch_files(), 4)
    assert report.batches > 1
    assert CAPTURE.meta.start_ts < report.resolved_ts < LAST
    assert progress == sorted(progress)
    assert progress[-1] == (report.files, report.files)
    is_right(world)
    leave_nothing_behind(world)
    assert run(world).files == 0, "there is nothing more to do"


def test_a_live_service_loses_its_tasks_gets_them_again_and_is_pulled_as_ticdc_said_it(world: BacklogWorld) -> None:
    with world.live():
        world.wait_for(CAPTURE.meta.start_ts + 1)
        run(world, partitions=3, batch_bytes=BATCH)
        is_right(world)
        world.push()
        world.wait_for(LAST)
        assert {row.owner for row in list_tasks(world.catalog, TENANT)} == {"sorter-1"}
    assert world.durable_timestamps() == [LAST] * 4
    assert world.log() == truth()
    leave_nothing_behind(world)
    services = Services.create(world.catalog, world.store, ManualClock(tso.physical_ms(LAST)))
    with TestClient(create_app(services)) as http:
        path = "/v1/clusters/1/tenants/1/changes"
        params = {"start_ts": "earliest", "limit": "200000", "format": "canal-json", "enable-tidb-extension": "true"}
        answer = http.get(path, params=params)
    assert answer.headers["TiStream-Has-More"] == "false"
    assert compare_canal(EXPECTED, answer.content.splitlines()) > 12_000


def test_it_ends_where_it_was_told_to(world: BacklogWorld) -> None:
    middle = CAPTURE.meta.start_ts + (LAST - CAPTURE.meta.start_ts) // 8
    assert run(world, until=middle, partitions=4, batch_bytes=BATCH // 2).resolved_ts == middle
    assert world.log() == truth(middle)
    assert run(world, until=middle).files == 0
    assert run(world).resolved_ts > middle
    is_right(world)


def test_a_part_that_stays_behind_holds_its_task(world: BacklogWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an undecided commit does: the partitions do not reach what the survey expects, and each another timestamp."""
    take = Survey.take

    def too_far(survey: Survey, bytes_max: int, until: int | None) -> Batch | None:
        batch = take(survey, bytes_max, until)
        if batch is not None:
            batch.upto = dict.fromkeys(batch.upto, LAST)
        return batch

    monkeypatch.setattr(Survey, "take", too_far)
    run(world, partitions=8)
    is_right(world)
    assert min(world.durable_timestamps()) > CAPTURE.meta.start_ts


def test_without_lowering_the_partitions_do_not_align(world: BacklogWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of the test before: a task handed over above the watermark of one of its partitions."""

    def not_lowered(rows: Sequence[ReplayPlanRow], done: Mapping[int, PartitionResult]) -> list[ReplayPlanRow]:
        return [replace(row, upto=done[row.partition].reached) for row in rows]

    monkeypatch.setattr("backfill.job._lowered", not_lowered)
    with pytest.raises(TiStreamError, match="not at the same position"):
        test_a_part_that_stays_behind_holds_its_task(world, monkeypatch)


class Interrupted:
    """An Executor in whose course something happens once: after so many partitions."""

    def __init__(self, inner: Executor, after: int, event: Callable[[], object]) -> None:
        self.inner, self.left, self.event = inner, after, event

    def __call__(self, rows: Sequence[ReplayPlanRow], progress: Progress) -> Iterable[PartitionResult]:
        for result in self.inner(rows, progress):
            yield result
            self.left -= 1
            if self.left == 0:
                self.event()


def give_away(world: BacklogWorld) -> None:
    """What a meta server does that believes the replay to be dead."""
    epoch = elected(world.catalog)
    for row in list_tasks(world.catalog, TENANT):
        assert assign_task(world.catalog, row.task_id, worker_id="s9", seen_epoch=row.epoch, leader_epoch=epoch)


def test_a_task_that_was_given_away_meanwhile_is_not_handed_over(world: BacklogWorld) -> None:
    def progress_of_tasks() -> list[tuple[int, str | None]]:
        return [(row.durable_ts, row.snapshot_key) for row in list_tasks(world.catalog, TENANT)]

    before = progress_of_tasks()
    with pytest.raises(Fenced, match="reassigned during the replay"):
        run(world, executor=Interrupted(ThreadsExecutor(world.store), 1, lambda: give_away(world)))
    assert progress_of_tasks() == before
    assert world.log() == {}
    leave_nothing_behind(world)
    assert run(world).files > 0
    leave_nothing_behind(world)


def test_without_its_epochs_it_would_be_handed_over(world: BacklogWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of the test before."""
    t = tables.tasks.c
    one_task = t.task_id == bindparam("asked_task")
    monkeypatch.setattr(snapshots, "_switching", lambda: update(tables.tasks).where(one_task))
    monkeypatch.setattr(committed, "_advancing", lambda: update(tables.tasks).where(one_task))
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_a_task_that_was_given_away_meanwhile_is_not_handed_over(world)


def test_the_later_one_of_two_replays_wins(world: BacklogWorld) -> None:
    with pytest.raises(Fenced):
        run(world, executor=Interrupted(ThreadsExecutor(world.store), 2, lambda: run(world, partitions=4)))
    assert world.log()
    is_right(world)
    assert [w.state for w in list_workers(world.catalog, WorkerKind.REPLAY)] == ["gone"]


def test_an_error_of_a_worker_leaves_what_was_handed_over(world: BacklogWorld) -> None:
    def fail() -> None:
        raise TiStreamError("a worker is lost")

    with pytest.raises(TiStreamError, match="a worker is lost"):
        run(world, executor=Interrupted(ThreadsExecutor(world.store), 6, fail), partitions=4, batch_bytes=BATCH)
    handed_over = min(world.durable_timestamps())
    assert handed_over > CAPTURE.meta.start_ts
    assert run(world, partitions=4).resolved_ts > handed_over
    is_right(world)
    leave_nothing_behind(world)


class Unreliable(Catalog):
    """Replies of some transactions of one thread are lost, after they happened or instead of it.

    Of one thread: the heartbeat runs beside it, and would draw from the same numbers at another moment in each run.
    """

    def __init__(self, url: str, rand: random.Random) -> None:
        super().__init__(url)
        self.rand, self.lost = rand, 0
        self.troubled: int | None = None  #: the thread

    def _loses(self) -> bool:
        loses = threading.get_ident() == self.troubled and self.rand.random() < 0.3
        self.lost += loses
        return loses

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        if self._loses():
            raise CatalogUnavailable("told to fail", determinate=False)
        with super().transaction() as conn:
            yield conn
        if self._loses():
            raise CatalogUnavailable("told to fail", determinate=False)


def test_lost_replies_are_read_back(world: BacklogWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    unreliable = Unreliable(f"sqlite:///{world.folder}/catalog.db", random.Random(3))

    def trouble(*args: Any, **more: Any) -> bool:
        unreliable.troubled = threading.get_ident()
        try:
            return hand_over(*args, **more)
        finally:
            unreliable.troubled = None

    monkeypatch.setattr("backfill.job.hand_over", trouble)
    replay = Replay(
        unreliable,
        world.store,
        ManualClock(),
        TENANT,
        ThreadsExecutor(world.store),
        ReplaySettings(batch_bytes=2 * BATCH),
    )
    assert replay.run().batches > 1
    unreliable.close()
    assert unreliable.lost > 3
    is_right(world)
    leave_nothing_behind(world)


def test_a_tenant_without_tasks_is_told_so(tmp_path: Path) -> None:
    with backlog_world(tmp_path) as backlog, pytest.raises(InvalidInput, match="schema snapshot"):
        run(backlog)


def start_driver(world: BacklogWorld) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tistream.cli.main", "replay", "--cluster=1", "--tenant=1", "--engine=threads"]
    where = [f"--catalog=sqlite:///{world.folder}/catalog.db", f"--object-store={world.store_url}"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with (world.folder / "driver.log").open("ab") as out:
        return subprocess.Popen([*command, *where, "--parts=4", "--leg-mb=1"], env=env, stdout=out, stderr=out)


def test_a_driver_that_is_killed_leaves_a_log_that_is_right_and_a_repeat_goes_on(world: BacklogWorld) -> None:
    """Killed a moment after its n-th object of the log or of a state has appeared."""
    rand = random.Random(7)
    for kill in (1, 6):
        before = world.objects()
        driver = start_driver(world)
        world.wait_until(lambda had=before, n=kill, d=driver: d.poll() is not None or len(world.objects() - had) >= n)  # type: ignore[misc]
        time.sleep(rand.random() * 0.2)
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        is_right(world)
        assert len(world.objects()) > len(before)
    with start_driver(world) as last:
        assert last.wait(100) == 0, (world.folder / "driver.log").read_text("utf-8")
    assert min(world.durable_timestamps()) > CAPTURE.meta.start_ts
    assert run(world).files == 0
    is_right(world)
    leave_nothing_behind(world)


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    with local_session() as new_session:
        yield new_session


@pytest.mark.filterwarnings("ignore")
def test_a_backlog_is_replayed_on_spark(session: SparkSession, world: BacklogWorld) -> None:
    report = run(world, executor=SparkReplayExecutor(session, world.store_url, SystemClock()), partitions=5)
    assert report.files == world.batch_files()
    assert report.rows == len(world.log()) > 0
    is_right(world)
    leave_nothing_behind(world)
