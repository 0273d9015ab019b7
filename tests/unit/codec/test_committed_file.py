"""The committed file: which rows go into which segment, and that order is kept or refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.kit.made_rows import log_row
from tests.kit.made_rows import log_table as table
from tistream.codec import committed_file
from tistream.codec.committed_file import build_committed_file, decode_committed_segment
from tistream.codec.segment_file import SegmentFile, SegmentInfo
from tistream.errors import CorruptObject, InvalidInput
from tistream.ids import Tenant
from tistream.objectstore.layout import CommittedKey

KEY = CommittedKey(tenant=Tenant(7, 3), sorter="sorter-1", incarnation=4, seq=12)
NAME = str(KEY)


def row(table: int, commit: int, start: int = 1, key: bytes = b"k", value: bytes | None = b"v") -> dict[str, Any]:
    return log_row(table, commit, key, start_ts=start, value=value)


def read(data: bytes, info: SegmentInfo) -> pa.Table:
    stored = data[info.offset : info.offset + info.length]
    return decode_committed_segment(NAME, info.number, stored, crc=info.crc, rows=info.rows, offset=info.offset)


def big(table_id: int, commit: int, count: int = 3) -> list[dict[str, Any]]:
    return [row(table_id, commit + i, value=b"x" * (100 << 10)) for i in range(count)]


def test_large_tables_have_own_segments_and_small_ones_share() -> None:
    rows = [row(0, 50), row(1, 9, key=b"z"), *big(2, 30), row(3, 5), row(3, 7, key=b"a"), *big(4, 1), row(5, 70)]
    data, segments = build_committed_file(KEY, [(11, table(*rows))], "w")
    assert [(s.table_lo, s.table_hi, s.rows) for s in segments[11]] == [(2, 2, 3), (4, 4, 3), (0, 5, 5)]
    own, _, shared = segments[11]
    assert (own.lo_ts, own.hi_ts, own.start_key, own.end_key) == (30, 32, b"k", b"k")
    assert (shared.lo_ts, shared.hi_ts, shared.start_key, shared.end_key) == (5, 70, b"a", b"z")
    assert {s.kind for s in segments[11]} == {"committed"}
    assert {s.task_id for s in segments[11]} == {11}
    assert read(data, own).to_pylist() == rows[2:5]
    assert [(r["table_id"], r["commit_ts"]) for r in read(data, shared).to_pylist()] == [
        (0, 50),
        (1, 9),
        (3, 5),
        (3, 7),
        (5, 70),
    ]
    file = SegmentFile.open(NAME, data)
    assert list(file.segments) == segments[11]
    assert file.head == {
        "cluster": 7,
        "file": "committed",
        "format": 1,
        "incarnation": 4,
        "seq": 12,
        "sorter": "sorter-1",
        "tenant": 3,
        "write_id": "w",
    }


def test_each_task_has_its_own_segments() -> None:
    flushes = [(1, table(row(9, 1))), (2, table()), (3, table(row(9, 1), row(9, 2)))]
    data, segments = build_committed_file(KEY, flushes, "w")
    assert {task: [(s.number, s.rows) for s in found_segments] for task, found_segments in segments.items()} == {
        1: [(0, 1)],
        2: [],
        3: [(1, 2)],
    }
    assert read(data, segments[3][0]).num_rows == 2
    assert build_committed_file(KEY, [], "w")[1] == {}


def test_the_limit_of_an_own_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    # a row has 34 bytes of fixed columns, 1 of key, 5 of value: twice 40 is not above the limit, one byte more is
    monkeypatch.setattr(committed_file, "SEGMENT_OWN_BYTES_MIN", 80)
    rows = [row(1, 1, value=b"12345"), row(1, 2, value=b"12345"), row(2, 1, value=b"12345"), row(2, 2, value=b"123456")]
    _, segments = build_committed_file(KEY, [(1, table(*rows))], "w")
    assert [(s.table_lo, s.table_hi) for s in segments[1]] == [(2, 2), (1, 1)]


def test_long_tables_and_long_shares_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committed_file, "SEGMENT_OWN_BYTES_MIN", 400)
    monkeypatch.setattr(committed_file, "SEGMENT_BYTES_TARGET", 500)
    monkeypatch.setattr(committed_file, "SEGMENT_SHARED_BYTES_TARGET", 900)
    value = b"x" * 165  # 200 bytes a row
    small = [row(t, c, value=value) for t in (1, 2, 3) for c in (1, 2)]
    large = [row(7, c, value=value) for c in range(1, 6)]
    huge = [row(8, 1, value=b"x" * 5000), row(8, 2, value=value)]
    data, segments = build_committed_file(KEY, [(1, table(*small, *large, *huge))], "w")
    assert [(s.table_lo, s.table_hi, s.lo_ts, s.hi_ts, s.rows) for s in segments[1]] == [
        (7, 7, 1, 2, 2),
        (7, 7, 3, 4, 2),
        (7, 7, 5, 5, 1),
        (8, 8, 1, 1, 1),
        (8, 8, 2, 2, 1),
        (1, 2, 1, 2, 4),  # a shared segment is cut between tables only
        (3, 3, 1, 2, 2),
    ]
    assert [r for s in segments[1] for r in read(data, s).to_pylist()] == large + huge + small


def test_chunked_input_and_sliced_input() -> None:
    whole = table(row(1, 1), row(1, 2), row(2, 1, value=None), row(2, 5))
    chunks = pa.concat_tables([whole.slice(1, 1), whole.slice(2)])
    data, segments = build_committed_file(KEY, [(1, chunks)], "w")
    assert read(data, segments[1][0]).equals(whole.slice(1).combine_chunks())


@pytest.mark.parametrize(
    "rows",
    [
        [row(2, 1), row(1, 1)],
        [row(1, 2), row(1, 1)],
        [row(1, 1, 2), row(1, 1, 1)],
        [row(1, 1, 1, b"b"), row(1, 1, 1, b"a")],
        [row(1, 1, 1, b"b"), row(1, 1, 1, b"b")],
        [row(1, 1), row(1, 2), row(1, 3), row(1, 2**64 - 1), row(1, 4)],
    ],
)
def test_rows_out_of_order_are_refused_on_both_sides(
    rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInput, match=f"row {len(rows) - 1}") as e:
        build_committed_file(KEY, [(1, table(*rows))], "w")
    assert e.value.facts["task"] == 1
    with monkeypatch.context() as blind:
        blind.setattr(committed_file, "order_fault", lambda batch: "")
        data, segments = build_committed_file(KEY, [(1, table(*rows))], "w")
    with pytest.raises(CorruptObject, match=f"row {len(rows) - 1}") as c:
        read(data, segments[1][0])
    assert c.value.facts["object"] == NAME


def test_rows_in_order() -> None:
    rows = [
        row(-1, 9),
        row(0, 2**63),
        row(1, 1, 1, b"a"),
        row(1, 1, 1, b"a\0"),
        row(1, 1, 2, b"a"),
        row(1, 2, 1),
        row(2, 1),
    ]
    data, segments = build_committed_file(KEY, [(1, table(*rows))], "w")
    assert read(data, segments[1][0]).to_pylist() == rows


def test_a_task_twice_or_other_columns_are_refused() -> None:
    with pytest.raises(InvalidInput, match="twice"):
        build_committed_file(KEY, [(1, table()), (1, table())], "w")
    with pytest.raises(InvalidInput, match="columns"):
        build_committed_file(KEY, [(1, table().select(["key"]))], "w")
    with pytest.raises(InvalidInput, match="does not fit a segment"):
        build_committed_file(KEY, [(1, table({**row(1, 1), "key": None}))], "w")
