"""The rows of a page against plain lists: what is kept, in which order, and that nothing is copied without need."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from reading.core.page_rows import deletes_nothing, only, page, select
from tests.kit.made_rows import log_row, log_table
from tistream.model import change


def row(table_id: int, commit_ts: int, start_ts: int, key: bytes, flags: int = 0) -> dict[str, Any]:
    return log_row(table_id, commit_ts, key, start_ts=start_ts, value=b"v" + key, flags=flags)


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return log_table(*rows)


def drawn(seed: int, *, dense: bool) -> list[pa.Table]:
    """Segments as sorters write them; dense ones share transactions."""
    rng = random.Random(seed)
    most = 4 if dense else 10_000
    distinct = {
        (rng.randint(1, 3), commit := rng.randint(1, most), commit - rng.randint(0, 1), b"%d" % rng.randint(0, 99))
        for _ in range(200)
    }
    rows = [row(*fact, flags=rng.choice([0, 0, 0, change.FLAG_NOT_A_CHANGE])) for fact in sorted(distinct)]
    of: list[list[dict[str, Any]]] = [[] for _ in range(rng.randint(1, 5))]
    for one in rows:
        rng.choice(of).append(one)
    return [table(part) for part in of]


def in_order(parts: list[pa.Table]) -> pa.Table:
    merged, end = page(parts, upto=20_000, rows=1 << 20, size=1 << 30)
    assert end == 20_000
    return merged


def by_time(one: dict[str, Any]) -> tuple[int, int, int, bytes]:
    return one["commit_ts"], one["start_ts"], one["table_id"], one["key"]


@pytest.mark.parametrize("seed", range(40))
def test_rows_of_segments_come_in_commit_order_whole_and_once(seed: int) -> None:
    parts = drawn(seed, dense=seed % 2 == 0)
    assert in_order(parts).to_pylist() == sorted((r for part in parts for r in part.to_pylist()), key=by_time)


@pytest.mark.parametrize("seed", range(40))
def test_a_segment_gives_the_changes_of_the_wanted_tables_in_the_interval(seed: int) -> None:
    rng = random.Random(seed)
    (*_, part) = drawn(seed, dense=seed % 2 == 0)
    top = 4 if seed % 2 == 0 else 10_000
    after, upto = sorted(rng.randint(0, top) for _ in range(2))
    ids = rng.choice([None, set(), {1}, {2, 3}, {1, 2, 3, 4}])
    for changes_only in (True, False):
        expected = [
            r
            for r in part.to_pylist()
            if after < r["commit_ts"] <= upto
            and (ids is None or r["table_id"] in ids)
            and not (changes_only and r["flags"])
        ]
        assert select(part, after, upto, ids, changes_only=changes_only).to_pylist() == expected


def test_a_delete_without_an_old_value_deletes_nothing_unless_the_upstream_sends_none() -> None:
    put, delete, unknown = change.Op.PUT, change.Op.DELETE, change.FLAG_OLD_VALUE_UNKNOWN
    facts = [(7, put, None, 0), (7, delete, b"old", 0), (7, delete, None, 0), (7, delete, None, unknown)]
    facts += [(0, delete, None, 0)]  # a key of no table: of the meta range, say
    rows = [{**row(table_id, 5, 4, b"k", flags), "op": op, "old_value": old} for table_id, op, old, flags in facts]
    assert deletes_nothing(table(rows)).tolist() == [False, False, True, False, False]


def test_segments_that_follow_one_another_are_not_touched() -> None:
    parts = [table([row(7, ts, ts - 1, b"k") for ts in range(at, at + 10)]) for at in (10, 20, 30)]
    whole = in_order([select(part, 14, 33, {7}) for part in parts])
    assert [ts.as_py() for ts in whole["commit_ts"]] == list(range(15, 34))
    at = [(c.buffers()[2].address, c.offset) for c in whole["value"].chunks if len(c)]
    values = [part["value"].chunk(0) for part in parts]
    assert at == [(v.buffers()[2].address, n) for v, n in zip(values, (5, 0, 0), strict=True)], (
        "slices of what was read"
    )


def test_one_transaction_in_several_tasks_is_put_in_key_order() -> None:
    left, right = table([row(7, 5, 4, b"a"), row(7, 5, 4, b"c")]), table([row(7, 5, 4, b"b"), row(7, 5, 4, b"d")])
    assert in_order([right, left])["key"].to_pylist() == [b"a", b"b", b"c", b"d"]


def test_nothing_is_an_empty_page() -> None:
    assert in_order([]).equals(change.COMMITTED.empty_table())
    nothing = change.COMMITTED.empty_table().combine_chunks()
    assert in_order([select(nothing, 0, 9, {1}), nothing]).num_rows == 0


def test_scattered_rows_are_selected() -> None:
    part = table([row(1, n, n, b"k") for n in range(1, 6)])
    keep = np.array([True, False, True, False, False])
    assert only(part, keep)["commit_ts"].to_pylist() == [1, 3]


@pytest.mark.parametrize("mixed", [False, True])
def test_a_page_ends_where_rows_or_bytes_are_enough(mixed: bool) -> None:
    whole = table([row(1, n, n, b"k" * 99) for n in range(1, 11)])  # each 99 + 100 bytes of key and value
    parts = [whole.filter(pa.array(np.arange(10) % 2 == n)) for n in (0, 1)] if mixed else [whole]
    for rows, size, count in ((4, 1 << 20, 4), (100, 1 << 20, 10), (100, 199 * 3, 3), (100, 1, 1), (2, 199 * 3, 2)):
        page_rows, end = page(parts, upto=10, rows=rows, size=size)
        assert (page_rows["commit_ts"].to_pylist(), end) == ([*range(1, count + 1)], count)
    assert page([whole.slice(0, 0)], upto=7, rows=5, size=1)[1] == 7


def test_a_transaction_is_never_cut_in_two() -> None:
    parts = [table([row(n, 5, 4, b"%d" % k) for k in range(10, 20)]) for n in (1, 2)]
    rows, end = page([*parts, table([row(3, 6, 5, b"k")])], upto=9, rows=3, size=1 << 20)
    assert (rows.num_rows, end) == (20, 5)
