"""The registry over a real catalog and real committed files, fed with the recording's job table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from schemas.ddl import Job
from schemas.history import History
from schemas.registry import schema_registry as registry_module
from schemas.registry.schema_registry import SavePolicy, SchemaRegistry, read_jobs
from schemas.snapshot import PushedSchema
from tests.kit.catalog_cases import new_catalog
from tests.kit.log_builder import LogBuilder
from tests.kit.made_rows import log_row, log_table
from tests.kit.manual_clock import ManualClock
from tests.kit.open_folder import OpenFolder
from tests.kit.recording import committed_rows
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.catalog.work.tasks import list_tasks
from tistream.codec.table_key import DDL_JOB_TABLE_ID, META_RANGE, record_key
from tistream.errors import DecodeError, NotFound, StoreUnavailable
from tistream.ids import Tenant
from tistream.model.change import Op
from tistream.objectstore.layout import SchemaSnapKey

TENANT = Tenant(7, 1)


class Log(LogBuilder):
    """A tenant's log of the meta range and the job table."""

    store: OpenFolder

    def grow(self, cuts: list[int]) -> Iterator[int]:
        """Flush up to each of the timestamps."""
        for upto_ts in cuts:
            self.flush(upto_ts)
            yield upto_ts

    def saved(self) -> list[int]:
        """The timestamps of the saved histories."""
        return [int(key[-29:-9]) for key in self.store.objects if key.startswith("schemas/")]

    def registry(self) -> SchemaRegistry:
        return SchemaRegistry(self.catalog, self.store)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    rows = committed_rows()
    new_log = Log(
        new_catalog(tmp_path), OpenFolder(), TENANT, rows=rows.filter(pc.equal(rows["table_id"], DDL_JOB_TABLE_ID))
    )
    new_log.activate()
    yield new_log
    new_log.catalog.close()


def job_row(start_ts: int, commit_ts: int, value: bytes | None) -> pa.Table:
    """A row of the DDL job table; the handle does not matter here."""
    op = Op.DELETE if value is None else Op.PUT
    key = record_key(DDL_JOB_TABLE_ID, commit_ts)
    return log_table(log_row(DDL_JOB_TABLE_ID, commit_ts, key, op=op, start_ts=start_ts, value=value))


def test_a_tenant_without_a_snapshot_has_no_history(log: Log) -> None:
    awaiting = Tenant(7, 2)
    register_tenant(log.catalog, awaiting)
    with pytest.raises(NotFound, match="snapshot"):
        log.registry().history(awaiting)


def test_the_history_follows_the_committed_log(
    log: Log, job_puts: list[tuple[int, int, bytes]], history: History
) -> None:
    registry = log.registry()
    first = registry.history(TENANT)
    assert (first.resolved_ts, first.events(log.start_ts, log.start_ts)) == (log.start_ts, [])
    end = history.resolved_ts
    waits = [(e.commit_ts, e.finished_ts) for e in history.events(log.start_ts, end)]
    settled = [row[1] for row in job_puts if not any(start <= row[1] < done for start, done in waits)]
    cuts = [*(settled[i] for i in (100, 101, 400, 650)), end]
    for upto_ts in log.grow(cuts):
        read = registry.history(TENANT)
        assert read.resolved_ts == upto_ts
        assert read.events(log.start_ts, upto_ts) == history.events(log.start_ts, upto_ts)
        assert read.snapshot(upto_ts) == history.snapshot(upto_ts)
    assert first.events(log.start_ts, first.resolved_ts) == []  # what was handed out stays as it was
    reads = [count for key, count in log.store.gets.items() if key.startswith("committed/")]
    assert reads == [2] * len(cuts)  # each segment once
    assert registry.tables(TENANT, "Shop", end) == history.tables("shop", end)


def test_the_end_of_a_ddl_that_has_taken_effect_is_waited_for(log: Log, history: History) -> None:
    """The history waits, so that every answer shows the final definition."""
    registry = log.registry()
    events = history.events(history.start_ts, history.resolved_ts)
    event = next(e for e in events if e.kind == "alter table partition by")
    cuts = [event.commit_ts - 1, event.commit_ts, event.finished_ts - 1, event.finished_ts]
    seen = [registry.history(TENANT).resolved_ts for _ in log.grow(cuts)]
    assert seen == [event.commit_ts - 1] * 3 + [event.finished_ts]
    assert registry.history(TENANT).events(event.commit_ts - 1, event.finished_ts) == [event]


