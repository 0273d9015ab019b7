"""Runs plan rows in threads of this process: for small logs, and where there is no Java."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from compactor.base_task import BaseFailed, BaseResult, try_bases
from compactor.core.base_plan import BasePlanRow
from compactor.core.plan import PlanRow
from compactor.task import RangeFailed, RangeResult, try_range
from tistream.objectstore.protocol import ObjectStore

W = TypeVar("W")
R = TypeVar("R")


class LocalExecutor:
    """An Executor over one store. Results come in the order of the plan. An error that may pass ends it."""

    def __init__(self, store: ObjectStore, *, threads: int = 2) -> None:
        self._store, self._threads = store, threads

    def __call__(self, rows: Sequence[PlanRow]) -> Iterator[RangeResult | RangeFailed]:
        return self._all(lambda row: try_range(self._store, row, secrets.token_hex(8)), rows)

    def bases(self, rows: Sequence[BasePlanRow]) -> Iterator[BaseResult | BaseFailed]:
        """A BaseExecutor."""
        return self._all(lambda row: try_bases(self._store, row, secrets.token_hex(8)), rows)

    def _all(self, one: Callable[[W], R], rows: Sequence[W]) -> Iterator[R]:
        with ThreadPoolExecutor(self._threads, thread_name_prefix="compactor") as pool:
            yield from pool.map(one, rows)
