"""What consumers and changefeeds have in common, for people and programs: state, positions, lag, what they hold.

The lag of a reader is what is served and not yet consumed or written: the watermark minus its checkpoint.
"""

from __future__ import annotations

import json
from typing import Any

from tistream import ts as tso
from tistream.catalog.tenancy.log_readers import LogReader, ReaderState


def reader_facts(row: LogReader, served: int) -> dict[str, Any]:
    """The fields of both. `served`: the tenant's watermark."""
    return {
        "state": row.state,
        "start_ts": str(row.start_ts),
        "checkpoint_ts": str(row.checkpoint_ts),
        "checkpoint_time": tso.to_text(row.checkpoint_ts) if row.checkpoint_ts else None,
        "target_ts": str(row.target_ts),
        "filters": json.loads(row.filters),
        "created_time": tso.to_text(tso.compose(row.created_ms)),
        "seen_time": tso.to_text(tso.compose(row.last_active_ms)),
        "lag_s": lag_s(row, served, row.checkpoint_ts),
        "idle_s": row.idle_ms / 1000,
        "idle_limit_s": row.idle_limit_ms / 1000,
        "holds_log": row.holds_log,
    }


def lag_s(row: LogReader, served: int, checkpoint_ts: int) -> float:
    """From a checkpoint of the reader, or of a part of it, to the watermark. 0 when it is finished, and while it begins
    where the log will: there is nothing to measure from."""
    if row.state is ReaderState.FINISHED or not checkpoint_ts:
        return 0.0
    return max(0, tso.physical_ms(served) - tso.physical_ms(checkpoint_ts)) / 1000


def now_ms(row: LogReader) -> int:
    """The database's time when the row was read."""
    return row.last_active_ms + row.idle_ms
