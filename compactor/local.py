"""Runs plan rows in threads of this process: for small logs, and where there is no Java."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from compactor.plan import PlanRow
from compactor.task import RangeResult, compact_range
from tistream.objectstore.protocol import ObjectStore


class LocalExecutor:
    """An Executor over one store. Results come in the order of the plan; the first error ends it."""

    def __init__(self, store: ObjectStore, *, threads: int = 2) -> None:
        self._store, self._threads = store, threads

    def __call__(self, rows: Sequence[PlanRow]) -> Iterator[RangeResult]:
        with ThreadPoolExecutor(self._threads, thread_name_prefix="compactor") as pool:
            yield from pool.map(self._one, rows)

    def _one(self, row: PlanRow) -> RangeResult:
        return compact_range(self._store, row, secrets.token_hex(8))
