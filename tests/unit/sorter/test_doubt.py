from __future__ import annotations

import polars as pl
import pyarrow as pa

from sorter.arrivals import empty
from sorter.doubt import COMMITS, OPEN, matched


def test_rows_that_are_matched_come_in_the_order_of_their_commits() -> None:
    names = [i * 7919 % 100 for i in range(100)]  # neither sorted nor in the order of their prewrites
    key = [b"k%02d" % n for n in names]
    due = _frame(COMMITS, key=key, start_ts=names, commit_ts=[n + 100 for n in names], op=[1] * 100)
    sent = [(b"k%02d" % n, n, region) for region in (1, 2) for n in range(100)]  # twice, as after a leader's move
    keys, starts, regions = zip(*sent, strict=True)
    open_ = _frame(
        OPEN, key=keys, start_ts=starts, op=[1] * 200, value=keys, region_id=regions, row_no=list(range(200))
    )

    rows, doubtful = matched(due, open_)

    assert rows.select("key", "commit_ts", "value").rows() == [(k, n + 100, k) for k, n in zip(key, names, strict=True)]
    assert not doubtful.height


def _frame(schema: pa.Schema, **columns: object) -> pl.DataFrame:
    """The columns named, and zeros in the others (no value where there may be none)."""
    full = empty(schema)
    given = pl.DataFrame(columns, schema_overrides={n: full.schema[n] for n in columns})
    nothing = [
        pl.lit(None if n in ("value", "old_value") else 0).cast(t).alias(n)
        for n, t in full.schema.items()
        if n not in columns
    ]
    return given.with_columns(nothing).select(full.columns)
