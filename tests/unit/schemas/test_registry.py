"""The registry over a real catalog and real committed files, fed with the recording's job table."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard

import simulator
from schemas.ddl import Job
from schemas.history import History
from schemas.registry import schema_registry as registry_module
from schemas.registry.schema_registry import SavePolicy, SchemaRegistry, read_jobs
from schemas.snapshot import PushedSchema
from tests.kit.catalog_cases import new_catalog
from tests.kit.manual_clock import ManualClock
from tistream.catalog.log.committed import TaskAdvance, commit_flush
from tistream.catalog.log.segments import segment_in
from tistream.catalog.tenancy.tenants import NewTask, activate_tenant, register_tenant
from tistream.catalog.work.tasks import list_tasks
from tistream.codec.committed_file import build_committed_file
from tistream.codec.table_key import DDL_JOB_TABLE_ID, META_RANGE, record_key, record_range
from tistream.errors import DecodeError, NotFound, ObjectNotFound, StoreUnavailable
from tistream.ids import Tenant
from tistream.model import change
from tistream.model.change import Op
from tistream.objectstore.layout import CommittedKey, SchemaSnapKey
from tistream.objectstore.protocol import Admit, ObjectInfo

TENANT = Tenant(7, 1)
SNAPSHOT = Path(simulator.__file__).parent / "recording" / "schema_snapshot.json"


@dataclass
class DictStore:
    """An object store in a dict: write-once, and it counts what is read."""

    objects: dict[str, bytes] = field(default_factory=dict)
    reads: list[str] = field(default_factory=list)  #: keys, with the offset where a part was read
    refuses: bool = False

    def put(self, key: str, data: bytes | memoryview) -> None:
        if self.refuses:
            raise StoreUnavailable("no", determinate=True)
        assert self.objects.setdefault(key, bytes(data)) == data

    def get(self, key: str, admit: Admit | None = None) -> bytes:
        self.reads.append(key)
        return self._found(key)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        self.reads.append(f"{key} {offset}")
        return self._found(key)[offset : offset + length]

    def _found(self, key: str) -> bytes:
        if key not in self.objects:
            raise ObjectNotFound(key=key)
        return self.objects[key]

    def size(self, key: str) -> int:
        return len(self.objects[key])

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        return iter(())

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)


Written = tuple[int, int, bytes, bytes | None]  # start_ts, commit_ts, key, value


def committed(table_id: int, rows: list[Written]) -> pa.Table:
    """Rows in the committed log."""
    rows = sorted(rows, key=lambda row: (row[1], row[0], row[2]))
    n = len(rows)
    columns = {
        "table_id": [table_id] * n,
        "op": [Op.DELETE if value is None else Op.PUT for *_, value in rows],
        "key": [key for _, _, key, _ in rows],
        "start_ts": [start_ts for start_ts, *_ in rows],
        "commit_ts": [commit_ts for _, commit_ts, *_ in rows],
        "value": [value for *_, value in rows],
        "old_value": [None] * n,
        "expire_ts": [0] * n,
        "flags": [0] * n,
    }
    return pa.table(columns, schema=change.COMMITTED)


def committed_jobs(rows: list[tuple[int, int, bytes]]) -> pa.Table:
    """Rows of the DDL job table; the handle does not matter here."""
    return committed(DDL_JOB_TABLE_ID, [(s, c, record_key(DDL_JOB_TABLE_ID, n), v) for n, (s, c, v) in enumerate(rows)])


class Log:
    """A tenant's committed log with two DDL tasks: the meta range and the job table. A flush holds what `meta` has."""

    def __init__(self, directory: Path, pushed: PushedSchema, meta: list[Written]) -> None:
        self.meta = meta
        self.catalog, self.store = new_catalog(directory), DictStore()
        self.start_ts = pushed.snapshot.ts
        self.files = 0
        snap = str(SchemaSnapKey(tenant=TENANT, ts=self.start_ts))
        self.store.put(snap, zstandard.compress(SNAPSHOT.read_bytes()))
        register_tenant(self.catalog, TENANT)

    def activate(self) -> None:
        kinds = (("ddl", META_RANGE), ("ddl", record_range(DDL_JOB_TABLE_ID)), ("data", record_range(100)))
        new = [NewTask(kind=kind, range=key_range) for kind, key_range in kinds]
        assert activate_tenant(self.catalog, TENANT, self.start_ts, new)

    def flush(self, rows: list[tuple[int, int, bytes]], upto_ts: int, *, meta_upto_ts: int | None = None) -> None:
        meta, jobs, _ = list_tasks(self.catalog, TENANT)
        meta_upto = upto_ts if meta_upto_ts is None else meta_upto_ts
        of_meta = [row for row in self.meta if meta.durable_ts < row[1] <= meta_upto]
        self.files += 1
        key = CommittedKey(tenant=TENANT, sorter="sorter-1", incarnation=1, seq=self.files)
        parts = [(meta.task_id, committed(0, of_meta)), (jobs.task_id, committed_jobs(rows))]
        data, segments = build_committed_file(key, parts, f"write-{self.files}")
        written = any(segments.values())
        if written:
            self.store.put(str(key), data)
        advances = [
            TaskAdvance(
                task_id=task.task_id,
                epoch=0,
                seen_durable_ts=task.durable_ts,
                new_durable_ts=durable_ts,
                segments=tuple(segment_in(str(key), s) for s in segments[task.task_id]),
            )
            for task, durable_ts in ((meta, meta_upto), (jobs, upto_ts))
        ]
        done = commit_flush(
            self.catalog, tenant=TENANT, objects={str(key): len(data)} if written else {}, advances=advances
        )
        assert len(done) == 2


