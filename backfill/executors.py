"""Executors of plan rows: threads of this process, or Spark. Both only run `replay_partition`.

Plan rows and results cross the JVM as text; rows of the log never do. A worker that runs twice writes twice, under
different keys, and the driver takes one result per partition.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from typing import TYPE_CHECKING

from backfill.core.plan import PlanRow
from backfill.replay import PartitionResult, replay_partition
from compactor.spark import run_lines
from tistream.clock import Clock
from tistream.codec.wire import decode, encode
from tistream.objectstore.factory import open_store
from tistream.objectstore.protocol import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Progress = Callable[[int, int], None]  #: called with (partitions done, partitions)
Executor = Callable[[Sequence[PlanRow], Progress], Iterable[PartitionResult]]


class ThreadsExecutor:
    """An Executor over one store. The first error ends it."""

    def __init__(self, store: ObjectStore, *, threads: int = 2) -> None:
        self._store, self._threads = store, threads

    def __call__(self, rows: Sequence[PlanRow], progress: Progress) -> Iterator[PartitionResult]:
        with ThreadPoolExecutor(self._threads, thread_name_prefix="replay") as pool:
            for number, done in enumerate(as_completed([pool.submit(self._one, row) for row in rows]), 1):
                yield done.result()
                progress(number, len(rows))

    def _one(self, row: PlanRow) -> PartitionResult:
        return replay_partition(self._store, row, secrets.token_hex(8))


class SparkExecutor:
    """An Executor over a Spark session. `store_url` must be the same bucket for every worker."""

    def __init__(self, session: SparkSession, store_url: str, clock: Clock) -> None:
        self._session, self._store_url, self._clock = session, store_url, clock

    def __call__(self, rows: Sequence[PlanRow], progress: Progress) -> Iterator[PartitionResult]:
        """One Spark job for all rows. Spark's own error when a Spark task has failed too often."""
        name = f"tistream-replay-{secrets.token_hex(4)}"
        plan, work = [encode(row) for row in rows], partial(_replay, self._store_url)
        lines = run_lines(self._session, name, plan, work, self._clock, progress, pool=str(rows[0].tenant))
        yield from (decode(PartitionResult, line) for line in lines)


def _replay(store_url: str, line: str) -> str:
    return encode(replay_partition(open_store(store_url), decode(PlanRow, line), secrets.token_hex(8)))
