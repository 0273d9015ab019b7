"""The chart's example `trial` as it runs: image, database, S3 server with STS, a living TiKV cluster, Prometheus."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson
import pymysql
import yaml

from simulator.chaos.servers.mariadb import MariaDBServer
from simulator.profiles import STEADY
from simulator.serve.content import workload_cluster
from simulator.serve.served import ServedCluster
from simulator.workload import Workload
from tests.kit.pods.cluster import Cluster, Pod
from tests.kit.pods.image import Image, build, run_in
from tests.kit.pods.scraping import Prometheus, prometheus
from tests.kit.s3_doubles import BUCKET, FOLDER, ROOT, guarded_s3
from tests.kit.waiting import eventually
from tistream import __version__, ts
from tistream.client import connect
from tistream.model.change import Op

REPOSITORY = Path(__file__).parents[3]
RENDERED = REPOSITORY / "infra" / "helm" / "rendered" / "trial.yaml"
SPARK, MAINTAIN = "tistream-spark", "tistream-maintain"
#: of the chart's services, without pushers and Spark -> pods
SERVICES = {"api": 2, "meta": 2, "dispatcher": 2, "sorter": 2, "maintain": 1, "replicate": 1}
_JOBS = (1 << 63 | 0xFFFF_FFFF_FFFE).to_bytes(8, "big")  #: TiDB's table of DDL jobs; pulls do not deliver its rows
_PUTS = [f"arn:aws:s3:::{BUCKET}/{FOLDER}/{kind}/*" for kind in ("data_change_buffer", "seeds")]


@dataclass
class Deployed:
    """See the module."""

    cluster: Cluster
    prometheus: Prometheus
    upstream: ServedCluster
    image: Image
    database_port: int

    @property
    def workload(self) -> Workload:
        assert self.upstream.workload is not None
        return self.upstream.workload

    @cached_property
    def start_ts(self) -> int:
        """Above it the tenant's log is complete."""
        ((start_ts,),) = self.rows("SELECT start_ts FROM tenants")
        return int(start_ts)

    @property
    def url(self) -> str:
        """Of an API pod that is ready, as a port forward finds it."""
        pod = next(pod for pod in self.cluster.of("api") if pod.container.is_ready)
        return f"http://{pod.address}:{pod.ports['http']}"

    @cached_property
    def owner(self) -> str:
        """An owner's key, created as the chart's notes say."""
        return self.run_beside(self.cluster.of("api")[0], ["tistream", "key", "owner"]).strip()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Of the catalog."""
        root = pymysql.connect(host="127.0.0.1", port=self.database_port, user="root", database="tistream")
        with root, root.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def run_beside(self, pod: Pod, command: Sequence[str]) -> str:
        """`kubectl exec`: a program with the image, the volumes and the user of a container; what it printed."""
        sandbox = replace(pod.container.spec, command=command)
        return run_in(sandbox, pod.container.folder / "beside.json", timeout_s=60)

    def connects(self, pod: str, address: str, port: int) -> bool:
        """Whether a pod gets a connection to an address."""
        program = f"import socket; socket.create_connection(({address!r}, {port}), 1)"
        where = ["ip", "netns", "exec", self.cluster.network.namespace(pod)]
        return subprocess.run([*where, sys.executable, "-S", "-c", program], capture_output=True).returncode == 0

    def ready(self, pod: Pod) -> float:
        """Wait until a pod is ready; how many seconds that took, less those in which others had the processor."""
        began = time.monotonic()
        eventually(lambda: pod.container.is_ready, lambda: f"{pod.name}:\n{pod.container.output()[-4000:]}")
        return time.monotonic() - began - pod.container.usage()[1]


class Reader:
    """Pulls tenant 1/1 with one key and one cursor, and knows what it has read."""

    def __init__(self, world: Deployed, key: str) -> None:
        self._world, self._key = world, key
        self._cursor: str | None = None
        self.resolved_ts = 0
        self.read: Counter[int] = Counter()  #: commit_ts -> rows

    def pull(self) -> None:
        """All that there is now."""
        with connect(self._world.url, key=self._key) as client:
            while True:
                page = client.tenant(1, 1).page(cursor=self._cursor, wait_s=0.5, limit=5000)
                self._cursor, self.resolved_ts = page.next_cursor, page.resolved_ts
                rows = map(orjson.loads, page.content.splitlines())
                self.read.update(int(row["commit_ts"]) for row in rows if row["type"] in ("insert", "update"))
                if not page.has_more:
                    return

    def all_rows(self) -> bytes:
        """What one who begins now is given up to the resolved ts of the last pull."""
        with connect(self._world.url, key=self._key) as client:
            pages = client.tenant(1, 1).changes(end=self.resolved_ts, limit=5000).pages()
            return b"".join(page.content for page in pages)

    def lacks(self) -> Counter[int]:
        """What was written at or below the resolved ts and was not read; not counting deletes: one of a row that never
        was is left out of a pull."""
        return self._committed() - self.read

    def has_more(self) -> Counter[int]:
        """What was read and was not committed, or twice."""
        return self.read - self._committed()

    def _committed(self) -> Counter[int]:
        start_ts = self._world.start_ts
        with self._world.upstream.changing():
            committed = list(self._world.workload.committed)
        rows = [row for row in committed if start_ts < row.commit_ts <= self.resolved_ts]
        of_tables = (row for row in rows if row.key[:1] == b"t" and row.key[9:11] == b"_r")
        return Counter(row.commit_ts for row in of_tables if row.op == Op.PUT and row.key[1:9] != _JOBS)


@contextmanager
def deployed(folder: Path) -> Iterator[Deployed]:
    """All of it, every service ready; no pusher yet: its tenant is not registered."""
    infra = REPOSITORY / "infra"
    image = build(infra / "Dockerfile", REPOSITORY, folder / "image")
    spark = build(infra / "spark.Dockerfile", REPOSITORY, folder / "spark-image", images={"tistream": image})
    images = {f"tistream:{__version__}": image, f"tistream-spark:{__version__}": spark}
    manifests = [each for each in yaml.safe_load_all(RENDERED.read_text("utf-8")) if each]
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(manifests, images, folder / "pods"))
        cluster.scale(SPARK, 0)  # until it is wanted
        node = cluster.network.node
        database = MariaDBServer(_made(folder / "mariadb"), options=[f"--bind-address=127.0.0.1,{node}"])
        database.start()
        stack.callback(database.stop)
        s3 = stack.enter_context(guarded_s3(folder / "s3", node))
        s3.make_role("pusher", [{"Effect": "Allow", "Action": "s3:PutObject", "Resource": _PUTS}])
        upstream = stack.enter_context(_upstream(node))
        cluster.external("mariadb", 3306, database.port)
        cluster.external("s3", 4566, s3.port)
        cluster.external("pd", 2379, int(upstream.pd_address.rpartition(":")[2]))
        cluster.secret("tistream-catalog", {"catalog-url": _account(database)})
        cluster.secret("tistream-s3", ROOT)
        cluster.apply()
        watching = stack.enter_context(prometheus(cluster, folder / "prometheus", for_s=3))
        deployment = Deployed(cluster, watching, upstream, image, database.port)
        for pod in [pod for role in SERVICES for pod in cluster.of(role)]:
            deployment.ready(pod)
        yield deployment


def _upstream(host: str) -> ServedCluster:
    cluster = workload_cluster(STEADY, floor_ts=ts.compose(int(time.time() * 1000)), regions=8)
    workload = Workload(1, cluster, STEADY, whole_meta=True)
    return ServedCluster(cluster, stores=STEADY.stores, workload=workload, steps_per_s=40, host=host)


def _account(database: MariaDBServer) -> str:
    """An account that may do what it must with the catalog's database and no more; its address for the pods."""
    root = pymysql.connect(host="127.0.0.1", port=database.port, user="root")
    with root, root.cursor() as cursor:
        cursor.execute("CREATE USER tistream@'%' IDENTIFIED BY 'a-password'")
        cursor.execute("GRANT ALL ON tistream.* TO tistream@'%'")
    return "mysql+pymysql://tistream:a-password@mariadb:3306/tistream"


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
