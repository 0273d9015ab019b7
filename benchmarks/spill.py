"""Moving a task's rows to the disk, with their indexes, against writing as many bytes.

A core holds prewrites without commits; all of them leave the memory, then their numbers and indexes. The baseline
writes as many bytes from memory into unnamed files of the same size in the same folder. Neither waits for the disk
itself. The rows that the core holds afterwards are read back and compared with the input.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from benchmarks.harness import Result
from benchmarks.match_sort import FAR, RunSorter, batch_of, held
from benchmarks.rows import BASE_TS
from sorter.core.conflicts import OPEN, frame_of_all
from sorter.core.eviction import FILE_BYTES
from sorter.core.task_core import TaskCore
from sorter.worker.spill import Spill
from tistream.model.change import RowKind

BATCHES, ROWS = 6, 50_000
RUNS = 7


def run() -> Iterator[Result]:
    """One ratio."""
    batches = [held(RowKind.PREWRITE, ROWS, seed) for seed in range(BATCHES)]
    ratios = []
    for _ in range(RUNS):
        core = RunSorter().core
        for seq, rows in enumerate(batches, 1):
            core.handle(batch_of(rows, seq, BASE_TS, FAR))
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            core.evict(Spill(0, Path(folder)), sys.maxsize)
            spilled_s = time.perf_counter() - began
            ratios.append(_raw_s(core.bytes_on_disk(), folder) / spilled_s)
            _prove(core, batches)
    yield Result.of("spill/rows-and-indexes-vs-raw-write", ratios, 0.8)


def _raw_s(size: int, folder: str) -> float:
    """Seconds to write `nbytes` bytes."""
    source = np.random.default_rng(1).bytes(FILE_BYTES)
    with ExitStack() as files:
        began = time.perf_counter()
        for at in range(0, size, FILE_BYTES):
            file = files.enter_context(tempfile.TemporaryFile(dir=folder))
            file.write(memoryview(source)[: min(FILE_BYTES, size - at)])
        return time.perf_counter() - began


def _prove(core: TaskCore, batches: list[pa.RecordBatch]) -> None:
    open_rows = frame_of_all(core._prewrites.open.runs, OPEN).sort("row_no").select("key", "value", "start_ts")
    given = pl.DataFrame(pl.from_arrow(pa.Table.from_batches(batches))).select("key", "value", "start_ts")
    if not open_rows.equals(given) or core.bytes_held() > core.bytes_on_disk() / 10:
        raise ValueError("the rows on the disk are not those that came, or they are in memory still")
