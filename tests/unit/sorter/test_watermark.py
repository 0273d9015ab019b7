from __future__ import annotations

import pyarrow as pa
import pytest

from sorter.core.slots import Slots
from sorter.core.watermark import EXPLAINED_MAX, RangeWatermarkMap
from tests.kit.made_rows import batch_of
from tistream.errors import TiStreamError
from tistream.keyrange import KeyRange
from tistream.model.change import REGIONS


def rows(*given: tuple[bytes, bytes, int, int], ready: int = 1, region_id: int = 7) -> pa.RecordBatch:
    """(start, end, checkpoint_ts, resolved_ts) each."""
    names = ("start_key", "end_key", "checkpoint_ts", "resolved_ts")
    columns = {name: [row[n] for row in given] for n, name in enumerate(names)}
    return batch_of(
        REGIONS, region_id=region_id, version=1, subscription_open_ts=1, subscription_ready_ts=ready, **columns
    )


def slices(m: RangeWatermarkMap) -> list[tuple[bytes, bytes, int | None]]:
    m.check()
    return [(r.start, r.end, w) for r, w in m.slices()]


def test_of_one_promise_only_the_newest_row_waits() -> None:
    m = RangeWatermarkMap(KeyRange(), 10)
    m.apply(rows((b"", b"", 30, 50)), 2, 1, 1)
    m.apply(rows((b"", b"", 30, 60)), 2, 1, 2)
    m.apply(rows((b"", b"", 30, 55)), 2, 1, 3)
    assert [(r.seq, r.resolved_ts) for r in m.waiting()] == [(2, 60)]


def test_a_waiting_row_that_has_nothing_more_to_give_is_dropped() -> None:
    m = RangeWatermarkMap(KeyRange(), 10)
    m.apply(rows((b"", b"", 30, 35)), 2, 1, 1)
    m.apply(rows((b"", b"", 10, 40)), 1, 1, 1)
    assert m.waiting() == []
    m.check()


def test_explain_names_the_cause_of_each_watermark_gap() -> None:
    m = RangeWatermarkMap(KeyRange(), 10)
    assert [str(s) for s in m.explain()] == ["[-inf, +inf) watermark_gap: no store covers this range"]
    m.apply(rows((b"", b"g", 10, 0), ready=0), 1, 1, 3)
    assert "region 7 store 1 file 1/3: its opening scan has not finished" in str(m.explain()[0])
    m.apply(rows((b"", b"g", 10, 0)), 1, 1, 4)
    assert "it has sent no resolved ts yet" in str(m.explain()[0])
    m.apply(rows((b"", b"g", 15, 20)), 1, 1, 5)
    assert [s.reason for s in m.explain()] == [
        "waits for W to reach its checkpoint_ts 15",
        "no store covers this range",
    ]
    assert [s.range for s in m.explain()] == [KeyRange(), KeyRange(b"g")]
    m.apply(rows((b"", b"g", 10, 20)), 2, 1, 1)
    assert [(s.range, s.reason) for s in m.explain()] == [
        (KeyRange(b"g"), "no store covers this range"),
    ]
    m.apply(rows((b"g", b"", 10, 30)), 3, 1, 1)
    assert {(s.w, s.store_id, s.reason) for s in m.explain()} == {
        (20, 1, "its resolved ts is stalled at 20"),
        (20, 2, "its resolved ts is stalled at 20"),
    }
    assert "W 20" in str(m.explain()[0])
    m.forget(1, 1)
    assert {s.store_id for s in m.explain()} == {2}


def test_explain_names_a_waiting_row_of_a_store_that_has_fallen_silent() -> None:
    m = RangeWatermarkMap(KeyRange(), 10)
    m.apply(rows((b"", b"", 15, 20)), 1, 1, 1)
    m.apply(rows(), 1, 1, 2)
    (stuck,) = m.explain()
    assert (stuck.store_id, stuck.seq, stuck.w) == (1, 1, None)
    assert stuck.reason == "waits for W to reach its checkpoint_ts 15"


