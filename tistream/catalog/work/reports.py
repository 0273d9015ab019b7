"""Load reports that workers send with a heartbeat, including what stalled watermarks wait for.

Reports serve balancing and operators; correctness does not depend on them: a leader with an old report moves the wrong
task and loses nothing. Rates are averages over `limits.RATE_WINDOW_S`. A report is JSON in the worker's row, at most
REPORT_BYTES_MAX, replaced by each heartbeat that carries one.

Workers of two versions run side by side during an upgrade: a reader ignores unknown fields and uses defaults for
missing ones. Every version names the task or store.
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from tistream.catalog.rows.reports import STUCK_MAX, WorkerReport
from tistream.codec.wire import decode, encode
from tistream.errors import CorruptObject

log = structlog.get_logger(__name__)


REPORT_BYTES_MAX = 1 << 20
_DECODED_MAX = 1000  # workers whose reports are kept decoded


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
    """As tistream.model.problem.Problem.shown gives it."""
    facts = {name: str(value) for name, value in error.facts.items()}
    return {"source": worker_id, "code": error.code, "message": error.message, "fatal": False, "facts": facts}
