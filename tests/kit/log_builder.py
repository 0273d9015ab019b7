"""A tenant's committed log without the services: catalog and bucket as sorters would leave them.

    log = LogBuilder(catalog, store)        registered, schema snapshot pushed, activated at S log.flush(ts)
    one committed file: every task's rows up to ts, every durable watermark at ts log.build(40)
    the whole recording in forty flushes log.seed()                              the rows at its start, as a seed

Rows are those of the recording that ships with the package; objects and catalog rows are made by the functions that the
services use. Tasks may be flushed one by one, so that they stand at different timestamps.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from metaserver.initial_ranges import lay_out
from pusher.seed_push import push_seed
from schemas.history import History
from schemas.snapshot import parse_pushed
from simulator.capture import Capture, captured_rows
from tests.kit.made_rows import with_columns
from tests.kit.recording import RECORDING, committed_rows, meta_rows
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.service_time import service_time
from tistream.catalog.log.committed import TaskAdvance, commit_flush
from tistream.catalog.log.seeds import list_seeds
from tistream.catalog.rows.segments import SegmentRow, segment_in
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.tenancy.tenants import activate_tenant, register_tenant
from tistream.catalog.work.tasks import list_tasks
from tistream.clock import SystemClock
from tistream.codec.committed_file import build_committed_file
from tistream.codec.table_key import META_RANGE
from tistream.errors import invariant
from tistream.ids import Tenant
from tistream.log.published_seeds import publish
from tistream.model import change
from tistream.objectstore.layout import CommittedKey, SchemaSnapKey
from tistream.objectstore.protocol import ObjectStore

TENANT = Tenant(1, 1)
_IN_A_TABLE = [(name, "ascending") for name in ("table_id", "commit_ts", "start_ts", "key")]


def recording_end() -> int:
    """The timestamp up to which the recording is complete."""
    return int(json.loads((RECORDING / "meta.json").read_bytes())["last_resolved_ts"])


@dataclass
class LogBuilder:
    """See the module. `rows` and `meta` (schema change.COMMITTED) and `schema` replace the recording's."""

    catalog: Catalog
    store: ObjectStore
    tenant: Tenant = TENANT
    data_tasks: int = 3
    rows: pa.Table = field(default_factory=committed_rows)
    meta: pa.Table = field(default_factory=meta_rows)
    schema: bytes = field(default_factory=(RECORDING / "schema_snapshot.json").read_bytes)  #: what the tenant pushes
    rows_per_object: int | None = None  #: a flush with more rows lies in several objects; None = always in one

    def __post_init__(self) -> None:
        self._file_numbers = itertools.count(1)
        self.start_ts = 0

    def register(self) -> LogBuilder:
        """The tenant is known and awaits its snapshot."""
        register_tenant(self.catalog, self.tenant)
        return self

    def activate(self) -> LogBuilder:
        """The recording's schema snapshot is pushed and the tenant's tasks stand at its timestamp."""
        pushed = parse_pushed(json.loads(self.schema))
        self.start_ts = pushed.snapshot.ts
        self.store.put(str(SchemaSnapKey(tenant=self.tenant, ts=self.start_ts)), zstandard.compress(self.schema))
        register_tenant(self.catalog, self.tenant)
        tasks = lay_out(History(pushed.snapshot, pushed.job_table), self.data_tasks)
        activated = activate_tenant(self.catalog, self.tenant, self.start_ts, tasks)
        invariant(activated, "a tenant is built once", tenant=self.tenant)
        return self

    def build(self, flushes: int, upto: int | None = None) -> LogBuilder:
        """Activate, and publish everything up to `upto` (the recording's end) in about so many flushes."""
        end = recording_end() if upto is None else upto
        self.activate()
        for ts in [*self.cuts(flushes), end]:
            if ts <= end:
                self.flush(ts)
        return self

    def seed(self, rows: pa.Table | None = None, *, ts: int | None = None, table_id: int = 0) -> LogBuilder:
        """Make a seed visible: by default that of all rows at the recording's start."""
        tables = captured_rows(Capture(RECORDING)) if rows is None else iter([rows])
        push_seed(_Straight(self), self.store, self.start_ts if ts is None else ts, tables, table_id=table_id)
        return self

    def cuts(self, count: int) -> list[int]:
        """Up to `count` commit timestamps that cut the rows into about equal parts, rising."""
        commit_ts = self.rows["commit_ts"].to_numpy()
        at = np.linspace(0, len(commit_ts) - 1, count + 1).astype(np.int64)[1:]
        return [int(ts) for ts in np.unique(commit_ts[at])]

    def flush(self, upto: int, task_ids: Collection[int] | None = None) -> None:
        """Publish the rows with commit_ts at or below `upto` of all tasks that are behind it (or of those named)."""
        due = [
            task
            for task in list_tasks(self.catalog, self.tenant)
            if task.durable_ts < upto and (task_ids is None or task.task_id in task_ids)
        ]
        objects: dict[str, int] = {}
        segments: dict[int, list[SegmentRow]] = {task.task_id: [] for task in due}
        for flushes in self._objects([(task.task_id, self._rows_of(task, upto)) for task in due]):
            key = CommittedKey(tenant=self.tenant, sorter="builder", incarnation=1, seq=next(self._file_numbers))
            data, infos_of_task = build_committed_file(key, flushes, f"write-{key.seq}")
            self.store.put(str(key), data)
            objects[str(key)] = len(data)
            for task_id, infos in infos_of_task.items():
                segments[task_id] += [segment_in(str(key), info) for info in infos]
        advances = [
            TaskAdvance(
                task_id=task.task_id,
                epoch=task.epoch,
                seen_durable_ts=task.durable_ts,
                new_durable_ts=upto,
                segments=tuple(segments[task.task_id]),
            )
            for task in due
        ]
        advanced = commit_flush(self.catalog, tenant=self.tenant, objects=objects, advances=advances)
        invariant(len(advanced) == len(due), "nobody else writes to a built log")

    def _objects(self, flushes: list[tuple[int, pa.Table]]) -> Iterator[list[tuple[int, pa.Table]]]:
        """What each object of a flush holds of each task; none holds nothing."""
        written = [(task_id, rows) for task_id, rows in flushes if rows.num_rows]
        if self.rows_per_object is None:
            yield from [written] if written else []
            return
        for task_id, rows in written:
            for at in range(0, rows.num_rows, self.rows_per_object):
                yield [(task_id, rows.slice(at, self.rows_per_object))]

    def _rows_of(self, task: TaskRow, upto: int) -> pa.Table:
        rows = self.meta if task.range == META_RANGE else self.rows
        keep = pc.and_(
            pc.greater(rows["commit_ts"], pa.scalar(task.durable_ts, pa.uint64())),
            pc.less_equal(rows["commit_ts"], pa.scalar(upto, pa.uint64())),
        )
        keep = pc.and_(keep, pc.greater_equal(rows["key"], task.range.start))
        if task.range.end:
            keep = pc.and_(keep, pc.less(rows["key"], task.range.end))
        selected = rows.filter(keep)
        return selected.take(pc.sort_indices(selected, sort_keys=_IN_A_TABLE)).cast(change.COMMITTED).combine_chunks()


@dataclass(frozen=True)
class _Straight:
    """The control plane of a built log, without HTTP."""

    log: LogBuilder

    @property
    def tenant(self) -> Tenant:
        return self.log.tenant

    def has_seed(self, ts: int, table_id: int) -> bool:
        return any((s.ts, s.table_id) == (ts, table_id) for s in list_seeds(self.log.catalog, self.tenant))

    def add_seed(self, ts: int, table_id: int) -> None:
        time = service_time(self.log.catalog, SystemClock())
        publish(self.log.catalog, self.log.store, self.tenant, ts, table_id, time)


def with_broken_value(rows: pa.Table, at: int) -> pa.Table:
    """The rows, where row `at` has a value that no version of TiDB's row format has."""
    values = rows["value"].combine_chunks()
    broken = pa.array([b"\xee not a row"], pa.binary())
    values = pa.concat_arrays([values.slice(0, at), broken, values.slice(at + 1)])
    return with_columns(rows, value=values)
