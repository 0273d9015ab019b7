from __future__ import annotations

import polars as pl
import pytest

from sorter.core import sort_buffer
from sorter.core.conflicts import READY
from sorter.core.sort_buffer import SortBuffer
from sorter.rows import output, run
from sorter.rows.batch_rows import empty
from tistream.codec.table_key import table_prefix
from tistream.errors import TiStreamError
from tistream.keyrange import KeyRange
from tistream.model.change import COMMITTED


def ready(*rows: tuple[bytes, int, int], value: bytes = b"v") -> pl.DataFrame:
    """(key, start_ts, commit_ts) each."""
    fixed = {"op": 1, "value": value, "old_value": None, "expire_ts": 0, "flags": 0}
    plain = [{"key": k, "start_ts": s, "commit_ts": c, **fixed} for k, s, c in rows]
    return pl.DataFrame(plain, schema=empty(READY).schema)


def taken(buffer: SortBuffer, w: int) -> list[tuple[int, int, int, bytes]]:
    table = buffer.take(w).table()
    assert table.schema.equals(COMMITTED)
    rows = table.select(["table_id", "commit_ts", "start_ts", "key"]).to_pylist()
    return [tuple(row.values()) for row in rows]


def test_rows_come_by_table_then_commit_start_and_key() -> None:
    t9, t10 = table_prefix(9) + b"_r", table_prefix(10) + b"_r"
    buffer = SortBuffer()
    buffer.add(ready((t10 + b"a", 5, 20), (t9 + b"b", 7, 30), (t9 + b"a", 7, 30), (t9 + b"c", 6, 30), (b"m", 1, 40)))
    assert taken(buffer, 40) == [
        (0, 40, 1, b"m"),
        (9, 30, 6, t9 + b"c"),
        (9, 30, 7, t9 + b"a"),
        (9, 30, 7, t9 + b"b"),
        (10, 20, 5, t10 + b"a"),
    ]
    assert [row[1] for row in taken(buffer, 30)] == [30, 30, 30, 20]


def test_rows_stay_until_they_are_flushed() -> None:
    buffer = SortBuffer()
    buffer.add(ready((b"a", 1, 10), (b"b", 2, 20)))
    assert taken(buffer, 10) == taken(buffer, 10) == [(0, 10, 1, b"a")]
    buffer.flushed(10)
    assert taken(buffer, 20) == [(0, 20, 2, b"b")]
    assert taken(buffer, 19) == []
    buffer.check()


def test_the_same_version_is_merged_also_within_one_call() -> None:
    buffer = SortBuffer()
    buffer.add(ready((b"a", 1, 10), (b"a", 1, 10)))
    buffer.add(ready((b"a", 1, 10), (b"a", 2, 11)))
    assert taken(buffer, 99) == [(0, 10, 1, b"a"), (0, 11, 2, b"a")]
    assert buffer.unknown(ready((b"a", 1, 10), (b"b", 1, 10)))["key"].to_list() == [b"b"]
    buffer.check()


def test_a_flush_is_bounded_but_never_cuts_a_commit_ts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sort_buffer, "FLUSH_BYTES_MAX", 100)
    buffer = SortBuffer()
    assert buffer.reach(50) == 50
    buffer.add(ready((b"a", 1, 10), (b"b", 2, 20), value=b"x" * 40))
    assert buffer.reach(50) == 50
    buffer.add(ready((b"c", 2, 20), (b"d", 3, 30), value=b"x" * 40))
    assert buffer.reach(50) == 10
    assert buffer.reach(15) == 15
    buffer.flushed(10)
    buffer.add(ready((b"e", 2, 20), value=b"x" * 40))
    assert buffer.reach(50) == 20


def test_the_bytes_that_are_due_are_those_of_the_living_rows_up_to_there() -> None:
    buffer = SortBuffer()
    buffer.add(ready((b"a", 1, 10), (b"b", 2, 20), value=b"x" * 9))
    buffer.add(ready((b"cc", 3, 15), (b"d", 4, 40), value=b"x" * 99))
    row, long = 1 + 9, 1 + 99
    for _ in range(2):
        due = [buffer.bytes_due(w) for w in (9, 10, 15, 39, 40)]
        assert due == [0, row, row + long + 1, 2 * row + long + 1, 2 * row + 2 * long + 1]
    buffer.flushed(15)
    assert [buffer.bytes_due(w) for w in (19, 20, 40)] == [0, row, row + long]