@pytest.fixture
def log(tmp_path: Path, pushed: PushedSchema, meta_writes: list[Written]) -> Iterator[Log]:
    found = Log(tmp_path, pushed, meta_writes)
    yield found
    found.catalog.close()


def test_a_tenant_without_a_snapshot_has_no_history(log: Log) -> None:
    with pytest.raises(NotFound, match="snapshot"):
        SchemaRegistry(log.catalog, log.store).history(TENANT)


def test_the_history_follows_the_committed_log(
    log: Log, job_puts: list[tuple[int, int, bytes]], history: History
) -> None:
    log.activate()
    registry = SchemaRegistry(log.catalog, log.store)
    first = registry.history(TENANT)
    assert (first.resolved_ts, first.events(log.start_ts, log.start_ts)) == (log.start_ts, [])
    end = history.resolved_ts
    waits = [(e.commit_ts, e.finished_ts) for e in history.events(log.start_ts, end)]
    settled = [row[1] for row in job_puts if not any(start <= row[1] < done for start, done in waits)]
    cuts = [log.start_ts, *(settled[i] for i in (100, 101, 400, 650)), end]
    for after_ts, upto_ts in pairwise(cuts):
        log.flush([row for row in job_puts if after_ts < row[1] <= upto_ts], upto_ts)
        found = registry.history(TENANT)
        assert found.resolved_ts == upto_ts
        assert found.events(log.start_ts, upto_ts) == history.events(log.start_ts, upto_ts)
        assert found.snapshot(upto_ts) == history.snapshot(upto_ts)
    assert first.events(log.start_ts, first.resolved_ts) == []  # what was handed out stays as it was
    committed_reads = [key for key in log.store.reads if key.startswith("committed/")]
    assert len(committed_reads) == len(set(committed_reads)) == 2 * (len(cuts) - 1)  # each segment once
    assert registry.tables(TENANT, "Shop", end) == history.tables("shop", end)


def test_the_end_of_a_ddl_that_has_taken_effect_is_waited_for(
    log: Log, job_puts: list[tuple[int, int, bytes]], history: History
) -> None:
    """So every answer shows its final definition."""
    log.activate()
    registry = SchemaRegistry(log.catalog, log.store)
    events = history.events(history.start_ts, history.resolved_ts)
    event = next(e for e in events if e.kind == "alter table partition by")
    cuts = [log.start_ts, event.commit_ts - 1, event.commit_ts, event.finished_ts - 1, event.finished_ts]
    seen = []
    for after_ts, upto_ts in pairwise(cuts):
        log.flush([row for row in job_puts if after_ts < row[1] <= upto_ts], upto_ts)
        seen.append(registry.history(TENANT).resolved_ts)
    assert seen == [event.commit_ts - 1] * 3 + [event.finished_ts]
    assert registry.history(TENANT).events(event.commit_ts - 1, event.finished_ts) == [event]


def test_the_slower_ddl_task_holds_the_watermark(log: Log, job_puts: list[tuple[int, int, bytes]]) -> None:
    log.activate()
    middle, end = job_puts[300][1], job_puts[-1][1]
    log.flush(job_puts, end, meta_upto_ts=middle)
    found = SchemaRegistry(log.catalog, log.store).history(TENANT)
    assert found.resolved_ts == middle
    assert max(event.commit_ts for event in found.events(log.start_ts, middle)) <= middle


