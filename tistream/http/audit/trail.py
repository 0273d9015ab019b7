"""Writes the audit log of a process: entries of operations at once, what is folded once a second.

A Service. While the catalog is away no operation begins, so what waits to be written is what had begun, and counts of
refusals (`core.folding`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.audit import Deed, Doer, Ended, Outcome, Result
from tistream.catalog.tenancy.audit_log import add_entries, close_entry, open_entry, recount
from tistream.clock import Clock
from tistream.errors import ErrorKind, TiStreamError
from tistream.http.audit.core.folding import Folding
from tistream.model.problem import Problem
from tistream.runtime.service import Repeating

log = structlog.get_logger(__name__)

_FLUSH_S = 1.0


class AuditTrail:
    """The audit log as one process writes it. Thread-safe."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self.name = "audit log"
        self._catalog, self._clock = catalog, clock
        self._folding, self._lock, self._flushing = Folding(), threading.Lock(), threading.Lock()
        self._late: list[Callable[[], object]] = []  # writes that failed
        self._thread = Repeating(self.name, self.flush, interval_s=_FLUSH_S, clock=clock, lasting=True)

    def start(self) -> None:
        self._thread.start()

    def wait_until_ready(self, timeout_s: float) -> bool:
        return self._thread.wait_until_ready(timeout_s)

    def problems(self) -> list[Problem]:
        return self._thread.problems()

    def stop(self) -> None:
        """Stop, and write what is left."""
        self._thread.stop()
        try:
            self.flush(at_once=True)
        except TiStreamError as e:
            log.warning("the last entries of the audit log were not written", error=str(e))

    def takes_entry(self, doer: Doer, deed: Deed, *, routine: bool) -> bool:
        """Whether `begin` is called before the operation."""
        with self._lock:
            return self._folding.takes_entry(doer, deed, self._clock.monotonic(), routine=routine)

    def begin(self, doer: Doer, deed: Deed) -> int:
        """Record an operation that is about to begin; the number of its entry. CatalogUnavailable: it may not begin."""
        return open_entry(self._catalog, doer, deed)

    def end(self, entry_no: int, doer: Doer, deed: Deed, outcome: Outcome, *, routine: bool) -> None:
        """Record how the operation with this entry ended."""
        now_s = self._clock.monotonic()
        with self._lock:
            if routine:
                self._folding.count(doer, deed, outcome, now_s, entry_no)
            if outcome.result is Result.REFUSED:
                self._folding.note_refusal(doer, deed, now_s)
        self._write(lambda: close_entry(self._catalog, entry_no, deed, outcome))

    def count(self, doer: Doer, deed: Deed, outcome: Outcome) -> None:
        """Count an operation among its equals."""
        with self._lock:
            self._folding.count(doer, deed, outcome, self._clock.monotonic())

    def add(self, doer: Doer, deed: Deed, outcome: Outcome) -> None:
        """Record an operation that has ended, and had no entry."""
        ended = Ended(doer=doer, deed=deed, outcome=outcome)
        self._write(lambda: add_entries(self._catalog, [ended]))

    def flush(self, *, at_once: bool = False) -> None:
        """Write what is due; with `at_once` everything. CatalogUnavailable: it stays due."""
        with self._flushing:
            self._write_late()
            now_s = self._clock.monotonic()
            with self._lock:
                due = [(fold, fold.ended(now_s)) for fold in self._folding.due(now_s, at_once=at_once)]
            new = [(fold, ended) for fold, ended in due if fold.entry_no is None]
            numbers = add_entries(self._catalog, [ended for _, ended in new])
            with self._lock:
                for (fold, ended), entry_no in zip(new, numbers, strict=True):
                    fold.entry_no = entry_no
                    fold.note_written(ended.times, now_s)
            known = [(fold, fold.entry_no, ended) for fold, ended in due if fold.times and fold.written < ended.times]
            recount(self._catalog, {entry_no: ended for _, entry_no, ended in known if entry_no is not None})
            with self._lock:
                for fold, _, ended in known:
                    fold.note_written(ended.times, now_s)
                self._folding.forget(now_s)

    def _write(self, write: Callable[[], object]) -> None:
        """The operation has happened, so its caller gets its answer; what cannot be written now is written later."""
        try:
            write()
        except TiStreamError as e:
            if _is_lost(e):
                return
            log.warning("an entry of the audit log is written later", error=str(e))
            with self._lock:
                self._late.append(write)

    def _write_late(self) -> None:
        while True:
            with self._lock:
                if not self._late:
                    return
                write = self._late[0]
            try:
                write()
            except TiStreamError as e:
                if not _is_lost(e):
                    raise
            with self._lock:
                self._late.pop(0)


def _is_lost(error: TiStreamError) -> bool:
    """Whether a write will never succeed: it must not stop the others."""
    if error.kind is ErrorKind.RETRY:
        return False
    log.error("an entry of the audit log cannot be written", exc_info=error)
    return True
