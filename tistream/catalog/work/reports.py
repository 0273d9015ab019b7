"""Load reports that workers send with a heartbeat, including what stalled watermarks wait for.

Reports serve balancing and operators; correctness does not depend on them: a leader with an old report moves the wrong
task and loses nothing. Rates are averages over `limits.RATE_WINDOW_S`. A report is JSON in the worker's row, at most
REPORT_BYTES_MAX, replaced by each heartbeat that carries one.

Workers of two versions run side by side during an upgrade: a reader ignores unknown fields and uses defaults for
missing ones. Every version names the task or store.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import structlog
from pydantic import Field

from tistream.catalog.database.tables import INT_MAX
from tistream.codec.wire import decode, encode
from tistream.errors import CorruptObject
from tistream.ids import Tenant

log = structlog.get_logger(__name__)

Count = Annotated[int, Field(ge=0, le=INT_MAX)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]

REPORT_BYTES_MAX = 1 << 20
STUCK_MAX = 5  #: reasons reported per task
_DECODED_MAX = 1000  # workers whose reports are kept decoded


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
    """One worker's load. A sorter names tasks, a dispatcher stores; the leading meta server reports its problems."""

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
        count, longest = max((len(getattr(report, name)), name) for name in ("tasks", "stores", "problems"))
        if len(text) <= REPORT_BYTES_MAX or not count:
            return text
        report = replace(report, **{longest: getattr(report, longest)[: count // 2]})


def decode_report(text: str) -> WorkerReport:
    """Decode a report, ignoring unknown fields of newer versions. CorruptObject when a known field is invalid."""
    try:
        report: WorkerReport = decode(WorkerReport, text or "{}")
    except ValueError as e:
        raise CorruptObject("the report of a worker cannot be read", reason=f"{type(e).__name__}: {e}") from e
    return report


_decoded: dict[str, tuple[str, WorkerReport]] = {}  # by worker: its newest report, encoded and decoded


def readable_report(worker_id: str, text: str | None) -> WorkerReport:
    """Decode a report, once per text: pages, lists and the leader read all reports, which change every few seconds.

    An unreadable report counts as zero load with a problem that says so; the worker keeps its work."""
    text = text or "{}"
    known = _decoded.get(worker_id)
    if known is not None and known[0] == text:
        return known[1]
    try:
        report = decode_report(text)
    except CorruptObject as e:
        log.warning("worker report unreadable, its load counts as zero", worker=worker_id, error=str(e))
        report = WorkerReport(problems=(_unreadable(worker_id, e),))
    if len(_decoded) >= _DECODED_MAX:
        _decoded.clear()
    _decoded[worker_id] = text, report
    return report


def _unreadable(worker_id: str, error: CorruptObject) -> dict[str, object]:
    """As tistream.runtime.service.Problem.shown gives it."""
    facts = {name: str(value) for name, value in error.facts.items()}
    return {"source": worker_id, "code": error.code, "message": error.message, "fatal": False, "facts": facts}
