"""Work in threads that ends within a request after its driver has stopped."""

from __future__ import annotations

import threading
import time

import pytest

from compactor.local import run_stoppable
from tests.kit.open_folder import OpenFolder
from tistream.clock import SystemClock
from tistream.errors import Fenced, StoreUnavailable
from tistream.objectstore.protocol import ObjectStore

CLOCK = SystemClock()


class _Cancelled(Exception):
    pass


def test_what_progress_raises_stops_the_rows_that_run_and_those_that_wait() -> None:
    begun, errors = list[int](), list[Exception]()
    two = threading.Barrier(3, timeout=20)

    def endless(store: ObjectStore, row: int) -> int:
        begun.append(row)
        two.wait()
        try:
            while True:
                list(store.list("x"))
                time.sleep(0.01)
        except Fenced as e:
            errors.append(e)
            raise

    def progress(done: int, total: int) -> None:
        two.wait()
        raise _Cancelled

    with pytest.raises(_Cancelled):
        list(run_stoppable(OpenFolder(), endless, range(12), progress, CLOCK, threads=2))
    assert sorted(begun) == [0, 1], "the others never begin"
    assert len(errors) == 2, "each was refused its next request"


def test_a_row_that_fails_stops_the_others() -> None:
    def work(store: ObjectStore, row: int) -> int:
        if row == 1:
            raise StoreUnavailable("away")
        return row

    with pytest.raises(StoreUnavailable):
        list(run_stoppable(OpenFolder(), work, range(4), lambda done, total: None, CLOCK, threads=1))


def test_each_row_has_one_result_and_progress_counts_them() -> None:
    seen: list[tuple[int, int]] = []
    results = run_stoppable(
        OpenFolder(), lambda _, row: row * row, range(9), lambda *at: seen.append(at), CLOCK, threads=3
    )
    assert sorted(results) == [n * n for n in range(9)]
    assert seen[-1] == (9, 9)
