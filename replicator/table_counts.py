"""Counts the changes and bytes that the lanes of this process have written, by table, for metrics.

Beyond the first TABLES_SHOWN_MAX tables of a process the others are counted together, with an empty name.
"""

from __future__ import annotations

import threading

import pyarrow as pa
import pyarrow.compute as pc

from destinations.protocol import Stretch
from tistream.catalog.work.lanes import LaneRow
from tistream.runtime import metrics

_lock = threading.Lock()
_known: set[tuple[str, ...]] = set()


def count_tables(lane: LaneRow, stretch: Stretch) -> None:
    """Count a stretch of a lane of tables that has been written."""
    if stretch.history is None or not stretch.rows.num_rows:
        return
    for table_id, rows, size in _sums(stretch.rows):
        table = stretch.history.table_at(table_id, stretch.upto)
        name = f"{table.db}.{table.name}" if table is not None else ""  # it was dropped meanwhile
        labels = str(lane.tenant.cluster_id), str(lane.tenant.tenant_id), lane.changefeed_id
        counted = _bounded((*labels, name))
        metrics.REPLICATION_TABLE_ROWS.labels(*counted).inc(rows)
        metrics.REPLICATION_TABLE_BYTES.labels(*counted).inc(size)


def _sums(rows: pa.Table) -> list[tuple[int, int, int]]:
    """(table id, rows, bytes of keys and values) of each table (schema change.COMMITTED)."""
    sizes = pc.add(pc.binary_length(rows["key"]), pc.fill_null(pc.binary_length(rows["value"]), 0))
    sums = (
        pa.table({"id": rows["table_id"], "size": sizes}).group_by("id").aggregate([("size", "count"), ("size", "sum")])
    )
    return list(zip(*(sums[name].to_pylist() for name in ("id", "size_count", "size_sum")), strict=True))


def _bounded(labels: tuple[str, ...]) -> tuple[str, ...]:
    with _lock:
        if labels not in _known and len(_known) >= metrics.TABLES_SHOWN_MAX:
            return (*labels[:-1], "")
        _known.add(labels)
        return labels
