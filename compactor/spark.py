"""Executor of plan rows on Spark: `compact_range` or `build_bases` does the work, on Arrow.

    driver    WAVES partitions per core, each with its share of the plan rows as text
    worker    row by row: decode it, compact_range over its own store client  -> one line: the result's text
    driver    collects the lines

Only plan rows and results cross the JVM, never a row of the log. There is no shuffle: the inputs are already cut by
range. Spark jobs of one tenant share a pool, so that with `spark.scheduler.mode=FAIR` no tenant waits for the jobs of
another one. Spark may run a task twice (speculation, a lost executor): every attempt has a unique name, so files do
not collide, and the driver takes one result per plan row. A partition holds several rows, because a Spark task costs
about as much processor time as a row of usual size (0.18 s in JVMs and worker, measured).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from compactor.core.base_plan import BasePlanRow
from compactor.core.plan import PlanRow
from compactor.core.results import BaseResult, RangeResult
from compactor.task import Failed, attempt, build_bases, compact_range
from tistream.clock import Clock
from tistream.codec.wire import decode, encode
from tistream.errors import SparkEnded
from tistream.objectstore.factory import open_store

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Batches = Iterator[pa.RecordBatch]

WAVES = 4  #: tasks per core: a slow or lost core delays a quarter of its share

STARVED_S = 300.0  #: without a task that runs: then the job gives up its place, and is queued again

_LOOK_EVERY_S = 0.5
_RESULT = pa.schema([("result", pa.string())])


class SparkExecutor:
    """An Executor over a session. `store_url` must be the same bucket for every worker; `progress` is called with
    (tasks done, tasks)."""

    def __init__(
        self,
        session: SparkSession,
        store_url: str,
        clock: Clock,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self._session, self._store_url, self._clock, self._progress = session, store_url, clock, progress

    def __call__(self, rows: Sequence[PlanRow]) -> Iterator[RangeResult | Failed]:
        """One Spark job for all rows. Spark's own error when a Spark task has failed too often."""
        lines = self._lines("compaction", rows, partial(_compact, self._store_url))
        yield from (decode(RangeResult | Failed, line) for line in lines)

    def bases(self, rows: Sequence[BasePlanRow]) -> Iterator[BaseResult | Failed]:
        """A BaseExecutor."""
        lines = self._lines("bases", rows, partial(_build, self._store_url))
        yield from (decode(BaseResult | Failed, line) for line in lines)

    def _lines(self, what: str, rows: Sequence[PlanRow | BasePlanRow], work: Callable[[str], str]) -> list[str]:
        name, plan = f"tistream-{what}-{rows[0].job}", [encode(row) for row in rows]
        return run_lines(self._session, name, plan, work, self._clock, self._progress, pool=str(rows[0].tenant))


def run_lines(
    session: SparkSession,
    name: str,
    plan: Sequence[str],
    work: Callable[[str], str],
    clock: Clock,
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    pool: str = "default",
) -> list[str]:
    """One Spark job `name` that maps each line of the plan to a result, in plan order. `work` is pickled: a function
    that workers can import, and plain values. What `progress` raises cancels the Spark job. `pool` of Spark's fair
    scheduler. SparkEnded when no task of it has run for STARVED_S."""
    context = session.sparkContext
    partitions = _partitions(context, len(plan))
    numbers = session.range(0, len(plan), 1, partitions)
    done = numbers.mapInArrow(_work(list(plan), work), "result string")

    def collect() -> list[str]:
        context.setJobGroup(name, name)
        context.setLocalProperty("spark.scheduler.pool", pool)
        return [line.result for line in done.collect()]

    with ThreadPoolExecutor(1, thread_name_prefix="spark") as threads:
        lines = threads.submit(collect)
        finished = threading.Event()
        lines.add_done_callback(lambda _: finished.set())
        fed_s = clock.monotonic()
        try:
            while not clock.wait(finished, _LOOK_EVERY_S):
                done_tasks, is_fed = _tasks(context, name)
                progress(len(plan) * done_tasks // partitions, len(plan))
                fed_s = clock.monotonic() if is_fed else fed_s
                if clock.monotonic() - fed_s > STARVED_S:
                    raise SparkEnded("Spark runs no task of this job: it has no executor", waited_s=STARVED_S)
        except BaseException:  # `progress` stops the work
            while not clock.wait(finished, _LOOK_EVERY_S):
                context.cancelJobGroup(name)  # again: the Spark job may not have begun yet
            raise
        return lines.result()


def _partitions(context: SparkContext, rows: int) -> int:
    """The number of Spark tasks. With dynamic allocation the number of cores is unknown: one per row."""
    is_elastic = context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"
    return rows if is_elastic else min(rows, WAVES * context.defaultParallelism)


def _tasks(context: SparkContext, group: str) -> tuple[int, bool]:
    """(the tasks of a Spark job that are done, whether one runs now)"""
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    known = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in known), any(stage.numActiveTasks for stage in known)


def _work(plan: list[str], one: Callable[[str], str]) -> Callable[[Batches], Batches]:
    """The function that workers run: a closure of plain values, so that no driver state is pickled."""

    def work(batches: Batches) -> Batches:
        pa.set_cpu_count(1)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield pa.record_batch([[one(plan[number])]], schema=_RESULT)

    return work


def _compact(store_url: str, line: str) -> str:
    return encode(attempt(compact_range, open_store(store_url), decode(PlanRow, line)))


def _build(store_url: str, line: str) -> str:
    return encode(attempt(build_bases, open_store(store_url), decode(BasePlanRow, line)))
