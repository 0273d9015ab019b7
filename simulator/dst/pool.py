"""Processes that share the runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from threading import Thread


@contextmanager
def pool_of(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes. They end with the block, which drops tasks that have not begun, and with this process, however
    it ends."""
    # Not by fork: the libraries' own threads would be missing in the child.
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_end_with_parent)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None, "this is a process of a pool"

    def wait() -> None:
        parent.join()
        os._exit(1)  # no process is left to report to

    Thread(target=wait, name="end with parent", daemon=True).start()
