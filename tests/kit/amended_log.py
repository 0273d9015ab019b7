"""A built log whose operator accepts rows of a quarantined store: what sorters write, without sorters."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tests.kit.log_builder import LogBuilder
from tistream.catalog.log.amendments import Amendment, list_amendments
from tistream.catalog.log.segments import segment_in
from tistream.catalog.log.snapshots import NewSnapshot
from tistream.catalog.tenancy.tenants import TaskKind
from tistream.catalog.work.acceptance import TaskAmendment, accept_store, amend, finish_accepted
from tistream.catalog.work.quarantines import record_quarantine
from tistream.catalog.work.stores import issue_incarnation
from tistream.catalog.work.tasks import TaskRow, list_tasks
from tistream.codec.committed_file import build_committed_file
from tistream.ids import Position
from tistream.model.contradiction import BatchFile, Contradiction
from tistream.objectstore.layout import CommittedKey, SnapshotKey

FILE = BatchFile(store_id=4, incarnation=1, seq=9)


def split_off(rows: pa.Table, low: int, high: int) -> tuple[pa.Table, pa.Table]:
    """(the rows without, those of every third commit_ts in (low, high] of tables that users have made)."""
    ids, commit_ts = rows["table_id"].to_numpy(), rows["commit_ts"].to_numpy()
    late = pc.and_(
        pc.and_(pc.greater(rows["commit_ts"], low), pc.less_equal(rows["commit_ts"], high)),
        pa.array((commit_ts % 3 == 0) & (ids > 100) & (ids < 1 << 40)),
    )
    return rows.filter(pc.invert(late)), rows.filter(late)


def quarantine_for(log: LogBuilder, rows: pa.Table) -> None:
    """A store has brought these rows (change.COMMITTED) below its promise."""
    found = Contradiction(**FILE._asdict(), good_ts=_lowest(rows) - 1, rows=rows.num_rows, sample=())
    issue_incarnation(log.catalog, log.tenant, FILE.store_id)
    task = next(task for task in list_tasks(log.catalog, log.tenant) if task.kind == TaskKind.DATA)
    assert record_quarantine(log.catalog, log.tenant, task.task_id, task.epoch, found)


def accept_rows(log: LogBuilder, rows: pa.Table) -> Amendment:
    """They are accepted: every task takes the file, and the log is served on."""
    accept_store(log.catalog, log.tenant, FILE.store_id, actor="ops")
    for task in list_tasks(log.catalog, log.tenant):
        assert amend(log.catalog, log.tenant, task.task_id, task.epoch, _written(log, task, rows), _state(log, task))
    assert finish_accepted(log.catalog, log.tenant) == 1
    return list_amendments(log.catalog, log.tenant)[-1]


def _written(log: LogBuilder, task: TaskRow, rows: pa.Table) -> TaskAmendment:
    """The rows of the task's range in an object of the log."""
    keep = pc.greater_equal(rows["key"], task.range.start)
    if task.range.end:
        keep = pc.and_(keep, pc.less(rows["key"], task.range.end))
    mine = rows.filter(keep)
    if not mine.num_rows:
        return TaskAmendment(file=FILE, seen_durable_ts=task.durable_ts, objects={}, segments=())
    order = [(name, "ascending") for name in ("table_id", "commit_ts", "start_ts", "key")]
    mine = mine.take(pc.sort_indices(mine, sort_keys=order)).combine_chunks()
    at = CommittedKey(tenant=log.tenant, sorter=f"task-{task.task_id}-amended", incarnation=1, seq=1)
    data, found = build_committed_file(at, [(task.task_id, mine)], "amended")
    log.store.put(str(at), data)
    segments = [segment_in(str(at), info) for info in found[task.task_id]]
    return TaskAmendment(file=FILE, seen_durable_ts=task.durable_ts, objects={str(at): len(data)}, segments=segments)


def _state(log: LogBuilder, task: TaskRow) -> NewSnapshot:
    """A state behind the file."""
    n = task.snapshot_n + 1
    key = str(SnapshotKey(tenant=log.tenant, task_id=task.task_id, epoch=task.epoch, n=n))
    positions = {FILE.store_id: {FILE.incarnation: Position(seq=FILE.seq)}}
    return NewSnapshot(key=key, n=n, objects={key: 1}, positions=positions)


def _lowest(rows: pa.Table) -> int:
    return int(pc.min(rows["commit_ts"]).as_py())
