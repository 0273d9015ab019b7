from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from sorter.core.conflicts import COMMITS, OPEN, READY, frame_of
from sorter.rows import batch_rows as module
from sorter.rows.batch_rows import IncomingRows, empty, from_arrow, rows_inside, to_arrow
from tests.kit.sorter_oracle import C, Mark, P, Row
from tests.kit.sorter_world import File, feed_batch
from tistream.errors import CorruptObject
from tistream.feed.protocol import FeedBatch
from tistream.keyrange import KeyRange
from tistream.model.change import RowKind

MARKS = tuple(
    Mark(region_id=r, start=b"", end=b"", checkpoint_ts=r * 10, resolved_ts=0, open_ts=r, ready_ts=0) for r in (1, 2, 3)
)


def file(*rows: Row) -> File:
    return File(store_id=4, incarnation=5, seq=6, cut_ts=99, rows=rows, marks=MARKS)


def frame(batch: FeedBatch, range_: KeyRange = KeyRange(), first_row_no: int = 0) -> pl.DataFrame:  # noqa: B008 - frozen
    """All rows of a batch as if they were prewrites."""
    arrivals = IncomingRows(batch, range_, first_row_no)
    names = ("start_ts", "op", "generation", "expire_ts", "flags", "row_no", "origin")
    run = arrivals.run(np.arange(len(arrivals)), names)
    return frame_of(run, run.living(), OPEN)


def test_each_row_knows_its_subscription_its_file_and_its_number() -> None:
    batch = feed_batch(
        file(
            Row(kind=P, key=b"a", start_ts=1, value=b"v", subscription=0),
            Row(kind=P, key=b"b", start_ts=2, value=b"v", subscription=2),
            Row(kind=P, key=b"c", start_ts=3, value=b"v", subscription=2),
        )
    )
    rows = frame(batch, first_row_no=40)
    assert rows["region_id"].to_list() == [1, 3, 3]
    assert rows["checkpoint_ts"].to_list() == [10, 30, 30]
    assert rows["row_no"].to_list() == [40, 41, 42]
    assert rows.select("store_id", "incarnation", "seq", "cut_ts").unique().row(0) == (4, 5, 6, 99)


def test_values_are_brought_into_one_form() -> None:
    rows = [
        Row(kind=P, key=b"a", start_ts=1, value=None, op=1),
        Row(kind=P, key=b"b", start_ts=1, value=b"", op=2),
        Row(kind=C, key=b"c", start_ts=1, commit_ts=2, value=b"", op=1),
        Row(kind=C, key=b"d", start_ts=1, commit_ts=2, value=b"v", op=1),
        Row(kind=3, key=b"e", start_ts=1, value=b"", op=0),
    ]
    batch = feed_batch(file(*rows))
    assert frame(batch)["value"].to_list() == [b"", None, b"", b"v", None]
    arrivals = IncomingRows(batch, KeyRange(), 0)
    at = arrivals.of_kind(RowKind.COMMIT)
    commits = arrivals.run(at, ("start_ts", "commit_ts", "op", "flags", "origin"), asked=np.zeros(len(at), np.bool_))
    assert frame_of(commits, commits.living(), COMMITS)["value"].to_list() == [None, b"v"]


@pytest.mark.parametrize(
    ("range_", "left"),
    [
        (KeyRange(), [b"", b"b", b"b\x00", b"c"]),
        (KeyRange(b"b"), [b"b", b"b\x00", b"c"]),
        (KeyRange(b"", b"b\x00"), [b"", b"b"]),
        (KeyRange(b"b\x00", b"c"), [b"b\x00"]),
    ],
)
def test_rows_outside_the_range_are_left_out(
    range_: KeyRange, left: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "rows_inside", rows_inside)  # no router has cut these
    keys = [b"", b"b", b"b\x00", b"c"]
    inside = rows_inside(pa.array(keys, pa.binary()), range_)
    assert [keys[i] for i in (range(len(keys)) if inside is None else inside)] == left
    rows = [Row(kind=P, key=key, start_ts=1, value=key) for key in keys]
    assert frame(feed_batch(file(*rows)), range_)["value"].to_list() == left


@pytest.mark.parametrize("counts", [[1, 0, 0], [1, 1, 1], [2, 2, 0], [0, 0, 0]])
def test_a_batch_whose_subscriptions_do_not_name_each_row_once_is_refused(counts: list[int]) -> None:
    batch = feed_batch(file(Row(kind=P, key=b"a", start_ts=1, value=b""), Row(kind=P, key=b"b", start_ts=1, value=b"")))
    at = batch.regions.schema.get_field_index("row_count")
    regions = batch.regions.set_column(at, batch.regions.schema.field(at), pa.array(counts, pa.uint64()))
    with pytest.raises(CorruptObject, match="each row once"):
        IncomingRows(replace(batch, regions=regions), KeyRange(), 0)


def test_subscriptions_whose_slices_lie_apart_are_refused() -> None:
    batch = feed_batch(file(Row(kind=P, key=b"a", start_ts=1, value=b"")))
    at = batch.regions.schema.get_field_index("row_offset")
    regions = batch.regions.set_column(at, batch.regions.schema.field(at), pa.array([1, 1, 1], pa.uint64()))
    with pytest.raises(CorruptObject, match="each row once"):
        IncomingRows(replace(batch, regions=regions), KeyRange(), 0)


def test_large_output_is_cut_into_chunks_and_small_output_comes_back_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table(
        {
            "op": [1] * 5,
            "key": [b"k%d" % i for i in range(5)],
            "start_ts": range(5),
            "commit_ts": range(5),
            "value": [b"x" * 10, None, b"", b"y" * 10, b"z" * 10],
            "old_value": [None] * 5,
            "expire_ts": [0] * 5,
            "flags": [0] * 5,
        },
        schema=READY,
    )
    assert to_arrow(from_arrow(table), READY).equals(table)
    monkeypatch.setattr(module, "ARROW_BYTES_MAX", 20)
    cut = to_arrow(from_arrow(table), READY)
    assert cut.column("key").num_chunks == 3
    assert cut.equals(table)
    assert to_arrow(empty(READY), READY).equals(READY.empty_table())