def test_a_saved_history_replaces_the_pushed_snapshot(
    log: Log, job_puts: list[tuple[int, int, bytes]], history: History
) -> None:
    log.activate()
    middle, end = job_puts[500][1], history.resolved_ts
    log.flush([row for row in job_puts if row[1] <= middle], middle)
    first = SchemaRegistry(log.catalog, log.store)
    assert first.save(TENANT) == first.save(TENANT) == middle
    log.store.objects = {key: data for key, data in log.store.objects.items() if key.startswith("schemas/")}
    log.flush([row for row in job_puts if row[1] > middle], end)
    found = SchemaRegistry(log.catalog, log.store).history(TENANT)
    assert found.events(log.start_ts, end) == history.events(log.start_ts, end)
    assert found.snapshot(end) == history.snapshot(end)


def test_a_pushed_snapshot_is_parsed_once(log: Log) -> None:
    log.activate()
    for _ in range(2):
        found = SchemaRegistry(log.catalog, log.store).history(TENANT)
        assert [t.name for t in found.tables("shop", log.start_ts)]
    assert [key for key in log.store.reads if "schema_snap" in key] == [
        str(SchemaSnapKey(tenant=TENANT, ts=log.start_ts))
    ]


def test_jobs_are_saved_in_passing_when_there_are_many_or_the_last_save_is_old(
    log: Log, job_puts: list[tuple[int, int, bytes]], history: History
) -> None:
    log.activate()
    clock = ManualClock()
    policy = SavePolicy(jobs=100, seconds=60)
    registry = SchemaRegistry(log.catalog, log.store, saving=policy, clock=clock)

    def saved() -> list[int]:
        return [int(key[-29:-9]) for key in log.store.objects if key.startswith("schemas/")]

    cuts = [log.start_ts, *(job_puts[i][1] for i in (30, 150, 180)), history.resolved_ts]
    stretches = [[row for row in job_puts if a < row[1] <= b] for a, b in pairwise(cuts)]
    registry.history(TENANT)
    assert saved() == cuts[:1]
    log.flush(stretches[0], cuts[1])
    registry.history(TENANT)
    assert saved() == cuts[:1]  # few and recent
    log.flush(stretches[1], cuts[2])
    registry.history(TENANT)
    assert saved() == [cuts[0], cuts[2]]  # many
    log.flush(stretches[2], cuts[3])
    registry.history(TENANT)
    assert saved() == [cuts[0], cuts[2]]
    clock.advance(60)
    registry.history(TENANT)
    assert saved() == [cuts[0], *cuts[2:4]]  # old
    clock.advance(600)
    registry.history(TENANT)
    assert saved() == [cuts[0], *cuts[2:4]]  # no news
    log.flush(stretches[3], cuts[4])
    whole = SchemaRegistry(log.catalog, log.store).history(TENANT)
    assert whole.dump() == history.dump()


def test_a_save_that_fails_does_not_fail_the_question(log: Log, job_puts: list[tuple[int, int, bytes]]) -> None:
    log.activate()
    clock = ManualClock()
    registry = SchemaRegistry(log.catalog, log.store, saving=SavePolicy(jobs=1, seconds=60), clock=clock)
    registry.history(TENANT)
    log.flush(job_puts[:51], job_puts[50][1])
    log.store.refuses = True
    assert registry.history(TENANT).resolved_ts == job_puts[50][1]
    log.store.refuses = False
    clock.advance(60)
    registry.history(TENANT)
    assert sum(key.startswith("schemas/") for key in log.store.objects) == 2


def test_a_row_that_cannot_be_read_stops_the_history_where_it_was(
    log: Log, job_puts: list[tuple[int, int, bytes]]
) -> None:
    log.activate()
    registry = SchemaRegistry(log.catalog, log.store)
    good = job_puts[50][1]
    log.flush(job_puts[:51], good)
    assert registry.history(TENANT).resolved_ts == good
    log.flush([(good + 1, good + 2, b"\xff\xff")], good + 3)
    for _ in range(2):
        with pytest.raises(DecodeError) as caught:
            registry.history(TENANT)
        assert caught.value.facts["commit_ts"] == good + 2


