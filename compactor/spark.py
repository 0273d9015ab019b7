"""Runs plan rows on Spark, as nothing but an executor: `compact_range` or `build_bases` does the work, on Arrow.

    driver    one partition per plan row; the rows' text travels with the function -> mapInArrow
    worker    decode its row, compact_range over its own store client  -> one line: the result's text
    driver    collects the lines

Only plan rows and results cross the JVM, never a row of the log; there is no shuffle, for the inputs are cut by range
already. Spark may run a task twice, at once (speculation) or again (a lost executor): every try has a name of its own,
so the files do not meet, and the driver takes one result for each plan row.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa

from compactor.base_plan import BasePlanRow
from compactor.base_task import BaseResult, build_bases
from compactor.plan import PlanRow
from compactor.task import RangeResult, compact_range
from compactor.wire import decode_base_result, decode_base_row, decode_result, decode_row, encode
from tistream.clock import Clock
from tistream.errors import ConfigError
from tistream.objectstore.factory import open_store
from tistream.objectstore.protocol import ObjectStore

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Batches = Iterator[pa.RecordBatch]

_LOOK_EVERY_S = 0.5
_RESULT = pa.schema([("result", pa.string())])


def new_session(master: str | None, options: Mapping[str, str]) -> SparkSession:
    """A session, or the one that `spark-submit` has made. `master` as Spark writes it; None leaves it to Spark.

    The workers use this very Python. ConfigError when Spark is not installed.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as e:
        raise ConfigError("Spark is not installed: pip install 'tistream[spark]', and Java 17.") from e
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master is not None and master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName("tistream compaction").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.executorEnv.POLARS_MAX_THREADS", "1")  # there is a worker for each core
    if master is not None:
        builder = builder.master(master)
    for name, value in options.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class SparkExecutor:
    """An Executor over a session. `store_url` must lead every worker to the same bucket; `progress` hears (tasks done,
    tasks) while Spark is at work."""

    def __init__(
        self,
        session: SparkSession,
        store_url: str,
        clock: Clock,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self._session, self._store_url, self._clock, self._progress = session, store_url, clock, progress

    def __call__(self, rows: Sequence[PlanRow]) -> Iterator[RangeResult]:
        """One Spark job for all rows. Spark's own error when one of its tasks has failed too often."""
        work = _work([encode(row) for row in rows], self._store_url, _compacted)
        return (decode_result(line) for line in self._lines(f"tistream-compaction-{rows[0].job}", len(rows), work))

    def bases(self, rows: Sequence[BasePlanRow]) -> Iterator[BaseResult]:
        """A BaseExecutor, in the same way."""
        work = _work([encode(row) for row in rows], self._store_url, _built)
        return (decode_base_result(line) for line in self._lines(f"tistream-bases-{rows[0].job}", len(rows), work))

    def _lines(self, name: str, count: int, work: Callable[[Batches], Batches]) -> Iterator[str]:
        context = self._session.sparkContext
        numbers = self._session.range(0, count, 1, count)  # a partition for each plan row
        done = numbers.mapInArrow(work, "result string")

        def collect() -> list[str]:
            context.setJobGroup(name, name)
            return [line.result for line in done.collect()]

        with ThreadPoolExecutor(1, thread_name_prefix="spark") as pool:
            lines = pool.submit(collect)
            finished = threading.Event()
            lines.add_done_callback(lambda _: finished.set())
            while not self._clock.wait(finished, _LOOK_EVERY_S):
                self._progress(_tasks_done(context, name), count)
            yield from lines.result()


def _tasks_done(context: SparkContext, group: str) -> int:
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)


def _compacted(store: ObjectStore, text: str) -> str:
    return encode(compact_range(store, decode_row(text), secrets.token_hex(8)))


def _built(store: ObjectStore, text: str) -> str:
    return encode(build_bases(store, decode_base_row(text), secrets.token_hex(8)))


def _work(plan: list[str], store_url: str, one: Callable[[ObjectStore, str], str]) -> Callable[[Batches], Batches]:
    """What a worker runs. A closure of plain values, so that nothing of the driver travels."""

    def work(batches: Batches) -> Batches:
        pa.set_cpu_count(1)
        store = open_store(store_url)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield pa.record_batch([[one(store, plan[number])]], schema=_RESULT)

    return work
