"""A standalone Spark cluster: a master and workers as processes that a test can kill."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import pyspark

from simulator.chaos.servers.ports import free_port
from tistream.errors import invariant

QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_HOME = Path(pyspark.__file__).parent


@dataclass
class SparkCluster:
    """Its master's address, and its processes."""

    master: str
    folder: Path
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def executors(self, worker: int) -> int:
        """How many executors this worker has started."""
        return len(list((self.folder / f"worker-{worker}").glob("app-*/*/stderr")))


@contextmanager
def spark_cluster(
    folder: Path,
    *,
    workers: int,
    cores: int = 1,
    memory: str = "900m",
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[SparkCluster]:
    """A running cluster. `environment`: what executors find in theirs. All processes end with the block."""
    port = free_port()
    cluster = SparkCluster(f"spark://127.0.0.1:{port}", folder)
    with ExitStack() as stack:
        master = ["master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        _started(folder / "master", master, stack, {})
        _said(folder / "master", "I have been elected leader", 1)
        for n in range(workers):
            name = folder / f"worker-{n}"
            worker = ["worker.Worker", "--host", "127.0.0.1", "--cores", str(cores), "--memory", memory]
            words = [*worker, "--webui-port", "0", "--work-dir", str(name), cluster.master]
            cluster.workers.append(_started(name, words, stack, environment))
        _said(folder / "master", "Registering worker", workers)
        yield cluster


def _started(
    folder: Path, words: list[str], stack: ExitStack, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True)
    command = [str(_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{words[0]}", *words[1:]]
    quick = {"SPARK_DAEMON_JAVA_OPTS": QUICK, "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1"}
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "PYTHONPATH", "PYSPARK_"))}
    env = {**clean, **quick, "SPARK_HOME": str(_HOME), **environment}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=folder)
    stack.callback(process.wait, 30)
    stack.callback(process.terminate)
    return process


def _said(folder: Path, words: str, times: int) -> None:
    deadline = time.monotonic() + 90
    while (folder / "log").read_text(errors="replace").count(words) < times:
        invariant(time.monotonic() < deadline, "Spark starts", log=(folder / "log").read_text()[-2000:])
        time.sleep(0.1)
