"""The schema history of every tenant, kept up to date from the committed log.

A history begins with the newest saved one, or with the snapshot that the tenant pushed. From there it follows the
committed rows of the DDL job table and of the meta range up to the schema watermark, the lowest `durable_ts` of the
tenant's DDL tasks.

Relations:

- the watermark is read before the segments, so everything below it is visible;
- histories are published whole: readers keep the object they got, and a changed copy replaces it when jobs arrive;
- a failure publishes nothing: the next call starts again from the last good history, and `problems` has the cause;
- a pushed snapshot is parsed once and saved right away; from then on its tables are parsed on demand;
- with a SavePolicy, applied jobs are saved by the way. A failed save is logged and retried; the log has the jobs.

Thread-safe. One thread per tenant catches up; the others wait for it and share the result.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import structlog

from schemas import fields
from schemas.ddl import Job, parse_job
from schemas.history import History
from schemas.layout import row_layout
from schemas.meta import Definition, MetaCommit, read_meta, steps_of
from schemas.model import Table
from schemas.registry.history_store import HistoryStore
from schemas.registry.pushed import history_of
from schemas.snapshot import SchemaSnapshot
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.committed import find_segments
from tistream.catalog.rows.segments import SegmentRow
from tistream.catalog.rows.tenants import TaskKind
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.catalog.work.tasks import list_tasks
from tistream.clock import Clock, SystemClock
from tistream.codec.committed_file import decode_committed_segment
from tistream.codec.table_key import DDL_JOB_TABLE_ID, is_record
from tistream.errors import CorruptObject, DecodeError, ErrorKind, NotFound, TiStreamError
from tistream.ids import Tenant
from tistream.limits import SNAPSHOT_BYTES_MAX
from tistream.model.change import FLAG_NOT_A_CHANGE, Op
from tistream.model.problem import Problem
from tistream.objectstore.keys import at_most
from tistream.objectstore.layout import SchemaSnapKey
from tistream.objectstore.protocol import ObjectStore

log = structlog.get_logger(__name__)

_SEGMENTS_ASKED = 1024
_JOB_META = "job_meta"
_DISAGREE = "a DDL job and the meta range disagree; the job counts"


class JobSource(Protocol):
    """Where histories and steps come from."""

    def begin(self, tenant: Tenant) -> History:
        """The newest saved history, or the pushed snapshot. NotFound while the tenant has neither."""
        ...

    def watermark(self, tenant: Tenant) -> int:
        """The schema watermark: every step up to it is in the committed log."""
        ...

    def steps(self, tenant: Tenant, job_table: Table, after_ts: int, upto_ts: int) -> Sequence[MetaCommit]:
        """The steps in (after_ts, upto_ts], in apply order."""
        ...

    def save(self, tenant: Tenant, history: History, *, changed_only: bool = False) -> None:
        """Save the history for `begin`; with `changed_only` only if a job changed something since the last save."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SavePolicy:
    """When applied jobs are saved: by their number, or the time since the last save."""

    jobs: int = 64
    seconds: float = 60.0


@dataclass(slots=True, kw_only=True)
class _Held:
    history: History
    seen_ts: int = 0  #: the log was read up to here; `history` may be complete up to less
    saved_at: float  #: monotonic seconds
    jobs_unsaved: int = 0


