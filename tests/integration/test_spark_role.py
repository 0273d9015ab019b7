"""`tistream spark` on a standalone cluster, over S3 and MariaDB: jobs of several tenants, and a SIGKILL of everything
that can die in the middle of one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from apiserver.app import create_app
from metaserver.audit import audit
from metaserver.collect import Collector
from reading.served.services import Services
from simulator.chaos.servers.mariadb import mariadb
from simulator.chaos.servers.processes import TiStreamProcess
from simulator.chaos.servers.s3server import CREDENTIALS, s3_server
from tests.kit.catalog_cases import elected
from tests.kit.log_builder import LogBuilder
from tests.kit.spark_cluster import QUICK, SparkCluster, spark_cluster
from tests.kit.waiting import eventually
from tistream.catalog.database import tables
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.bases import list_bases
from tistream.catalog.log.compaction import pieces
from tistream.catalog.rows.jobs import JobExecutor, JobKind, JobLimits, JobState, NewJob
from tistream.catalog.rows.workers import WorkerKind, WorkerState
from tistream.catalog.work.job_rows import list_jobs
from tistream.catalog.work.jobs import enqueue
from tistream.catalog.work.workers import get_worker
from tistream.clock import SystemClock
from tistream.ids import Tenant
from tistream.objectstore.factory import open_store
from tistream.objectstore.protocol import ObjectStore
from tistream.ts import TS_MAX

TENANTS = (Tenant(1, 1), Tenant(1, 2), Tenant(2, 1))
CLOCK = SystemClock()
SPARK = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": QUICK,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK,
    "spark.cores.max": "2",
}


@dataclass
class World:
    """Logs of several tenants in MariaDB and S3, and the role that does their jobs."""

    folder: Path
    catalog: Catalog
    store: ObjectStore
    http: TestClient
    where: Mapping[str, str]  #: TISTREAM_* variables
    cluster: SparkCluster
    roles: list[TiStreamProcess] = field(default_factory=list)

    def kill_roles(self) -> None:
        for role in self.roles:
            role.kill()

    def read(self) -> list[bytes]:
        """All changes and two tables of each tenant."""
        paths = ("/changes?start_ts=earliest&format=ndjson&limit=200000", *map(_ROWS.format, ("acct", "customers")))
        bases = [f"/v1/clusters/{tenant.cluster_id}/tenants/{tenant.tenant_id}" for tenant in TENANTS]
        answers = [self.http.get(base + path) for base in bases for path in paths]
        assert {answer.status_code for answer in answers} == {200}
        assert "true" not in {answer.headers.get("TiStream-Has-More") for answer in answers}
        return [answer.content for answer in answers]

    def order(self, kind: JobKind) -> None:
        """A job of each tenant."""
        limits = JobLimits(lag_ms=0, due_ms=1)
        jobs = [NewJob(tenant=t, kind=kind, executor=JobExecutor.SPARK, limits=limits) for t in TENANTS]
        assert len(enqueue(self.catalog, jobs, leader_epoch=elected(self.catalog))) == len(TENANTS)

    def states(self) -> list[JobState]:
        """Of all jobs."""
        return [job.state for job in list_jobs(self.catalog)]

    def written(self) -> int:
        """Files that compaction has written, visible or not."""
        return sum(1 for folder in ("compacted/", "bases/") for _ in self.store.list(folder))

    def start(self) -> TiStreamProcess:
        """The role, under the one name that its supervisor gives it. Its executors have the installed package only."""
        conf = [f"--spark-conf={name}={value}" for name, value in SPARK.items()]
        words = ("spark", "--name", "spark-1", "--master", self.cluster.master, "--jobs", "2", *conf)
        role = TiStreamProcess(
            *words, log=self.folder / f"role-{len(self.roles)}.log", env={**self.where, "SPARK_LOCAL_IP": "127.0.0.1"}
        )
        role.start()
        self.roles.append(role)
        return role

    def forget(self) -> None:
        """The leases of a dead role run out at once, instead of after JOB_LEASE_MS; so do the pauses before a retry."""
        with self.catalog.transaction() as conn:
            conn.execute(tables.jobs.update().values(renewed_ms=0, due_ms=0))

    def wait(self, what: str, holds: Callable[[], object]) -> None:
        """While the newest role does it."""
        eventually(lambda: holds(), lambda: f"{what}: {self.states()}\n{self.roles[-1].output()[-4000:]}")


_ROWS = "/databases/shop/tables/{}/rows"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with ExitStack() as stack:
        database, s3 = stack.enter_context(mariadb()), stack.enter_context(s3_server())
        s3.create_bucket("logs")
        catalog, store = Catalog(database), open_store(s3.url("logs", "ts"))
        stack.callback(catalog.close)
        catalog.migrate()
        for tenant in TENANTS:
            LogBuilder(catalog, store, tenant).build(12).seed()
        http = stack.enter_context(TestClient(create_app(Services.create(catalog, store, CLOCK))))
        where = {**CREDENTIALS, "TISTREAM_CATALOG_URL": database, "TISTREAM_OBJECT_STORE_URL": s3.url("logs", "ts")}
        cluster = stack.enter_context(spark_cluster(tmp_path / "spark", workers=2, environment=CREDENTIALS))
        new_world = World(tmp_path, catalog, store, http, where, cluster)
        stack.callback(new_world.kill_roles)
        yield new_world


def java_of(role: TiStreamProcess) -> int:
    """The process of its driver."""
    for each in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            name, _, rest = each.read_text().partition("(")[2].rpartition(")")
            if (name, rest.split()[1]) == ("java", str(role.pid)):
                return int(each.parent.name)
    raise AssertionError(role.output()[-3000:])


@pytest.mark.slow
@pytest.mark.timeout(600)  # several sessions of Spark, which take long to start on a busy machine
def test_whatever_is_killed_each_job_is_published_once(world: World) -> None:
    before = world.read()
    whole = {tenant: len(pieces(world.catalog, tenant, upto_ts=TS_MAX, limit=999)) for tenant in TENANTS}
    world.order(JobKind.MERGE)
    world.order(JobKind.RETIRE_SEEDS)

    role = world.start()
    world.wait("a file is written", lambda: world.written() >= 1)
    role.kill()
    assert world.read() == before
    world.forget()

    role = world.start()
    seen = world.written()
    world.wait("another file is written", lambda: world.written() > seen)
    world.cluster.workers[0].kill()  # with the executor it has
    seen = world.written()
    world.wait("another one", lambda: world.written() > seen or JobState.QUEUED not in world.states())
    os.kill(java_of(role), signal.SIGKILL)
    assert role.wait(60) == 5, role.output()[-3000:]
    assert "TS-1051" in role.output()
    assert world.read() == before
    world.forget()

    role = world.start()
    world.wait("all jobs are done", lambda: set(world.states()) == {JobState.DONE})
    assert get_worker(world.catalog, "spark-1").kind is WorkerKind.SPARK
    assert role.stop() == 0, role.output()[-3000:]
    assert get_worker(world.catalog, "spark-1").state is WorkerState.GONE

    assert world.read() == before
    assert world.cluster.executors(0) > 0 < world.cluster.executors(1)
    for tenant in TENANTS:
        merged = pieces(world.catalog, tenant, upto_ts=TS_MAX, limit=999)
        assert len(merged) == len({p.task_id for p in merged}) < whole[tenant], "one file of each task"
        assert len({base.table_id for base in list_bases(world.catalog, tenant)}) > 10
    with world.catalog.transaction() as conn:
        conn.execute(tables.read_leases.delete())
        conn.execute(tables.builds.delete())  # those of the killed drivers last for minutes
    Collector(world.catalog, world.store, CLOCK, grace_ms=0).step()
    for report in audit(world.catalog, world.store, CLOCK, grace_ms=0):
        assert (report.faults, report.orphans) == ([], 0)
    assert world.read() == before
    compact_by_spark_submit(world)


def compact_by_spark_submit(world: World) -> None:
    """The command of docs/howto/compact.md."""
    program = "\"$(python -c 'import tistream.cli.main as m; print(m.__file__)')\""
    done = subprocess.run(
        f"spark-submit --master 'local[1]' --conf spark.ui.enabled=false {program} compact -c 1 -t 1 --lag-s 0",
        shell=True,
        env={**os.environ, **world.where, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    assert b"nothing to do" in done.stdout
