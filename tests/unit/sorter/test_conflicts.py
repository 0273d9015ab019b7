from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl
import pyarrow as pa

from sorter.core.conflicts import COMMITS, OPEN, matched
from sorter.rows.batch_rows import empty


def test_rows_that_are_matched_come_in_the_order_of_their_commits() -> None:
    names = [i * 7919 % 100 for i in range(100)]  # neither sorted nor in the order of their prewrites
    commits = [{"key": b"k%02d" % n, "start_ts": n, "commit_ts": n + 100, "op": 1, "asked": False} for n in names]
    prewrites = [
        {"key": b"k%02d" % n, "start_ts": n, "op": 1, "value": b"v%02d" % n, "region_id": region, "row_no": n + region}
        for region in (100, 200)  # each twice, as after a leader's move
        for n in range(100)
    ]

    rows, doubtful = matched(_frame(COMMITS, commits), _frame(OPEN, prewrites))

    assert rows.select("key", "commit_ts", "value").rows() == [(b"k%02d" % n, n + 100, b"v%02d" % n) for n in names]
    assert not doubtful.height


def _frame(schema: pa.Schema, rows: Sequence[Mapping[str, object]]) -> pl.DataFrame:
    """The rows, with zeros in the columns of numbers that they do not name."""
    return pl.DataFrame(rows, schema=empty(schema).schema).fill_null(0)