class SchemaRegistry:
    def __init__(
        self,
        catalog: Catalog,
        store: ObjectStore,
        *,
        source: JobSource | None = None,
        saving: SavePolicy | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Without `saving` histories are saved only by `save`."""
        self._source = source or CommittedSteps(catalog, store)
        self._saving = saving
        self._clock = clock or SystemClock()
        self._held: dict[Tenant, _Held] = {}
        self._stuck: dict[Tenant, TiStreamError] = {}
        self._locks: dict[Tenant, threading.Lock] = {}
        self._locks_guard = threading.Lock()

    def history(self, tenant: Tenant) -> History:
        """The history, complete up to the current schema watermark."""
        with self._lock(tenant):
            try:
                history = self._caught_up(tenant).history
            except TiStreamError as error:
                if error.kind is ErrorKind.CORRUPT:
                    self._stuck[tenant] = error
                raise
            self._stuck.pop(tenant, None)
            return history

    def problems(self) -> list[Problem]:
        """Tenants whose last catch-up failed, and disagreements of the sources."""
        stuck = [Problem.of(f"schemas/{tenant}", error) for tenant, error in list(self._stuck.items())]
        return stuck + [
            Problem(source=f"schemas/{tenant}", code=DecodeError.code, message=_DISAGREE, facts=asdict(disagreement))
            for tenant, held in list(self._held.items())
            for disagreement in held.history.disagreements
        ]

    def _caught_up(self, tenant: Tenant) -> _Held:
        held = self._held.get(tenant)
        if held is None:
            held = _Held(history=self._source.begin(tenant), saved_at=self._clock.monotonic())
        upto_ts = self._source.watermark(tenant)
        if upto_ts > max(held.history.resolved_ts, held.seen_ts):
            self._follow(tenant, held, upto_ts)
        self._held[tenant] = held
        if self._saving is not None and held.jobs_unsaved:
            self._save_if_due(tenant, held, self._saving)
        return held

    def _follow(self, tenant: Tenant, held: _Held, upto_ts: int) -> None:
        known = held.history
        steps = self._source.steps(tenant, known.job_table, known.resolved_ts, upto_ts)
        if steps:
            known, seen = known.copy(), known.disagreements
            known.follow(steps, upto_ts)
            for disagreement in known.disagreements:
                if disagreement not in seen:
                    log.warning(_DISAGREE, tenant=str(tenant), **asdict(disagreement))
        else:
            known.advance(upto_ts)
        held.history, held.seen_ts = known, upto_ts
        held.jobs_unsaved += sum(len(step.jobs) for step in steps if step.commit_ts <= known.resolved_ts)

    def _save_if_due(self, tenant: Tenant, held: _Held, policy: SavePolicy) -> None:
        now = self._clock.monotonic()
        if held.jobs_unsaved < policy.jobs and now - held.saved_at < policy.seconds:
            return
        held.jobs_unsaved, held.saved_at = 0, now
        try:
            self._source.save(tenant, held.history, changed_only=True)
        except TiStreamError as error:
            held.jobs_unsaved = 1  # so that it is retried after the interval
            log.warning("a schema history could not be saved", tenant=str(tenant), exc_info=error)

    def snapshot(self, tenant: Tenant, ts: int) -> SchemaSnapshot:
        """The tenant's whole schema at `ts`. TsExpired and TsOutOfRange outside of the history."""
        return self.history(tenant).snapshot(ts)

    def tables(self, tenant: Tenant, db: str, ts: int) -> list[Table]:
        """The tables of a database at `ts`. NotFound with a suggestion."""
        return self.history(tenant).tables(db, ts)

    def save(self, tenant: Tenant, *, below_ts: int = 0) -> int:
        """Save the current history without what is older than `below_ts`, and drop that part from memory. Returns the
        timestamp up to which it is complete. Idempotent."""
        with self._lock(tenant):
            held = self._caught_up(tenant)
            kept = held.history.pruned(min(below_ts, held.history.resolved_ts)) if below_ts else held.history
            self._source.save(tenant, kept)
            held.history, held.jobs_unsaved, held.saved_at = kept, 0, self._clock.monotonic()
            return kept.resolved_ts

    def forget(self, tenant: Tenant) -> None:
        """Drop the history from memory; the next query loads it again."""
        with self._lock(tenant):
            self._held.pop(tenant, None)

    def _lock(self, tenant: Tenant) -> threading.Lock:
        with self._locks_guard:
            return self._locks.setdefault(tenant, threading.Lock())


class CommittedSteps:
    """Histories and steps from the catalog and the object store: all I/O of this package."""

    def __init__(self, catalog: Catalog, store: ObjectStore) -> None:
        self._catalog = catalog
        self._store = store
        self._histories = HistoryStore(catalog, store)

    def begin(self, tenant: Tenant) -> History:
        newest = self._histories.newest(tenant)
        if newest is None:
            pushed = self._pushed(tenant)
            self._histories.save(tenant, pushed)
            newest = self._histories.newest(tenant) or pushed
        return newest

    def _pushed(self, tenant: Tenant) -> History:
        row = get_tenant(self._catalog, tenant)
        row.check_tables()
        if not (start_ts := row.start_ts):
            raise NotFound("this tenant has not pushed its schema snapshot yet", tenant=tenant)
        key = str(SchemaSnapKey(tenant=tenant, ts=start_ts))
        try:
            history = history_of(self._store.get(key, at_most(key, SNAPSHOT_BYTES_MAX)))
        except CorruptObject as error:
            raise CorruptObject(error.message, **{**error.facts, "object_key": key}) from error
        if history.start_ts != start_ts:
            raise CorruptObject("the pushed schema snapshot has the wrong ts", object_key=key, ts=history.start_ts)
        return history

    def watermark(self, tenant: Tenant) -> int:
        durable_timestamps = [
            task.durable_ts for task in list_tasks(self._catalog, tenant) if task.kind == TaskKind.DDL
        ]
        return min(durable_timestamps, default=0)

    def steps(self, tenant: Tenant, job_table: Table, after_ts: int, upto_ts: int) -> list[MetaCommit]:
        jobs: list[Job] = []
        definitions: list[Definition] = []
        for segment in self._segments(tenant, after_ts, upto_ts):
            rows = self._rows(segment)
            jobs.extend(read_jobs(rows, job_table, after_ts, upto_ts))
            for step in read_meta(rows, after_ts, upto_ts):
                if isinstance(step, Job):
                    jobs.append(step)
                else:
                    definitions.append(step)
        return steps_of(jobs, definitions)

    def _segments(self, tenant: Tenant, after_ts: int, upto_ts: int) -> list[SegmentRow]:
        limit = _SEGMENTS_ASKED
        while True:
            segments = find_segments(
                self._catalog, tenant, after_ts=after_ts, upto_ts=upto_ts, kind=TaskKind.DDL, limit=limit
            )
            if len(segments) < limit:
                return segments
            limit *= 4  # a page does not tell where the next begins, so read all

    def _rows(self, segment: SegmentRow) -> pa.Table:
        data = self._store.get_range(segment.object_key, segment.offset, segment.length)
        return decode_committed_segment(
            segment.object_key, segment.number, data, crc=segment.crc, rows=segment.rows, offset=segment.offset
        )

    def save(self, tenant: Tenant, history: History, *, changed_only: bool = False) -> None:
        self._histories.save(tenant, history, changed_only=changed_only)


def read_jobs(rows: pa.Table, job_table: Table, after_ts: int, upto_ts: int) -> Iterator[Job]:
    """The jobs among committed rows (schema change.COMMITTED) with commit_ts in (after_ts, upto_ts]. Rows of other
    tables, index entries and deletes are skipped. DecodeError for an unreadable row."""
    commit_ts = rows["commit_ts"].to_numpy()
    wanted = (
        (rows["table_id"].to_numpy() == DDL_JOB_TABLE_ID)
        & (rows["op"].to_numpy() == Op.PUT)
        & (rows["flags"].to_numpy() & FLAG_NOT_A_CHANGE == 0)
        & (commit_ts > np.uint64(after_ts))
        & (commit_ts <= np.uint64(upto_ts))
        & is_record(rows["key"])
    )
    picked = rows.filter(pa.array(wanted)).combine_chunks()
    if not picked.num_rows:
        return
    columns = zip(
        _job_metas(job_table, picked), picked["start_ts"].to_pylist(), picked["commit_ts"].to_pylist(), strict=True
    )
    for meta, start_ts, job_commit_ts in columns:
        try:
            data = fields.parsed(meta)
        except (ValueError, TypeError) as error:
            raise DecodeError("a DDL job is not JSON", commit_ts=job_commit_ts, reason=str(error)) from error
        yield parse_job(data, start_ts=start_ts, commit_ts=job_commit_ts)


def _job_metas(job_table: Table, rows: pa.Table) -> list[bytes]:
    from tistream.codec.row.decode import decode  # importing numba takes half a second: not every process reads rows

    layout = row_layout(job_table)
    meta = tuple(column for column in layout.columns if column.name == _JOB_META)
    if not meta:
        raise CorruptObject("the DDL job table has no column job_meta", table=layout.name)
    keys, values = rows["key"].combine_chunks(), rows["value"].combine_chunks()
    decoded = decode(replace(layout, columns=meta), keys, values)
    for error in decoded.errors:
        raise DecodeError(
            "a row of the DDL job table cannot be decoded",
            key=keys[error.index].as_py(),
            commit_ts=rows["commit_ts"][error.index].as_py(),
            offset=error.offset,
            cause=error.cause,
        )
    metas: list[bytes] = decoded.batch.column(_JOB_META).to_pylist()
    return metas
