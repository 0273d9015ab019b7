"""A built log with a quarantined store: what a sorter records, without sorters."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tests.kit.log_builder import LogBuilder
from tistream.catalog.rows.tenants import TaskKind
from tistream.catalog.work.quarantines import record_quarantine
from tistream.catalog.work.stores import issue_incarnation
from tistream.catalog.work.tasks import list_tasks
from tistream.model.contradiction import BatchFileId, Contradiction

FILE = BatchFileId(store_id=4, incarnation=1, seq=9)


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
    low, high = (int(contradiction(rows["commit_ts"]).as_py()) for contradiction in (pc.min, pc.max))
    contradiction = Contradiction(**FILE._asdict(), good_ts=low - 1, promised_ts=high, rows=rows.num_rows, sample=())
    issue_incarnation(log.catalog, log.tenant, FILE.store_id)
    task = next(task for task in list_tasks(log.catalog, log.tenant) if task.kind == TaskKind.DATA)
    assert record_quarantine(log.catalog, log.tenant, task.task_id, task.epoch, contradiction)
