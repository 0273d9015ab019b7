from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from sorter import snapshot as module
from sorter.core import CoreSnapshot, TaskCore
from sorter.snapshot import build_snapshot_file, read_snapshot_file
from tistream.codec.segment_file import SegmentFile, SegmentFileWriter
from tistream.errors import CorruptObject
from tistream.ids import Position, Tenant
from tistream.keyrange import KeyRange
from tistream.layout import SnapshotKey
from tistream.testing.sorter_oracle import C, D, Mark, P, Row
from tistream.testing.sorter_world import File, feed_batch

KEY = SnapshotKey(tenant=Tenant(1, 2), task_id=3, epoch=4, n=5)


def state() -> CoreSnapshot:
    core = TaskCore(3, KeyRange(), 10, 10)
    marks = (
        Mark(region_id=1, start=b"", end=b"m", checkpoint_ts=10, resolved_ts=20),
        Mark(region_id=2, start=b"", end=b"", checkpoint_ts=50, resolved_ts=60),
    )
    rows = (
        Row(kind=P, key=b"a", start_ts=15, value=b"v", old_value=b"u"),
        Row(kind=P, key=b"b", start_ts=15, op=2),
        Row(kind=C, key=b"c", start_ts=16, commit_ts=30, value=b"short"),
        Row(kind=D, key=b"d", start_ts=17, commit_ts=18, value=b"w"),
    )
    core.handle(feed_batch(File(store_id=1, incarnation=2, seq=1, cut_ts=20, rows=rows, marks=marks)))
    core.handle(feed_batch(File(store_id=9, incarnation=1, seq=0, cut_ts=0, rows=(), marks=(), closes=True)))
    return core.snapshot()


def test_a_state_comes_back_as_it_was() -> None:
    before = state()
    assert all(getattr(before, name).num_rows for name in ("open", "commits", "ready", "slices", "waiting"))
    loaded = read_snapshot_file("k", build_snapshot_file(KEY, before, "w"))
    assert (loaded.task_id, loaded.epoch) == (3, 4)
    for f in fields(CoreSnapshot):
        assert getattr(loaded.state, f.name) == getattr(before, f.name), f.name
    assert loaded.state.positions == {1: {2: Position(seq=1)}, 9: {1: Position(seq=0, closed=True)}}


def test_an_empty_state_comes_back() -> None:
    before = TaskCore(3, KeyRange(b"a", b"b"), 10, 12).snapshot()
    loaded = read_snapshot_file("k", build_snapshot_file(KEY, before, "w")).state
    assert (loaded.upper, loaded.open.num_rows, loaded.slices.num_rows) == (12, 0, 1)


def test_large_buffers_take_several_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEGMENT_BYTES", 100)
    before = state()
    data = build_snapshot_file(KEY, before, "w")
    assert len(SegmentFile.open("k", data).segments_of("open")) == 2
    assert read_snapshot_file("k", data).state.open.equals(before.open)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"file": "committed"}, "not a snapshot"),
        ({"positions": {"x": {}}}, "head"),
        ({"positions": {"1": {"1": [1]}}}, "head"),
        ({"positions": []}, "head"),
        ({"upper": None}, "head"),
    ],
)
def test_a_file_that_is_no_snapshot_is_refused(change: dict[str, Any], message: str) -> None:
    head = {"file": "snapshot", "task": 3, "epoch": 4, "start_ts": 10, "upper": 10, "positions": {}}
    with pytest.raises(CorruptObject, match=message):
        read_snapshot_file("k", SegmentFileWriter({**head, **change}).finish())
    assert read_snapshot_file("k", SegmentFileWriter(head).finish()).state.positions == {}


def test_an_unknown_kind_of_segment_is_refused() -> None:
    writer = SegmentFileWriter({"file": "snapshot"})
    writer.add("mystery", state().open)
    with pytest.raises(CorruptObject, match="unknown kind"):
        read_snapshot_file("k", writer.finish())


def test_a_damaged_file_is_refused() -> None:
    data = bytearray(build_snapshot_file(KEY, state(), "w"))
    data[40] ^= 1
    with pytest.raises(CorruptObject):
        read_snapshot_file("k", bytes(data))
