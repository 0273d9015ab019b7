"""Compaction and bases on Spark: in this process, in a driver that is killed, and on a standalone cluster."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from compactor.core.plan import PlanSettings
from compactor.job import JobEnd, JobSettings, compact_tenant, planned
from compactor.local import LocalExecutor
from compactor.spark import WAVES, SparkExecutor, run_lines
from compactor.task import merge, read_inputs
from metaserver.collect import Collector
from simulator.chaos.servers.ports import free_port
from tests.kit.api_world import ApiWorld, api_world, has_more
from tests.kit.log_builder import TENANT
from tests.kit.spark_session import SPARK_OPTIONS, local_session
from tistream.catalog.database import tables
from tistream.catalog.log.compaction import pieces
from tistream.clock import SystemClock
from tistream.errors import invariant
from tistream.objectstore.local import LocalStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = JobSettings(lag_ms=0, plan=PlanSettings(inputs_min=2))
KILLS = (0, 2)  #: after so many new files


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    with local_session() as made:
        yield made


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ApiWorld]:
    with api_world(tmp_path, LocalStore(tmp_path / "bucket")) as made:
        made.log.build(12)
        yield made


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
    _, rows = planned(world.catalog, TENANT, SETTINGS)
    inputs = {row.task_id: read_inputs(world.store, row) for row in rows}
    told: list[tuple[int, int]] = []
    executor = SparkExecutor(session, f"file://{tmp_path}/bucket", world.clock)
    report = compact_tenant(
        world.catalog, TENANT, executor, SETTINGS, world.clock, lambda done, total: told.append((done, total))
    )
    assert (report.end, report.files_after, told[-1]) == (JobEnd.SWAPPED, len(rows), (len(rows), len(rows)))
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
    told: list[tuple[int, int]] = []
    lines = run_lines(session, "shares", plan, str.upper, SystemClock(), lambda *done: told.append(done))
    assert lines == [line.upper() for line in plan]
    (job,) = session.sparkContext.statusTracker().getJobIdsForGroup("shares")
    (stage,) = session.sparkContext.statusTracker().getJobInfo(job).stageIds
    assert session.sparkContext.statusTracker().getStageInfo(stage).numTasks == WAVES * cores
    assert all(done <= total == len(plan) for done, total in told)


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
        had = len(files(tmp_path))
        driver = start_driver(tmp_path)
        deadline = time.monotonic() + 120
        while driver.poll() is None and len(files(tmp_path)) < had + kill and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(rand.random() * (4.0 if kill == 0 else 0.3))
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        assert bodies(world) == before
    compact_tenant(world.catalog, TENANT, LocalExecutor(world.store), SETTINGS, world.clock)
    assert bodies(world) == before
    with world.catalog.transaction() as conn:
        conn.execute(tables.read_leases.delete())
    Collector(world.catalog, world.store, SystemClock(), grace_ms=0).step()
    live = {p.object_key for p in pieces(world.catalog, TENANT, upto_ts=1 << 62, limit=999)}
    left = {str(path.relative_to(tmp_path / "bucket")) for path in files(tmp_path)}
    assert left == {key for key in live if key.startswith("compacted/")}, "what was replaced or never named is gone"
    assert bodies(world) == before


def tables_and_changes(world: ApiWorld) -> list[bytes]:
    tables = ("acct", "customers", "p_range", "evolve")
    rows = [world.ok(f"/databases/shop/tables/{name}/rows").content for name in tables]
    return [world.ok(format="ndjson", limit=200_000).content, *rows]


@pytest.mark.slow
def test_two_workers_merge_and_build_what_is_read_the_same(tmp_path: Path) -> None:
    with api_world(tmp_path, LocalStore(tmp_path / "bucket")) as world:
        world.log.build(12).seed()
        before = tables_and_changes(world)
        path = os.pathsep.join(p for p in sys.path if p)
        conf = {**SPARK_OPTIONS, "spark.executor.memory": "512m", "spark.executorEnv.PYTHONPATH": path}
        conf |= {"spark.driver.host": "127.0.0.1", "spark.cores.max": "2"}
        (tmp_path / "spark").mkdir()
        with spark_cluster(tmp_path / "spark", workers=2) as master:
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "tistream.cli.main", "compact", "--cluster=1", "--tenant=1"),
                    *(f"--catalog=sqlite:///{tmp_path}/catalog.db", f"--object-store=file://{tmp_path}/bucket"),
                    *("--lag-s=0", "--inputs-min=2", "--target-mb=1", "--base-tail-mb=0", f"--master={master}"),
                    *(f"--spark-conf={name}={value}" for name, value in conf.items()),
                ],
                env={**os.environ, "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"},
                capture_output=True,
                check=False,
                timeout=240,
            )
        assert done.returncode == 0, done.stderr[-3000:]
        report = json.loads(done.stdout)
        assert (report["end"], report["bases"]["end"]) == ("swapped", "swapped")
        executors = [p for n in (0, 1) for p in (tmp_path / "spark" / f"worker-{n}").glob("app-*/*/stderr")]
        assert len({p.parents[2].name for p in executors}) == 2, "each worker ran an executor"
        assert tables_and_changes(world) == before
        base_ts = world.ok("/databases/shop/tables/acct/rows").headers["TiStream-Base-Ts"]
        assert base_ts == str(report["bases"]["ts"])


_QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


@contextmanager
def spark_cluster(folder: Path, *, workers: int, cores: int = 1, memory: str = "900m") -> Iterator[str]:
    """The master's address. All processes end with the block."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        master = ["master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        _started(folder / "master", master, stack)
        _said(folder / "master", "I have been elected leader", 1)
        for n in range(workers):
            name = folder / f"worker-{n}"
            worker = ["worker.Worker", "--host", "127.0.0.1", "--cores", str(cores), "--memory", memory]
            _started(name, [*worker, "--webui-port", "0", "--work-dir", str(name), url], stack)
        _said(folder / "master", "Registering worker", workers)
        yield url


def _started(folder: Path, words: list[str], stack: ExitStack) -> None:
    folder.mkdir()
    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{words[0]}", *words[1:]]
    quick = {"SPARK_DAEMON_JAVA_OPTS": _QUICK, "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1"}
    env = {**os.environ, **quick, "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(home)}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=folder)
    stack.callback(process.wait, 30)
    stack.callback(process.terminate)


def _said(folder: Path, words: str, times: int) -> None:
    deadline = time.monotonic() + 90
    while (folder / "log").read_text(errors="replace").count(words) < times:
        invariant(time.monotonic() < deadline, "Spark starts", log=(folder / "log").read_text()[-2000:])
        time.sleep(0.1)