def test_explain_of_a_range_names_the_region_store_and_file_that_hold_it() -> None:
    m = RangeWatermarkMap(KeyRange(), 10)
    m.apply(rows((b"", b"g", 10, 30), region_id=5), 1, 2, 8)
    m.apply(rows((b"g", b"p", 10, 20), region_id=6), 2, 1, 4)
    m.apply(rows((b"p", b"", 10, 25), region_id=7), 3, 1, 9)
    assert [(s.region_id, s.store_id, s.seq) for s in m.explain()] == [(6, 2, 4)]
    (first,) = m.explain(KeyRange(b"a", b"c"))
    assert (first.region_id, first.store_id, first.incarnation, first.seq, first.w) == (5, 1, 2, 8, 30)
    assert first.range == KeyRange(b"a", b"c")
    assert [s.region_id for s in m.explain(KeyRange(b"a", b"h"))] == [6]
    assert [s.region_id for s in m.explain(KeyRange(b"q"))] == [7]
    assert RangeWatermarkMap(KeyRange(b"b", b"c"), 10).explain(KeyRange(b"x")) == []


def test_explain_is_bounded() -> None:
    m = RangeWatermarkMap(KeyRange(), 10)
    count = EXPLAINED_MAX + 50
    m.apply(rows(*((b"%05d" % i, b"%05d" % (i + 1), 10, 0) for i in range(count)), ready=0), 1, 1, 1)
    assert len(m.explain()) == EXPLAINED_MAX


def test_a_repeated_list_keeps_its_slots_and_looks_at_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    m = RangeWatermarkMap(KeyRange(), 10)
    m.apply(rows((b"", b"g", 10, 20), (b"g", b"p", 10, 20), (b"p", b"", 10, 20)), 1, 1, 1)
    assert slices(m) == [(b"", b"", 20)]
    monkeypatch.setattr(Slots, "locate", None)
    assert m.apply(rows((b"", b"g", 10, 31), (b"g", b"p", 10, 32), (b"p", b"", 10, 33)), 1, 1, 2)
    assert slices(m) == [(b"", b"g", 31), (b"g", b"p", 32), (b"p", b"", 33)]


def test_a_snapshot_is_restored_and_is_not_touched_by_what_comes_after_it() -> None:
    m = RangeWatermarkMap(KeyRange(b"b", b"y"), 10)
    m.apply(rows((b"", b"g", 10, 30), (b"", b"", 25, 50)), 1, 1, 1)
    saved = m.snapshot()
    want = slices(m)
    m.apply(rows((b"g", b"", 10, 99)), 1, 1, 2)
    again = RangeWatermarkMap(KeyRange(b"b", b"y"), 10)
    again.restore(*saved)
    assert slices(again) == want == [(b"b", b"g", 50), (b"g", b"y", None)]
    assert [r.checkpoint_ts for r in again.waiting()] == [25]


def test_a_snapshot_is_restored_into_half_of_its_range() -> None:
    m = RangeWatermarkMap(KeyRange(b"b", b"y"), 10)
    m.apply(rows((b"", b"g", 10, 30), (b"g", b"p", 10, 20), (b"p", b"", 90, 95)), 1, 1, 1)
    half = RangeWatermarkMap(KeyRange(b"c", b"k"), 10)
    half.restore(*m.snapshot())
    assert slices(half) == [(b"c", b"g", 30), (b"g", b"k", 20)]
    assert half.waiting() == []


def test_parts_that_a_snapshot_does_not_cover_stay_watermark_gaps() -> None:
    m = RangeWatermarkMap(KeyRange(b"b", b"g"), 10)
    m.apply(rows((b"", b"", 10, 30)), 1, 1, 1)
    wide = RangeWatermarkMap(KeyRange(b"a", b"z"), 10)
    wide.restore(*m.snapshot())
    assert wide.watermark_gaps() == [KeyRange(b"a", b"b"), KeyRange(b"g", b"z")]
    wide.check()


def test_check_finds_a_map_that_is_wrong() -> None:
    m = RangeWatermarkMap(KeyRange(), 10)
    m._slots.w[0] = 5
    with pytest.raises(TiStreamError, match="W below start_ts"):
        m.check()
