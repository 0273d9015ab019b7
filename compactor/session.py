"""A Spark session: made here or by `spark-submit`, and watched as long as a process takes jobs with it.

    master    local[*], spark://host:7077, k8s://https://host:6443; None: that of spark-submit or spark-defaults.conf

Workers run this Python interpreter, by its path: on a standalone cluster the same virtual environment is at the same
path of every machine, on Kubernetes executors have the same image. They open the bucket with the credentials of their
own environment. The driver's Java is a child of this process and ends with it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

import structlog

from compactor.worker import JobDone, Progress, Work
from tistream.catalog.rows.jobs import JobRow
from tistream.clock import Clock
from tistream.errors import ConfigError, SparkEnded
from tistream.model.problem import Problem
from tistream.runtime.service import Repeating

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger(__name__)

JAVA_MIN = 17  #: the oldest Java that Spark 4 runs on

_JAVA_ANSWERS_S = 20
_CHECK_S = 1.0
_ANSWERS_S = 30.0  # a driver that collects garbage answers late


def new_session(master: str | None, options: Mapping[str, str], app: str = "tistream compaction") -> SparkSession:
    """A session, or the one that `spark-submit` has made. `master` in Spark's notation; None leaves it to Spark.

    The workers use this Python interpreter. ConfigError when PySpark or Java is not installed, or Spark does not start.
    """
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as e:
        raise ConfigError(
            "Spark is not installed: it comes with the extra 'spark' of tistream, and needs Java 17."
        ) from e
    if "PYSPARK_GATEWAY_PORT" not in os.environ and (problem := java_problem()) is not None:
        raise ConfigError(f"{problem} Spark needs Java {JAVA_MIN} or newer: apt-get install openjdk-17-jre-headless.")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master is not None and master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(app).config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.executorEnv.POLARS_MAX_THREADS", "1")  # there is a worker per core
    if master is not None:
        builder = builder.master(master)
    for name, value in options.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except (PySparkException, OSError) as e:
        raise ConfigError(f"Spark did not start: {e}. What it wrote above says why.") from e


def java_problem() -> str | None:
    """Why Spark would find no Java that it can run on, as a sentence; None when it would. It looks where Spark's own
    scripts look."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    if java is None:
        return "Java is not installed."
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_ANSWERS_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        return f"{java} cannot be run: {e}."
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    if match is None or answer.returncode:
        return f"{java} does not say its version."
    return f"{java} is Java {match[1]}." if int(match[1]) < JAVA_MIN else None


class SessionWatch:
    """A service: it ends the process when the session's Java has ended or hangs, or the cluster has dropped the
    application. A supervisor starts a new one; the jobs' leases run out or are given back."""

    def __init__(self, session: SparkSession, clock: Clock, name: str) -> None:
        self.name = name
        self._session, self._clock = session, clock
        self._repeating = Repeating(f"{name}/session", self._check, interval_s=_CHECK_S, clock=clock)
        self.ended = threading.Event()  #: the session is of no use any more

    def start(self) -> None:
        self._repeating.start()

    def wait_until_ready(self, timeout_s: float) -> bool:
        return self._repeating.wait_until_ready(timeout_s)

    def problems(self) -> list[Problem]:
        return self._repeating.problems()

    def stop(self) -> None:
        """Stop watching; the session lives on until `end_session`."""
        self._repeating.stop()

    def end_session(self) -> None:
        """End the session; a Java that no longer answers is killed."""
        if not self.ended.is_set():
            ending = threading.Thread(target=self._session.stop, name="spark-stop", daemon=True)
            ending.start()
            ending.join(_ANSWERS_S)
            if not ending.is_alive():
                return
        java = getattr(self._session.sparkContext._gateway, "proc", None)
        if java is not None:  # else of spark-submit, which ends with this process
            java.kill()

    def guarding(self, work: Work) -> Work:
        """The same work, for as long as the session lives. A job that is leased after its end is held until this
        process gives it back, so that it loses no try."""

        def guarded(job: JobRow, progress: Progress) -> JobDone:
            try:
                self._check()
            except SparkEnded:
                while True:
                    progress(0, 0)
                    self._clock.wait(threading.Event(), _CHECK_S)
            return work(job, progress)

        return guarded

    def _check(self) -> None:
        """SparkEnded when the session has ended or does not answer."""
        seen: list[bool] = []

        def ask() -> None:
            try:
                seen.append(not self._session.sparkContext._jsc.sc().isStopped())
            except Exception as e:  # noqa: BLE001 - any error of the connection means that Java is gone
                log.warning("Spark's Java does not answer", error=str(e))
                seen.append(False)

        asking = threading.Thread(target=ask, name="spark-watch", daemon=True)
        asking.start()
        asking.join(_ANSWERS_S)
        if seen != [True]:
            self.ended.set()
            raise SparkEnded
