from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sorter.core.task_core import TaskCore
from sorter.state import saving
from sorter.state.saving import Save
from sorter.state.snapshot import RUNS, build_state_file, objects_named_by, read_state_file
from tests.kit.sorter_oracle import C, D, Mark, P, Row
from tests.kit.sorter_states import SnapshotFiles, tables_of
from tests.kit.sorter_world import File, feed_batch
from tistream.codec.segment_file import SegmentFile, SegmentFileWriter
from tistream.errors import CorruptObject
from tistream.ids import Position, Tenant
from tistream.keyrange import KeyRange
from tistream.objectstore.layout import SnapshotKey

KEY = SnapshotKey(tenant=Tenant(1, 2), task_id=3, epoch=4, n=5)
HEAD = {"file": "snapshot", "layout": 2, "task": 3, "epoch": 4, "start_ts": 10, "durable_ts": 10, "next_row_no": 0}


def filled() -> TaskCore:
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
    return core


def test_a_state_comes_back_as_it_was() -> None:
    core, files = filled(), SnapshotFiles(3)
    files.save(core)
    before, state = tables_of(core.snapshot()), files.load()
    assert state is not None
    assert all(table.num_rows for table in before.values())
    assert tables_of(state, files.bucket.read) == before
    assert (state.start_ts, state.durable_ts, state.next_row_no) == (10, 10, 4)
    assert state.positions == {1: {2: Position(seq=1)}, 9: {1: Position(seq=0, closed=True)}}


def test_a_restore_needs_no_rows() -> None:
    files = SnapshotFiles(3)
    files.save(filled())
    assert files.key is not None
    loaded = read_state_file(files.key, files.bucket.objects[files.key])
    assert (loaded.task_id, loaded.epoch) == (3, 1)
    restored = TaskCore(3, KeyRange(), 10, 10)
    restored.restore(loaded.state, loaded.state.positions)
    stats = restored.stats()
    assert (stats.open_prewrites, stats.waiting_commits, stats.ready_rows, stats.bytes_held < 100) == (2, 1, 1, True)


def test_an_empty_state_comes_back() -> None:
    before = TaskCore(3, KeyRange(b"a", b"b"), 10, 12).snapshot()
    loaded = read_state_file("k", build_state_file(KEY, before, {}, "w")).state
    assert (loaded.durable_ts, loaded.open, loaded.slices.num_rows) == (12, (), 1)


def test_rows_of_a_save_share_an_object_until_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    core = filled()
    assert len(SnapshotFiles().save(core)) == 2
    monkeypatch.setattr(saving, "OBJECT_BYTES", 1)
    files = SnapshotFiles()
    again = TaskCore(3, KeyRange(), 10, 10)
    again.restore(core.snapshot(), core.snapshot().positions)
    for run in (*again._prewrites.open, *again._prewrites.commits, *again._ready.runs):
        run.saved = ()
    assert len(files.save(again)) == 4, "an object for each kind of rows, and the state"
    state = files.load()
    assert state is not None
    assert tables_of(state, files.bucket.read) == tables_of(core.snapshot())


def test_the_objects_are_segment_files_and_the_state_names_them() -> None:
    keys = iter([KEY, SnapshotKey(tenant=Tenant(1, 2), task_id=3, epoch=4, n=6)])
    save = Save(filled().snapshot(), lambda: next(keys), "w")
    (runs_key, runs), (state_key, state) = save.objects()
    assert (runs_key, state_key, str(save.key)) == (str(KEY), str(save.key), state_key)
    assert save.new == {runs_key: len(runs), state_key: len(state)}
    assert SegmentFile.open(runs_key, runs).head["file"] == "snapshot-runs"
    assert objects_named_by(state_key, state) == {runs_key}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"file": "committed"}, "not a snapshot"),
        ({"layout": 1}, "unsupported snapshot layout"),
        ({"positions": {"x": {}}}, "head"),
        ({"positions": {"1": {"1": [1]}}}, "head"),
        ({"positions": []}, "head"),
        ({"durable_ts": None}, "head"),
    ],
)
def test_a_file_that_is_no_snapshot_is_refused(change: dict[str, Any], message: str) -> None:
    head = {**HEAD, "positions": {}}
    with pytest.raises(CorruptObject, match=message):
        read_state_file("k", SegmentFileWriter({**head, **change}).finish())
    assert read_state_file("k", SegmentFileWriter(head).finish()).state.positions == {}


def test_a_snapshot_of_the_first_layout_is_refused_by_name() -> None:
    old = {name: value for name, value in HEAD.items() if name != "layout"}
    with pytest.raises(CorruptObject, match="unsupported snapshot layout") as e:
        read_state_file("k", SegmentFileWriter({**old, "positions": {}}).finish())
    assert (e.value.facts["object"], e.value.facts["layout"]) == ("k", 1)


@pytest.mark.parametrize(
    "change",
    [
        {"alive": b""},
        {"alive": b"\xff\xff"},
        {"rows": 0},
        {"kind": "mystery"},
        {"facts": b"{}"},
        {"facts": b"x"},
        {"facts": b'{"parts":{"values":[0,8,1,1,1]},"spans":{},"same":{},"cut":0,"unsaid":false}'},
        {"facts": b'{"parts":{"keys":[0,8,1,1]},"spans":{},"same":{},"cut":0,"unsaid":false}'},
    ],
)
def test_a_malformed_run_is_refused(change: dict[str, Any]) -> None:
    sound = b'{"parts":{"keys":[0,8,1,1,1]},"spans":{},"same":{},"cut":0,"unsaid":false}'
    row = {"kind": "open", "object_key": "o", "object_bytes": 1, "rows": 3, "alive": None, "facts": sound}
    row |= {"first_key": b"a", "last_key": b"b"}

    def file(row: dict[str, Any]) -> bytes:
        writer = SegmentFileWriter({**HEAD, "positions": {}})
        writer.add("runs", pa.Table.from_pylist([row], schema=RUNS))
        return writer.finish()

    assert read_state_file("k", file(row)).state.open[0].live == 3
    with pytest.raises(CorruptObject, match="malformed runs"):
        read_state_file("k", file(row | change))


def test_an_unknown_kind_of_segment_is_refused() -> None:
    writer = SegmentFileWriter({**HEAD, "positions": {}})
    writer.add("mystery", filled().snapshot().slices)
    with pytest.raises(CorruptObject, match="unknown kind"):
        read_state_file("k", writer.finish())


def test_a_damaged_file_is_refused() -> None:
    data = bytearray(build_state_file(KEY, filled().snapshot(), {}, "w"))
    data[40] ^= 1
    with pytest.raises(CorruptObject):
        read_state_file("k", bytes(data))