def test_restore_cuts_to_the_range_and_drops_what_was_written() -> None:
    buffer = SortBuffer()
    buffer.add(ready((b"a", 1, 10), (b"b", 2, 20), (b"c", 3, 30), (b"d", 4, 40)))
    half = SortBuffer()
    half.runs.runs = [state.revive() for state in buffer.snapshot()]
    half.restrict(KeyRange(b"b", b"d"), 20)
    assert taken(half, 99) == [(0, 30, 3, b"c")]
    half.check()


@pytest.mark.parametrize("w", [None, 999, 9999])
def test_many_small_additions_stay_in_few_runs(w: int | None) -> None:
    buffer = SortBuffer()
    for i in range(100):
        buffer.add(ready((b"a", i, 1000 + i)))
        buffer.compact(w)
    assert len(buffer.runs.runs) < 2 * run.FAN_IN
    assert len(taken(buffer, 9999)) == 100


def test_what_the_next_flush_takes_is_not_copied_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SMALL_ROWS", 1)
    buffer = SortBuffer()
    for i in range(3 * run.FAN_IN):
        buffer.add(ready((b"a", i, 1000 + i)))
    before = list(buffer.runs)
    buffer.compact(1000 + 3 * run.FAN_IN)
    assert all(a is b for a, b in zip(buffer.runs, before, strict=True))
    buffer.compact(999)
    assert len(buffer.runs.runs) < run.FAN_IN + 2
    assert len(taken(buffer, 9999)) == 3 * run.FAN_IN


def test_groups_of_one_commit_ts_are_in_order_whatever_their_size() -> None:
    keys = [b"%05d" % (i * 7919 % 4000) for i in range(4000)]
    sizes = [1, 31, 32, 33, 34, 200, 1000]  # the rest of the keys stand alone
    groups, first = [], 0
    for ts, size in enumerate(sizes, 1):
        groups += [(k, 5 + (i % 3 == 0), ts) for i, k in enumerate(keys[first : first + size])]
        first += size
    rows = groups + [(k, 5, 1000 + i) for i, k in enumerate(keys[first:])]
    buffer = SortBuffer()
    for at in range(0, len(rows), 300):
        buffer.add(ready(*rows[at : at + 300]))
    assert taken(buffer, 9999) == sorted((0, ts, start, key) for key, start, ts in rows)


def test_tables_and_timestamps_too_far_apart_for_one_number_are_still_in_order() -> None:
    rows = [(table_prefix(t) + b"_r%d" % i, 1, ts) for t in (9, 10, 3) for i, ts in enumerate([1, 1 << 63, 5, 5])]
    buffer = SortBuffer()
    buffer.add(ready(*rows))
    ordered = taken(buffer, (1 << 64) - 1)
    assert ordered == sorted((int.from_bytes(k[2:9], "big"), ts, start, k) for k, start, ts in rows)


def test_output_beyond_one_arrow_column_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "PIECE_BYTES", 100)
    buffer = SortBuffer()
    buffer.add(ready(*((b"%d" % i, 1, 50) for i in range(9)), value=b"x" * 40))
    table = buffer.take(50).table()
    assert table.column("key").num_chunks > 2
    assert table.column("key").to_pylist() == [b"%d" % i for i in range(9)]


def test_check_finds_rows_that_should_not_be_there() -> None:
    buffer = SortBuffer()
    buffer.add(ready((b"a", 1, 10)))
    buffer.runs.add(buffer.runs.runs[0])
    with pytest.raises(TiStreamError, match="ready twice"):
        buffer.check()
    del buffer.runs.runs[0]
    buffer.flushed_ts = 10
    with pytest.raises(TiStreamError, match="below what was flushed"):
        buffer.check()