def test_the_slower_ddl_task_holds_the_watermark(log: Log, job_puts: list[tuple[int, int, bytes]]) -> None:
    middle, end = job_puts[300][1], job_puts[-1][1]
    for task in list_tasks(log.catalog, TENANT):
        log.flush(middle if task.range == META_RANGE else end, task_ids={task.task_id})
    read = log.registry().history(TENANT)
    assert read.resolved_ts == middle
    assert max(event.commit_ts for event in read.events(log.start_ts, middle)) <= middle


def test_a_saved_history_replaces_the_pushed_snapshot(
    log: Log, job_puts: list[tuple[int, int, bytes]], history: History
) -> None:
    middle, end = job_puts[500][1], history.resolved_ts
    log.flush(middle)
    first = log.registry()
    assert first.save(TENANT) == first.save(TENANT) == middle
    log.store.objects = {key: data for key, data in log.store.objects.items() if key.startswith("schemas/")}
    log.flush(end)
    read = log.registry().history(TENANT)
    assert read.events(log.start_ts, end) == history.events(log.start_ts, end)
    assert read.snapshot(end) == history.snapshot(end)


def test_a_pushed_snapshot_is_parsed_once(log: Log) -> None:
    for _ in range(2):
        read = log.registry().history(TENANT)
        assert [t.name for t in read.tables("shop", log.start_ts)]
    assert log.store.gets[str(SchemaSnapKey(tenant=TENANT, ts=log.start_ts))] == 1


def test_jobs_are_saved_in_passing_when_there_are_many_or_the_last_save_is_old(
    log: Log, job_puts: list[tuple[int, int, bytes]], history: History
) -> None:
    clock = ManualClock()
    policy = SavePolicy(jobs=100, seconds=60)
    registry = SchemaRegistry(log.catalog, log.store, saving=policy, clock=clock)
    cuts = [log.start_ts, *(job_puts[i][1] for i in (30, 150, 180)), history.resolved_ts]
    grows = log.grow(cuts[1:])
    registry.history(TENANT)
    assert log.saved() == cuts[:1]
    next(grows)
    registry.history(TENANT)
    assert log.saved() == cuts[:1]  # few and recent
    next(grows)
    registry.history(TENANT)
    assert log.saved() == [cuts[0], cuts[2]]  # many
    next(grows)
    registry.history(TENANT)
    assert log.saved() == [cuts[0], cuts[2]]
    clock.advance(60)
    registry.history(TENANT)
    assert log.saved() == [cuts[0], *cuts[2:4]]  # old
    clock.advance(600)
    registry.history(TENANT)
    assert log.saved() == [cuts[0], *cuts[2:4]]  # no news
    next(grows)
    whole = log.registry().history(TENANT)
    assert whole.dump() == history.dump()


