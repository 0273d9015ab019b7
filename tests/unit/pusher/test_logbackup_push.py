"""Pushing a log backup: start, end and progress."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import orjson
import pytest
import zstandard

from pusher.frontier import FrontierEntry
from pusher.logbackup.push import LogPushProgress, push_log_backup
from pusher.logbackup.source import STORE_ID
from pusher.schema_push import empty_snapshot, put_schema_snapshot, snapshot_ts
from schemas.meta import table_key
from schemas.snapshot import parse_pushed
from tests.kit.log_backup_files import LogBackupFiles, Piece, put
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_control import MemoryControl
from tests.kit.oracle import batch_files
from tistream.cli.push import first_schema, log_line, log_progress
from tistream.codec.table_key import DDL_JOB_TABLE_ID, index_key, record_key
from tistream.errors import InvalidInput, ObjectConflict
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.objectstore.layout import SchemaSnapKey
from tistream.objectstore.memory import MemoryStore

TENANT = Tenant(3, 4)
S = 1_700_000_000_000 << 18


def at(ms: int) -> int:
    return S + (ms << 18)


class Bench:
    """A log backup, a bucket and a control plane."""

    def __init__(self) -> None:
        self.log, self.bucket, self.clock = LogBackupFiles(MemoryStore()), MemoryStore(), ManualClock()
        self.control = MemoryControl(TENANT, [FrontierEntry(range=KeyRange(), durable_ts=S, resubscribe_id=0)])
        self.stop = threading.Event()
        self.said: list[LogPushProgress] = []
        self.steps = 0

    def push(self, snapshot: bytes | None = None, *, until_caught_up: bool = True) -> LogPushProgress:
        return push_log_backup(
            self.log.store,
            self.control,
            lambda _: self.bucket,
            schema_snapshot=snapshot,
            until_caught_up=until_caught_up,
            progress=self.note,
            stop=self.stop,
            clock=self.clock,
        )

    def note(self, p: LogPushProgress) -> None:
        self.said.append(p)
        if p.phase == "pushing":
            self.steps += 1
            if self.steps == 50:
                self.stop.set()

    def write(self, n: int) -> None:
        row = put(record_key(7, n), at(n), at(n + 1), b"row")
        self.log.flush([Piece(cf="write", entries=[row], table_id=7)], flush_ts=at(n + 2))


def test_it_ends_when_it_is_caught_up() -> None:
    bench = Bench()
    for n in (1, 11):
        bench.write(n)
    bench.log.checkpoint(at(5))
    done = bench.push(empty_snapshot(S))
    assert (done.phase, done.promised_ts, done.rows) == ("done", at(5), 1)
    assert "holds the log at" in done.ahead
    streams = batch_files(bench.bucket)
    assert list(streams) == [(STORE_ID, 1)]
    starts = streams[STORE_ID, 1]
    last = starts[-1]
    assert last.cut_ts == at(5)
    assert last.regions.column("resolved_ts").to_pylist() == [at(5), at(5)]
    assert last.regions.column("checkpoint_ts").to_pylist() == [S, S]
    assert last.regions.column("start_key").to_pylist() == [b"m", b"t"]
    assert bench.bucket.get(str(SchemaSnapKey(tenant=TENANT, ts=S)))


def test_it_follows_until_it_is_stopped() -> None:
    bench = Bench()
    bench.write(1)
    bench.log.checkpoint(at(5))
    moved: list[int] = []

    def note(p: LogPushProgress) -> None:
        if p.promised_ts == at(5) and not moved:
            bench.write(6)
            bench.log.checkpoint(at(9))
            moved.append(p.rows)
        if p.promised_ts == at(9):
            bench.stop.set()

    bench.note = note  # type: ignore[method-assign]
    done = bench.push(until_caught_up=False)
    assert (done.phase, done.promised_ts, done.rows, moved) == ("stopped", at(9), 2, [1])


def test_a_missing_schema_snapshot_is_an_error() -> None:
    bench = Bench()
    bench.control.entries = []
    with pytest.raises(InvalidInput, match="--schema-snapshot"):
        bench.push()


def test_a_directory_restored_to_an_earlier_state_is_refused() -> None:
    bench = Bench()
    bench.log.checkpoint(at(5))
    bench.control.max_cut_ts[STORE_ID] = at(6)
    with pytest.raises(InvalidInput, match="behind what this store has already pushed"):
        bench.push()


def test_the_empty_snapshot_has_the_job_table_only() -> None:
    text = empty_snapshot(S)
    pushed = parse_pushed(orjson.loads(text))
    assert (pushed.snapshot.ts, dict(pushed.snapshot.tables), dict(pushed.snapshot.databases)) == (S, {}, {})
    assert pushed.job_table.id == DDL_JOB_TABLE_ID
    assert snapshot_ts(text) == S


def test_a_snapshot_is_put_once() -> None:
    store, key = MemoryStore(), SchemaSnapKey(tenant=TENANT, ts=S)
    store.put(str(key), zstandard.compress(orjson.dumps(orjson.loads(empty_snapshot(S)), option=orjson.OPT_INDENT_2)))
    assert put_schema_snapshot(store, key, empty_snapshot(S))
    with pytest.raises(ObjectConflict):
        put_schema_snapshot(store, key, empty_snapshot(S + 1))


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"ts": "x"}'])
def test_an_invalid_snapshot_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidInput):
        snapshot_ts(text)


def test_the_first_schema_is_a_files_or_the_empty_one(tmp_path: Path) -> None:
    assert first_schema(None, None) is None
    assert first_schema(None, S) == empty_snapshot(S)
    file = tmp_path / "schema.json"
    with pytest.raises(InvalidInput, match="cannot be read"):
        first_schema(file, None)
    file.write_bytes(b"{}")
    assert first_schema(file, None) == b"{}"
    with pytest.raises(InvalidInput, match="leave out"):
        first_schema(file, S)


def test_the_status_line_is_written_when_something_begins_or_ends() -> None:
    out = io.StringIO()
    show = log_progress(out)
    for p in (
        LogPushProgress(phase="waiting", problem="the tenant is away"),
        LogPushProgress(phase="pushing"),
        LogPushProgress(phase="pushing", promised_ts=at(5), ahead="beyond"),
        LogPushProgress(phase="pushing", promised_ts=at(5), problem="stuck", undefined="2 tables"),
        LogPushProgress(phase="pushing", promised_ts=at(6), problem="stuck", undefined="2 tables"),
    ):
        show(p)
    assert out.getvalue().splitlines() == [
        "waiting: no watermark yet; the tenant is away",
        "pushing: no watermark yet",
        f"pushing: watermark {at(5)} (2023-11-14T22:13:20.005Z); stuck",
        "note: 2 tables",
    ]
    assert log_line(LogPushProgress(phase="done", ahead="beyond")) == "done: no watermark yet; beyond"


def test_undefined_tables_are_reported() -> None:
    bench = Bench()
    info = orjson.dumps({"id": 11, "partition": {"definitions": [{"id": 12}, {"id": 13}]}})
    rows = [put(record_key(n, 1), at(3), at(4), b"row") for n in (7, 11, 12, 13, 14, (1 << 48) - 2)]
    rows += [put(index_key(15, 1, b"12345678"), at(3), at(4), b"0")]
    bench.log.flush([Piece(cf="write", entries=rows, table_id=7)], flush_ts=at(6))
    definitions = [put(table_key(1, 11), at(1), at(2), info)]
    bench.log.flush([Piece(cf="write", entries=definitions)], flush_ts=at(7))
    bench.log.checkpoint(at(5))
    assert bench.push(empty_snapshot(S)).undefined.startswith("2 tables (7, 14) have rows")
    bench.control.entries = [FrontierEntry(range=KeyRange(), durable_ts=at(3), resubscribe_id=0)]
    bench.control.max_cut_ts[STORE_ID] = at(5)
    bench.steps = 0
    assert bench.push(empty_snapshot(S)).undefined == ""
