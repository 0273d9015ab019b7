"""A standalone Spark: a real master and workers, each a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from simulator.chaos.servers.ports import free_port
from tistream.errors import invariant

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
