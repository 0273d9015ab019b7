"""Load reports that workers send with a heartbeat, including what stalled watermarks wait for.

Reports serve balancing and operators; correctness does not depend on them: a leader with an old report moves the wrong
task and loses nothing. Rates are averages over RATE_WINDOW_S. A report is JSON in the worker's row, at most
REPORT_BYTES_MAX, replaced by each heartbeat that carries one.

Workers of two versions run side by side during an upgrade: a reader ignores unknown fields and uses defaults for
missing ones. Every version names the task or store.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from tistream.catalog.database.tables import INT_MAX
from tistream.codec.wire import decode, encode
from tistream.errors import CorruptObject
from tistream.ids import Tenant

Count = Annotated[int, Field(ge=0, le=INT_MAX)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]

RATE_WINDOW_S = 10.0
REPORT_BYTES_MAX = 1 << 20
STUCK_MAX = 5  #: reasons reported per task


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckReport:
    """Why part of a task's range is stalled."""

    start_key: bytes
    end_key: bytes  #: empty = plus infinity
    watermark: Count | None = None  #: None: a watermark gap, no store has reported it yet
    region_id: Count = 0
    version: Count = 0
    store_id: Count = 0
    file: str = ""  #: "incarnation/seq" of the newest file of that store; empty when none covers the range
    start_ts: Count = 0  #: of the transaction whose lock on `start_key` is undecided; 0 = no lock
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """A task as its sorter sees it."""

    task_id: Count
    epoch: Count
    rows_per_s: Rate = 0.0
    bytes_per_s: Rate = 0.0
    open_rows: Count = 0
    held_bytes: Count = 0
    watermark: Count | None = None
    split_key: bytes | None = None  #: a key inside the range with about half of the traffic on either side
    standing_s: Rate = 0.0  #: how long the watermark has been stalled
    stuck: tuple[StuckReport, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """A store's folder as its dispatcher sees it."""

    tenant: Tenant
    store_id: Count
    incarnation: Count = 0
    seq: Count = 0  #: the newest file read
    bytes_per_s: Rate = 0.0
    files_per_s: Rate = 0.0
    silent_s: Rate = 0.0  #: since the newest file was read


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """One worker's load. A sorter names tasks, a dispatcher stores."""

    bytes_per_s: Rate = 0.0
    held_bytes: Count = 0
    tasks: tuple[TaskReport, ...] = ()
    stores: tuple[StoreReport, ...] = ()
    problems: tuple[dict[str, Any], ...] = ()  #: as tistream.runtime.service.Problem.shown gives them


def encode_report(report: WorkerReport) -> str:
    """Encode as JSON, shortening the longest list until it fits REPORT_BYTES_MAX."""
    report = replace(report, tasks=tuple(replace(task, stuck=task.stuck[:STUCK_MAX]) for task in report.tasks))
    while True:
        text = encode(report)
        tasks, stores = len(report.tasks), len(report.stores)
        if len(text) <= REPORT_BYTES_MAX or not (tasks or stores):
            return text
        if tasks >= stores:
            report = replace(report, tasks=report.tasks[: tasks // 2])
        else:
            report = replace(report, stores=report.stores[: stores // 2])


def decode_report(text: str) -> WorkerReport:
    """Decode a report, ignoring unknown fields of newer versions. CorruptObject when a known field is invalid."""
    try:
        report: WorkerReport = decode(WorkerReport, text or "{}")
    except ValueError as e:
        raise CorruptObject("the report of a worker cannot be read", reason=f"{type(e).__name__}: {e}") from e
    return report
