"""Routing one batch file to every task: directory, slices, watermark rows and IPC output, against memcpy of the rows.

The file holds 1000 regions, and 8 tasks share the key space, with ends inside regions, so that both whole slices and
the row-by-row cut are measured. With regions in key order each task's rows touch; with shuffled regions (subscriptions
in the order in which they were opened) every region is a separate piece. Both sides write into existing memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import Result, compare
from benchmarks.rows import change_rows
from dispatcher.core.router import directory, route
from tests.kit.made_rows import batch_of
from tistream.keyrange import KeyRange
from tistream.model.change import REGIONS

ROWS = 120_000  # about 48 MB
REGION_COUNT = 1000
TASKS = 8

_Output = list[tuple[KeyRange, pa.Buffer]]


def run() -> Iterator[Result]:
    """Two ratios."""
    rows = change_rows(ROWS)
    rows = rows.take(pc.sort_indices(rows.column("key")))
    edges = [b"", *(rows.column("key")[i].as_py() for i in _cuts(REGION_COUNT)), b""]
    ends = [b"", *(rows.column("key")[i + 7].as_py() for i in _cuts(TASKS)), b""]
    tasks = [KeyRange(start, end) for start, end in pairwise(ends)]
    in_order = np.arange(REGION_COUNT)
    yield _ratio("routing/regions-in-key-order", *_file(rows, edges, in_order), tasks, target=0.6)
    shuffled = np.random.default_rng(3).permutation(REGION_COUNT)
    yield _ratio("routing/shuffled-regions", *_file(rows, edges, shuffled), tasks, target=0.3)


def _cuts(parts: int) -> list[int]:
    return [ROWS * i // parts for i in range(1, parts)]


def _file(
    rows: pa.RecordBatch, edges: list[bytes], order: npt.NDArray[np.int64]
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """The rows and regions of a file with the subscriptions in this order."""
    bounds = np.array([0, *_cuts(REGION_COUNT), ROWS])
    order_rows = np.concatenate([np.arange(bounds[i], bounds[i + 1]) for i in order])
    counts = (bounds[1:] - bounds[:-1])[order]
    regions = batch_of(
        REGIONS,
        region_id=order + 1,
        start_key=[edges[i] for i in order],
        end_key=[edges[i + 1] for i in order],
        resolved_ts=1,
        row_offset=np.cumsum(counts) - counts,
        row_count=counts,
    )
    return rows.take(pa.array(order_rows)), regions


def _ratio(name: str, rows: pa.RecordBatch, regions: pa.RecordBatch, tasks: list[KeyRange], *, target: float) -> Result:
    source = np.frombuffer(rows.serialize(), np.uint8)
    copy = np.empty_like(source)

    def memcpy() -> npt.NDArray[np.uint8]:
        np.copyto(copy, source)
        return copy

    sinks = [(task, pa.allocate_buffer(len(source))) for task in tasks]
    for _, sink in sinks:
        np.frombuffer(sink, np.uint8)[:] = 0

    def dispatch() -> _Output:
        file = directory(rows, regions)
        for task, sink in sinks:
            part = route(file, task)
            with pa.FixedSizeBufferWriter(sink) as out:
                for batch in (part.rows, part.regions):
                    with pa.ipc.new_stream(out, batch.schema) as writer:
                        writer.write_batch(batch)
        return sinks

    def same(output: _Output, whole: npt.NDArray[np.uint8]) -> bool:
        file = pa.ipc.read_record_batch(pa.py_buffer(whole), rows.schema)
        return all(pa.ipc.open_stream(sent).read_next_batch().equals(_filtered(file, task)) for task, sent in output)

    return compare(name, dispatch, memcpy, proof=same, target=target)


def _filtered(rows: pa.RecordBatch, task: KeyRange) -> pa.RecordBatch:
    """The rows of the range, by looking at each."""
    keys = rows.column("key")
    mask = pc.greater_equal(keys, task.start)
    if task.end:
        mask = pc.and_(mask, pc.less(keys, task.end))
    return rows.filter(mask)
