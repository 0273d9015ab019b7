"""Present problems of all processes, as they report them to the catalog, for an API server in a process of its own.

Sorters and dispatchers report them with a heartbeat, the leading meta server whenever they change. A process whose
lease has run out reports nothing any more: others have what it had.
"""

from __future__ import annotations

import threading

from tistream.admin.core.watermark_gaps import Known
from tistream.catalog.database.engine import Catalog
from tistream.catalog.work.leader import leader_report
from tistream.catalog.work.workers import list_workers
from tistream.clock import Clock
from tistream.errors import TiStreamError
from tistream.model.problem import Problem

KEPT_S = 2.0  #: the reports are read again after this: pages and probes ask often, and reports are long


class ReportedProblems:
    """Thread-safe."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog, self._clock = catalog, clock
        self._lock = threading.Lock()
        self._known: list[dict[str, object]] = []
        self._due_s = 0.0

    def __call__(self) -> list[dict[str, object]]:
        """As `Problem.shown` gives them. Without a catalog that is the only problem."""
        with self._lock:
            if self._clock.monotonic() >= self._due_s:
                self._known = self._read()
                self._due_s = self._clock.monotonic() + KEPT_S
            return list(self._known)

    def _read(self) -> list[dict[str, object]]:
        try:
            workers = [row for row in list_workers(self._catalog) if Known.is_alive(row)]
            reports = [leader_report(self._catalog), *(row.report for row in workers)]
        except TiStreamError as e:
            return [Problem.of("catalog", e).shown()]
        return [problem for report in reports for problem in report.problems]
