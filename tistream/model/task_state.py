"""What a worker says of itself, for whoever shows it: values, no behaviour.

A state is told by the worker's own thread about once a second (less often by one with very many tasks) and replaced as
a whole, so reading one needs no lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tistream.ids import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """A task as its sorter has it."""

    task_id: int
    tenant: Tenant
    durable_ts: int  #: everything at or below it is in the committed log
    watermark: int | None  #: everything at or below it is here and decided; None while the range has a hole
    heard: Mapping[int, int]  #: store -> cut_ts of the newest batch file that the core took
    open_rows: int  #: prewrites whose transaction is not decided
    ready_rows: int  #: committed, not written yet
    held_bytes: int  #: in memory
    spill_bytes: int  #: on the local disk
    inbox_bytes: int  #: that the core has not taken
    watermark_gaps: int  #: parts of the range of which no store speaks
