"""Runs plan rows on Spark, as nothing but an executor: `try_range` or `try_bases` does the work, on Arrow.

    driver    WAVES partitions per core, each with its share of the plan rows; their text travels with the function
    worker    row by row: decode it, compact_range over its own store client  -> one line: the result's text
    driver    collects the lines

Only plan rows and results cross the JVM, never a row of the log; there is no shuffle, for the inputs are cut by range
already. Spark may run a task twice, at once (speculation) or again (a lost executor): every try has a name of its own,
so the files do not meet, and the driver takes one result for each plan row. Not a task for each row: a Spark task costs
about as much processor time as a row of the usual size (0.18 s in JVMs and worker, measured).
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from compactor.base_task import BaseFailed, BaseResult, try_bases
from compactor.core.base_plan import BasePlanRow
from compactor.core.plan import PlanRow
from compactor.core.wire import decode, encode
from compactor.task import RangeFailed, RangeResult, try_range
from tistream.clock import Clock
from tistream.errors import ConfigError
from tistream.objectstore.factory import open_store

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Batches = Iterator[pa.RecordBatch]

WAVES = 4  #: tasks that a core gets one after the other: a core that is late or lost holds up a quarter of its share

_LOOK_EVERY_S = 0.5
_RESULT = pa.schema([("result", pa.string())])


def new_session(master: str | None, options: Mapping[str, str]) -> SparkSession:
    """A session, or the one that `spark-submit` has made. `master` as Spark writes it; None leaves it to Spark.

    The workers use this very Python. ConfigError when Spark is not installed.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as e:
        raise ConfigError("Spark is not installed: pip install 'tistream[server,spark]', and Java 17.") from e
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

    def __call__(self, rows: Sequence[PlanRow]) -> Iterator[RangeResult | RangeFailed]:
        """One Spark job for all rows. Spark's own error when one of its tasks has failed too often."""
        plan = [encode(row) for row in rows]
        name = f"tistream-compaction-{rows[0].job}"
        work = partial(_compact, self._store_url)
        lines = run_lines(self._session, name, plan, work, self._clock, self._progress)
        yield from (decode(RangeResult | RangeFailed, line) for line in lines)

    def bases(self, rows: Sequence[BasePlanRow]) -> Iterator[BaseResult | BaseFailed]:
        """A BaseExecutor, in the same way."""
        plan = [encode(row) for row in rows]
        name = f"tistream-bases-{rows[0].job}"
        work = partial(_build, self._store_url)
        lines = run_lines(self._session, name, plan, work, self._clock, self._progress)
        yield from (decode(BaseResult | BaseFailed, line) for line in lines)


def run_lines(
    session: SparkSession,
    name: str,
    plan: Sequence[str],
    work: Callable[[str], str],
    clock: Clock,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[str]:
    """One Spark job `name`: for each line of the plan a worker makes another one, in the plan's order. `work` travels:
    it is a function that workers can import, and plain values."""
    context = session.sparkContext
    partitions = _partitions(context, len(plan))
    numbers = session.range(0, len(plan), 1, partitions)
    done = numbers.mapInArrow(_work(list(plan), work), "result string")

    def collect() -> list[str]:
        context.setJobGroup(name, name)
        return [line.result for line in done.collect()]

    with ThreadPoolExecutor(1, thread_name_prefix="spark") as pool:
        lines = pool.submit(collect)
        finished = threading.Event()
        lines.add_done_callback(lambda _: finished.set())
        while not clock.wait(finished, _LOOK_EVERY_S):
            progress(len(plan) * _tasks_done(context, name) // partitions, len(plan))
        return lines.result()


def _partitions(context: SparkContext, rows: int) -> int:
    """How many tasks share the rows. Where executors come and go with the work, nobody knows how many cores there will
    be: a row each."""
    is_elastic = context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"
    return rows if is_elastic else min(rows, WAVES * context.defaultParallelism)


def _tasks_done(context: SparkContext, group: str) -> int:
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)


def _work(plan: list[str], one: Callable[[str], str]) -> Callable[[Batches], Batches]:
    """What a worker runs. A closure of plain values, so that nothing of the driver travels."""

    def work(batches: Batches) -> Batches:
        pa.set_cpu_count(1)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield pa.record_batch([[one(plan[number])]], schema=_RESULT)

    return work


def _compact(store_url: str, line: str) -> str:
    return encode(try_range(open_store(store_url), decode(PlanRow, line), secrets.token_hex(8)))


def _build(store_url: str, line: str) -> str:
    return encode(try_bases(open_store(store_url), decode(BasePlanRow, line), secrets.token_hex(8)))