def test_a_restart_in_the_middle_of_a_job_keeps_what_it_has_written(
    log: Log, job_puts: list[tuple[int, int, bytes]], jobs: list[Job], history: History
) -> None:
    """The definitions of a RENAME and of a multi-schema change are written before their last row."""
    log.activate()
    middles = []
    for kind in (14, 47, 61):
        done = next(job for job in jobs if job.type == kind and job.state == 4)
        middles.append(max(job.commit_ts for job in jobs if job.id == done.id and job.commit_ts < done.commit_ts))
    cuts = [log.start_ts, *sorted(middles), history.resolved_ts]
    for after_ts, upto_ts in pairwise(cuts):
        log.flush([row for row in job_puts if after_ts < row[1] <= upto_ts], upto_ts)
        registry = SchemaRegistry(log.catalog, log.store)
        assert registry.save(TENANT) == upto_ts
    assert sum(key.startswith("schemas/") for key in log.store.objects) == len(cuts)
    assert SchemaRegistry(log.catalog, log.store).history(TENANT).dump() == history.dump()


def test_a_disagreement_is_a_problem_that_is_shown(
    log: Log, job_puts: list[tuple[int, int, bytes]], jobs: list[Job], history: History
) -> None:
    """The meta range lacks a definition: the job counts, and the registry says so."""
    log.activate()
    done = next(job for job in jobs if job.type == 5 and job.state == 4)
    good = done.commit_ts - 1
    log.meta = [row for row in log.meta if row[1] != done.commit_ts]
    registry = SchemaRegistry(log.catalog, log.store)
    log.flush([row for row in job_puts if row[1] <= good], good)
    assert registry.history(TENANT).resolved_ts == good
    assert registry.problems() == []
    log.flush([row for row in job_puts if row[1] > good], job_puts[-1][1])
    assert registry.history(TENANT).changes_since(0) == history.changes_since(0)
    (problem,) = registry.problems()
    assert (problem.source, problem.code) == (f"schemas/{TENANT}", "TS-1021")
    assert {"table_id": done.table_id, "job_id": done.id, "commit_ts": done.commit_ts}.items() <= problem.facts.items()
    assert problem.facts["table"] == "evolve"


def test_many_threads_share_one_catching_up(log: Log, job_puts: list[tuple[int, int, bytes]]) -> None:
    log.activate()
    log.flush(job_puts, job_puts[-1][1])
    registry = SchemaRegistry(log.catalog, log.store)
    found: list[History] = []
    threads = [threading.Thread(target=lambda: found.append(registry.history(TENANT))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(history) for history in found}) == 1
    once = [key for key in log.store.reads if not key.startswith("schemas/")]
    assert len(once) == len(set(once)) == 3  # the snapshot and the file's two segments


def test_more_segments_than_one_page(
    log: Log, job_puts: list[tuple[int, int, bytes]], history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "_SEGMENTS_ASKED", 1)
    log.activate()
    stamps = [job_puts[i][1] for i in (99, 199, 299, 399)]
    for after_ts, upto_ts in pairwise([0, *stamps]):
        log.flush([row for row in job_puts if after_ts < row[1] <= upto_ts], upto_ts)
    found = SchemaRegistry(log.catalog, log.store).history(TENANT)
    assert found.events(log.start_ts, stamps[-1]) == history.events(log.start_ts, stamps[-1])


def row_v2(column_id: int, value: bytes) -> bytes:
    """A row of one column in format v2, the large form."""
    head = bytes([128, 1, 1, 0, 0, 0])
    return head + column_id.to_bytes(4, "little") + len(value).to_bytes(4, "little") + value


def test_job_rows_of_both_formats_are_read(pushed: PushedSchema, jobs: list[Job]) -> None:
    meta_id = next(c.id for c in pushed.job_table.columns if c.name == "job_meta")
    meta = json.dumps({"id": 5, "type": 1, "state": 4, "binlog": {"SchemaVersion": 9}}).encode()
    table = committed_jobs([(10, 20, row_v2(meta_id, meta))])
    (job,) = read_jobs(table, pushed.job_table, 0, 100)
    assert (job.id, job.type, job.state, job.schema_version, job.start_ts, job.commit_ts) == (5, 1, 4, 9, 10, 20)
    assert list(read_jobs(table, pushed.job_table, 20, 100)) == []
    assert list(read_jobs(table, pushed.job_table, 0, 19)) == []
    gone = committed(DDL_JOB_TABLE_ID, [(10, 20, record_key(DDL_JOB_TABLE_ID, 5), None)])
    assert list(read_jobs(gone, pushed.job_table, 0, 100)) == []
