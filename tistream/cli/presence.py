"""A process in the list of workers: API servers, meta servers, and commands that open the catalog.

They own nothing, so their row only says that they live and which release they run: it goes away with the process, and
that of a killed process after a while. Sorters, dispatchers and others that own something register by themselves.
"""

from __future__ import annotations

import _thread
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.workers import WorkerKind
from tistream.catalog.work.heartbeat import Heartbeat
from tistream.catalog.work.workers import forget_presences, leave
from tistream.cli.startup import process_name
from tistream.clock import Clock, Due
from tistream.errors import Fenced, TiStreamError
from tistream.model.problem import Problem

log = structlog.get_logger(__name__)

_FORGET_S = 300.0


@contextmanager
def present_command(catalog: Catalog, clock: Clock) -> Iterator[None]:
    """Within the block this command is in the list of workers, and is interrupted when its heartbeat is refused: the
    block then raises why."""
    presence = Presence(catalog, clock, process_name("command"), WorkerKind.COMMAND, interrupts=True)
    try:
        presence.start()
        yield
    except KeyboardInterrupt:
        if presence.refused is not None:
            raise presence.refused from None
        raise
    finally:
        presence.stop()


class Presence:
    """A Service. A refused heartbeat ends the process, as that of a worker."""

    def __init__(
        self, catalog: Catalog, clock: Clock, name: str, kind: WorkerKind, *, interrupts: bool = False
    ) -> None:
        """`interrupts`: a refused heartbeat interrupts the main thread, as Ctrl-C does."""
        self.name, self._interrupts = name, interrupts
        self.refused: Fenced | None = None
        self._catalog, self._clock = catalog, clock
        self._forget_due = Due(_FORGET_S)
        self._heartbeat = Heartbeat(catalog, clock, name, kind, step=self._beat)

    def start(self) -> None:
        """Register, and raise when that is refused: before the process does anything else."""
        self._heartbeat.register()
        self._heartbeat.start()

    def wait_until_ready(self, timeout_s: float) -> bool:
        return self._heartbeat.wait_until_ready(timeout_s)

    def stop(self) -> None:
        self._heartbeat.stop()
        if self._heartbeat.incarnation and not self._heartbeat.crashed:
            try:
                leave(self._catalog, self.name, self._heartbeat.incarnation)
            except TiStreamError as e:
                log.warning("could not leave, the row will be forgotten", worker=self.name, error=str(e))

    def problems(self) -> list[Problem]:
        return self._heartbeat.problems()

    def _beat(self) -> None:
        try:
            self._heartbeat.beat()
        except Fenced as e:
            self.refused = e
            if self._interrupts:
                _thread.interrupt_main()
            raise
        now_s = self._clock.monotonic()
        if self._forget_due.is_due(now_s):
            forget_presences(self._catalog)
            self._forget_due.restart(now_s)
