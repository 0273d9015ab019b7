"""State of a task in its sorter, for display.

The worker's thread replaces a state as a whole about once a second (less often with very many tasks), so reading one
needs no lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tistream.ids import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """A task as its sorter sees it."""

    task_id: int
    tenant: Tenant
    durable_ts: int  #: everything at or below it is in the committed log
    watermark: int | None  #: everything at or below it is received and decided; None with a watermark gap
    cut_timestamps: Mapping[int, int]  #: store -> cut_ts of the newest batch file that the core processed
    open_rows: int  #: prewrites of undecided transactions
    ready_rows: int  #: committed, not written yet
    held_bytes: int  #: in memory
    spill_bytes: int  #: on the local disk
    inbox_bytes: int  #: not processed by the core yet
    watermark_gaps: int  #: parts of the range that no store covers
