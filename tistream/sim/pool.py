"""Processes that share the runs."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from threading import Thread


def pool_of(jobs: int) -> ProcessPoolExecutor:
    """So many processes, which end with this one, however it ends: a killed one leaves none behind."""
    # Not by fork: the libraries' own threads would be missing in the child.
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_end_with_parent)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None, "this is a process of a pool"

    def wait() -> None:
        parent.join()
        os._exit(1)  # nobody is there to hear of anything

    Thread(target=wait, name="end with parent", daemon=True).start()
