"""The heartbeat of a worker: a thread that registers the process, and renews its lease until it retires."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.reports import WorkerReport
from tistream.catalog.rows.workers import WorkerKind
from tistream.catalog.work.workers import drain_worker, heartbeat, register_worker, retire_worker
from tistream.clock import Clock
from tistream.errors import Fenced, TiStreamError
from tistream.limits import HEARTBEAT_MS
from tistream.runtime.service import Repeating

log = structlog.get_logger(__name__)

Step = Callable[[], object] | None


class Heartbeat(Repeating):
    """Thread-safe. A refused beat ends the thread: it has `crashed`, and the worker may write nothing more."""

    def __init__(
        self, catalog: Catalog, clock: Clock, worker_id: str, kind: WorkerKind, address: str = "", step: Step = None
    ) -> None:
        """`step` of the thread, which calls `beat`; by default it does nothing else."""
        super().__init__(f"{worker_id}/heartbeat", step or self.beat, interval_s=HEARTBEAT_MS / 1000, clock=clock)
        self._catalog, self._worker_id, self._kind = catalog, worker_id, kind
        self.address = address  #: where others reach the process, when it registers
        self._registering = threading.Lock()
        self._sent_report: WorkerReport | None = None
        self.incarnation = 0  #: of this process; 0 = not registered yet

    def register(self) -> int:
        """The incarnation; the first call registers it."""
        with self._registering:
            if not self.incarnation:
                self.incarnation = register_worker(self._catalog, self._worker_id, self._kind, self.address)
            return self.incarnation

    def beat(self, report: WorkerReport | None = None) -> bool:
        """Register, or renew the lease and send a report that is not the last one. Whether it has registered."""
        if not self.incarnation:
            self.register()
            return True
        unsent = None if report is self._sent_report else report
        heartbeat(self._catalog, self._worker_id, self.incarnation, unsent)
        self._sent_report = report
        return False

    def ended(self) -> Fenced:
        """The error of a worker whose heartbeat has crashed."""
        facts = {"worker_id": self._worker_id, "incarnation": self.incarnation}
        return Fenced("this incarnation of the worker has ended", **facts)

    def drain(self) -> None:
        """Ask for the work to be moved to other workers."""
        if self.incarnation:
            drain_worker(self._catalog, self._worker_id, self.incarnation)

    def retire(self) -> None:
        """Stop, and end this incarnation."""
        self.stop()
        if self.incarnation and not self.crashed:
            try:
                retire_worker(self._catalog, self._worker_id, self.incarnation)
            except TiStreamError as e:
                log.warning("could not retire, the lease will expire", worker=self._worker_id, error=str(e))
