"""Compaction on Spark: in this process, and in a driver that is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.core.plan import PlanSettings
from compactor.job import JobEnd, JobSettings, compact_tenant, planned
from compactor.local import LocalExecutor
from compactor.spark import WAVES, SparkExecutor, run_lines
from compactor.task import merge, read_inputs
from metaserver.collect import Collector
from tests.kit.api_world import ApiWorld, api_world, has_more
from tests.kit.log_builder import TENANT
from tests.kit.spark_session import SPARK_OPTIONS, local_session
from tistream.catalog.database import tables
from tistream.catalog.log.compaction import pieces
from tistream.clock import SystemClock
from tistream.errors import Fenced
from tistream.objectstore.local import LocalStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = JobSettings(lag_ms=0, plan=PlanSettings(inputs_min=2))
KILLS = (0, 2)  #: after so many new files


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    with local_session() as new_session:
        yield new_session


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ApiWorld]:
    with api_world(tmp_path, LocalStore(tmp_path / "bucket")) as new_world:
        new_world.log.build(12)
        yield new_world


def bodies(world: ApiWorld) -> list[bytes]:
    answers = [world.ok(format=form, limit=200_000) for form in ("ndjson", "raw-arrow")]
    assert not any(has_more(answer) for answer in answers)
    return [bytes(answer.content) for answer in answers]


def in_signed(table: pa.Table) -> pa.Table:
    """Spark has no unsigned integers."""
    signed = {"op": pa.int16(), "flags": pa.int16(), "start_ts": pa.int64(), "commit_ts": pa.int64()}
    signed["expire_ts"] = pa.int64()
    schema = pa.schema([pa.field(f.name, signed.get(f.name, f.type)) for f in table.schema])
    return pa.Table.from_arrays(
        [column.cast(f.type) for column, f in zip(table.columns, schema, strict=True)], schema=schema
    )


@pytest.mark.filterwarnings("ignore")
def test_pulls_are_the_same_and_files_have_sparks_order(session: SparkSession, world: ApiWorld, tmp_path: Path) -> None:
    before = bodies(world)
    _, rows = planned(world.catalog, TENANT, SETTINGS, lambda: 1)
    inputs = {row.task_id: read_inputs(world.store, row) for row in rows}
    progress: list[tuple[int, int]] = []
    executor = SparkExecutor(session, f"file://{tmp_path}/bucket", SystemClock())
    report = compact_tenant(
        world.catalog, TENANT, executor, SETTINGS, SystemClock(), lambda done, total: progress.append((done, total))
    )
    assert (report.end, report.files_after, progress[-1]) == (JobEnd.COMMITTED, len(rows), (len(rows), len(rows)))
    assert report.files_before > 10
    assert bodies(world) == before
    for piece in (p for p in pieces(world.catalog, TENANT, upto_ts=1 << 62, limit=99) if "compacted/" in p.object_key):
        table = pa.concat_tables(inputs[piece.task_id])
        frame = session.createDataFrame(in_signed(table))
        by_spark = frame.orderBy("table_id", "commit_ts", "start_ts", "key").toArrow()
        written = in_signed(pq.read_table(tmp_path / "bucket" / piece.object_key))
        assert written.to_pylist() == by_spark.to_pylist()
        assert written.equals(in_signed(merge(inputs[piece.task_id])))


@pytest.mark.filterwarnings("ignore")
def test_tasks_share_the_lines_of_a_plan_and_answer_in_its_order(session: SparkSession) -> None:
    cores = session.sparkContext.defaultParallelism
    plan = [f"line {n}" for n in range(WAVES * cores + 5)]
    progress: list[tuple[int, int]] = []
    lines = run_lines(session, "shares", plan, str.upper, SystemClock(), lambda *done: progress.append(done))
    assert lines == [line.upper() for line in plan]
    (job,) = session.sparkContext.statusTracker().getJobIdsForGroup("shares")
    ran = session.sparkContext.statusTracker().getJobInfo(job)
    assert ran is not None
    stage = session.sparkContext.statusTracker().getStageInfo(*ran.stageIds)
    assert stage is not None
    assert stage.numTasks == WAVES * cores
    assert all(done <= total == len(plan) for done, total in progress)


@pytest.mark.filterwarnings("ignore")
def test_work_that_must_stop_ends_its_spark_job(session: SparkSession) -> None:
    tracker = session.sparkContext.statusTracker()

    def stop(done: int, total: int) -> None:
        if tracker.getActiveJobsIds():
            raise Fenced("the lease is lost")

    began = time.monotonic()
    with pytest.raises(Fenced):
        run_lines(session, "stops", ["sleep 60"] * 2, os.system, SystemClock(), stop)  # type: ignore[arg-type]
    assert time.monotonic() - began < 50
    assert list(tracker.getActiveJobsIds()) == []


def start_driver(folder: Path) -> subprocess.Popen[bytes]:
    options = {**SPARK_OPTIONS, "spark.local.dir": str(folder / "spark")}
    conf = [f"--spark-conf={name}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "tistream.cli.main", "compact", "--cluster=1", "--tenant=1", "--master=local[2]"]
    where = [f"--catalog=sqlite:///{folder}/catalog.db", f"--object-store=file://{folder}/bucket"]
    how = ["--lag-s=0", "--inputs-min=2", "--target-mb=1"]
    env: dict[str, Any] = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen(
        [*command, *where, *how, *conf],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def files(folder: Path) -> list[Path]:
    return list((folder / "bucket" / "compacted").rglob("*.parquet"))


def test_a_driver_that_is_killed_leaves_the_log_as_it_was(world: ApiWorld, tmp_path: Path) -> None:
    """Killed with its executors a moment after its n-th file has appeared, or after it has ended."""
    before, rand = bodies(world), random.Random(5)
    for kill in KILLS:
        files_before = len(files(tmp_path))
        driver = start_driver(tmp_path)
        deadline = time.monotonic() + 120
        while driver.poll() is None and len(files(tmp_path)) < files_before + kill and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(rand.random() * (4.0 if kill == 0 else 0.3))
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        assert bodies(world) == before
    compact_tenant(world.catalog, TENANT, LocalExecutor(world.store), SETTINGS, SystemClock())
    assert bodies(world) == before
    with world.catalog.transaction() as conn:
        conn.execute(tables.read_leases.delete())
        conn.execute(tables.builds.delete())  # the leases of the killed drivers have expired
    Collector(world.catalog, world.store, SystemClock(), grace_ms=0).step()
    live = {p.object_key for p in pieces(world.catalog, TENANT, upto_ts=1 << 62, limit=999)}
    left = {str(path.relative_to(tmp_path / "bucket")) for path in files(tmp_path)}
    assert left == {key for key in live if key.startswith("compacted/")}, "what was replaced or never named is gone"
    assert bodies(world) == before