def test_a_save_that_fails_does_not_fail_the_question(
    log: Log, job_puts: list[tuple[int, int, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    registry = SchemaRegistry(log.catalog, log.store, saving=SavePolicy(jobs=1, seconds=60), clock=clock)
    registry.history(TENANT)
    log.flush(job_puts[50][1])

    def refused(*_: object) -> None:
        raise StoreUnavailable("no", determinate=True)

    with monkeypatch.context() as patch:
        patch.setattr(log.store, "put", refused)
        assert registry.history(TENANT).resolved_ts == job_puts[50][1]
    clock.advance(60)
    registry.history(TENANT)
    assert len(log.saved()) == 2


def test_a_row_that_cannot_be_read_stops_the_history_where_it_was(
    log: Log, job_puts: list[tuple[int, int, bytes]]
) -> None:
    registry = log.registry()
    good = job_puts[50][1]
    log.flush(good)
    assert registry.history(TENANT).resolved_ts == good
    log.rows = job_row(good + 1, good + 2, b"\xff\xff")
    log.flush(good + 3)
    for _ in range(2):
        with pytest.raises(DecodeError) as caught:
            registry.history(TENANT)
        assert caught.value.facts["commit_ts"] == good + 2


def test_a_restart_in_the_middle_of_a_job_keeps_what_it_has_written(
    log: Log, jobs: list[Job], history: History
) -> None:
    """The definitions of a RENAME and of a multi-schema change are written before their last row."""
    middles = []
    for kind in (14, 47, 61):
        done = next(job for job in jobs if job.type == kind and job.state == 4)
        middles.append(max(job.commit_ts for job in jobs if job.id == done.id and job.commit_ts < done.commit_ts))
    cuts = [*sorted(middles), history.resolved_ts]
    for upto_ts in log.grow(cuts):
        assert log.registry().save(TENANT) == upto_ts
    assert log.saved() == [log.start_ts, *cuts]
    assert log.registry().history(TENANT).dump() == history.dump()


def test_a_disagreement_is_a_problem_that_is_shown(
    log: Log, job_puts: list[tuple[int, int, bytes]], jobs: list[Job], history: History
) -> None:
    """The meta range lacks a definition: the job counts, and the registry says so."""
    done = next(job for job in jobs if job.type == 5 and job.state == 4)
    good = done.commit_ts - 1
    log.meta = log.meta.filter(pc.not_equal(log.meta["commit_ts"], pa.scalar(done.commit_ts, pa.uint64())))
    registry = log.registry()
    log.flush(good)
    assert registry.history(TENANT).resolved_ts == good
    assert registry.problems() == []
    log.flush(job_puts[-1][1])
    assert registry.history(TENANT).changes_since(0) == history.changes_since(0)
    (problem,) = registry.problems()
    assert (problem.source, problem.code) == (f"schemas/{TENANT}", "TS-1021")
    assert {"table_id": done.table_id, "job_id": done.id, "commit_ts": done.commit_ts}.items() <= problem.facts.items()
    assert problem.facts["table"] == "evolve"


def test_many_threads_share_one_catching_up(log: Log, job_puts: list[tuple[int, int, bytes]]) -> None:
    log.flush(job_puts[-1][1])
    registry = log.registry()
    with ThreadPoolExecutor(4) as pool:
        histories = list(pool.map(registry.history, [TENANT] * 4))
    assert len({id(history) for history in histories}) == 1
    once = [count for key, count in log.store.gets.items() if not key.startswith("schemas/")]
    assert sorted(once) == [1, 2]  # the snapshot and the file's two segments


def test_more_segments_than_one_page(
    log: Log, job_puts: list[tuple[int, int, bytes]], history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "_SEGMENTS_ASKED", 1)
    stamps = [job_puts[i][1] for i in (99, 199, 299, 399)]
    assert list(log.grow(stamps)) == stamps
    read = log.registry().history(TENANT)
    assert read.events(log.start_ts, stamps[-1]) == history.events(log.start_ts, stamps[-1])


def row_v2(column_id: int, value: bytes) -> bytes:
    """A row of one column in format v2, the large form."""
    head = bytes([128, 1, 1, 0, 0, 0])
    return head + column_id.to_bytes(4, "little") + len(value).to_bytes(4, "little") + value


def test_job_rows_of_both_formats_are_read(pushed: PushedSchema, jobs: list[Job]) -> None:
    meta_id = next(c.id for c in pushed.job_table.columns if c.name == "job_meta")
    meta = json.dumps({"id": 5, "type": 1, "state": 4, "binlog": {"SchemaVersion": 9}}).encode()
    table = job_row(10, 20, row_v2(meta_id, meta))
    (job,) = read_jobs(table, pushed.job_table, 0, 100)
    assert (job.id, job.type, job.state, job.schema_version, job.start_ts, job.commit_ts) == (5, 1, 4, 9, 10, 20)
    assert list(read_jobs(table, pushed.job_table, 20, 100)) == []
    assert list(read_jobs(table, pushed.job_table, 0, 19)) == []
    assert list(read_jobs(job_row(10, 20, None), pushed.job_table, 0, 100)) == []
