"""Gathering runs of rows, compared with Arrow's take."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dispatcher.gather import gather
from tests.kit.batch_files import rows_of
from tistream.model.change import ROWS


def sample(count: int) -> pa.RecordBatch:
    """Rows whose values are null, empty or of many lengths, in a batch that is itself a slice."""
    rows = rows_of([b"key-%d" % i * (i % 5) for i in range(count + 3)])
    values = [None if i % 3 == 0 else b"v" * (i % 17) for i in range(count + 3)]
    columns = rows.columns
    columns[ROWS.get_field_index("value")] = pa.array(values, pa.binary())
    return pa.RecordBatch.from_arrays(columns, schema=ROWS).slice(3)


@pytest.mark.parametrize(
    "runs",
    [
        [(0, 100)],
        [(10, 20)],
        [(0, 20), (30, 90)],
        [(40, 60), (0, 30), (99, 100)],
        [(1, 2), (5, 6), (7, 9)],
        [(0, 12), (13, 25), (26, 38), (40, 52)],
    ],
)
def test_the_rows_of_the_runs_and_no_others(runs: list[tuple[int, int]]) -> None:
    rows = sample(100)
    starts, ends = (np.array(side, np.int64) for side in zip(*runs, strict=True))
    expected = rows.take(pa.array([i for start, end in runs for i in range(start, end)]))
    gathered = gather(rows, starts, ends)
    gathered.validate(full=True)
    assert gathered.equals(expected)
    assert gathered.schema == ROWS
    assert gathered["value"].null_count == expected["value"].null_count


def test_no_runs_give_no_rows() -> None:
    assert gather(sample(5), np.array([], np.int64), np.array([], np.int64)).num_rows == 0


def test_one_large_run_copies_nothing() -> None:
    rows = sample(50)
    gathered = gather(rows, np.array([3]), np.array([45]))
    assert gathered["key"].buffers()[2].address == rows["key"].buffers()[2].address


@pytest.mark.parametrize("share", [0, 1, 5, 30, 70, 100])
def test_what_is_held_is_at_most_twice_what_is_counted(share: int) -> None:
    """Of a decoded file, whose columns share one buffer; and of any part of it."""
    whole = rows_of([b"k%05d" % n + bytes(2000) for n in range(400)])
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, whole.schema) as writer:
        writer.write_batch(whole)
    written = stream.getvalue().to_pybytes()
    before = pa.total_allocated_bytes()
    file = pa.allocate_buffer(len(written))
    np.frombuffer(file, np.uint8)[:] = np.frombuffer(written, np.uint8)
    rows = pa.ipc.open_stream(file).read_next_batch()
    count = 400 * share // 100
    part = gather(rows, np.array([50][: bool(count)]), np.array([min(400, 50 + count)][: bool(count)]))
    assert part.num_rows == min(350, count)
    del rows, file
    assert pa.total_allocated_bytes() - before <= 2 * part.nbytes + 10_000


def test_columns_without_any_bytes() -> None:
    rows = rows_of([b""] * 40)
    rows = rows.set_column(rows.schema.get_field_index("value"), ROWS.field("value"), pa.nulls(40, pa.binary()))
    gathered = gather(rows, np.array([0, 20]), np.array([10, 40]))
    assert gathered["key"].to_pylist() == [b""] * 30
    assert gathered["value"].null_count == 30
