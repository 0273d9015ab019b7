"""Pushes a log backup: its directory as one store of the tenant, until caught up or stopped.

    schema snapshot (if given) -> wait for the tenant's frontier -> one pusher over LogBackupSource

Unlike a store, a directory can wait: the source pauses for the uploads, and nothing is dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from pusher.control import Control
from pusher.logbackup.core.undefined import UndefinedTables
from pusher.logbackup.source import LogBackupSource
from pusher.push_run import STORE_UNAVAILABLE, WAIT_S, PushRun
from pusher.schema_push import put_schema_snapshot, snapshot_ts
from pusher.worker import PusherWorker
from tistream.clock import Clock, SystemClock
from tistream.errors import InvalidInput
from tistream.objectstore.layout import SchemaSnapKey
from tistream.objectstore.protocol import ObjectStore

_AWAITING = "AWAITING_SNAPSHOT"
_QUEUED_BYTES_MAX = 64 << 20  # the source pauses while more is queued
_UNBOUNDED_BYTES = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPushProgress:
    phase: str  #: connecting, waiting (for the frontier), pushing, finishing (the uploads), done
    promised_ts: int = 0  #: everything at or below it was handed to the uploader
    rows: int = 0  #: written to files
    files: int = 0  #: durable
    bytes: int = 0  #: durable
    undefined: str = ""  #: tables with rows in the log and no definition
    ahead: str = ""  #: flushes beyond the global checkpoint, and the file that determines it
    problem: str = ""  #: the fault that it waits for


def push_log_backup(
    log_store: ObjectStore,
    control: Control,
    open_store: Callable[[str], ObjectStore],
    *,
    schema_snapshot: bytes | None = None,
    until_caught_up: bool = False,
    progress: Callable[[LogPushProgress], None] = lambda _: None,
    stop: threading.Event | None = None,
    clock: Clock | None = None,
) -> LogPushProgress:
    """Follow the log backup in `log_store` until `stop` is set, or with `until_caught_up` until everything at or below
    its global checkpoint is durable. Returns the last progress, in phase "done" unless stopped.

    `schema_snapshot`: the tenant's first snapshot, as JSON; the log must be complete from its timestamp on. Service and
    stores may be unavailable for any time. CorruptObject when the log is damaged; InvalidInput for unsupported logs or
    a missing snapshot."""
    push = _LogPush(log_store, control, progress, stop, clock or SystemClock())
    return push.run(open_store, schema_snapshot, until_caught_up)


class _LogPush(PushRun):
    def __init__(
        self,
        log_store: ObjectStore,
        control: Control,
        progress: Callable[[LogPushProgress], None],
        stop: threading.Event | None,
        clock: Clock,
    ) -> None:
        super().__init__(control, stop, clock)
        self._control, self._progress = control, progress
        self._source = LogBackupSource(log_store, clock)
        self._worker: PusherWorker | None = None

    def run(
        self, open_store: Callable[[str], ObjectStore], snapshot: bytes | None, until_caught_up: bool
    ) -> LogPushProgress:
        self._report("connecting")
        bundle = self._retry(self._control.push_bundle)
        if bundle is None:
            return self._report("connecting")
        store = open_store(bundle.object_store)
        if snapshot is not None:
            key, text = SchemaSnapKey(tenant=self._control.tenant, ts=snapshot_ts(snapshot)), snapshot
            self._retry(lambda: put_schema_snapshot(store, key, text))
        elif bundle.state == _AWAITING:
            raise InvalidInput(
                "the tenant awaits its schema snapshot: give --schema-snapshot, or --start-ts if the log backup was"
                " started before the cluster had user tables"
            )
        if not self._wait_for_frontier(bundle.state):
            return self._report("waiting")
        self._worker = PusherWorker(
            source=self._source,
            control=self._control,
            frontier=self._frontier,
            store=store,
            clock=self._clock,
            queue_bytes_max=_UNBOUNDED_BYTES,  # the source pauses instead
        )
        if snapshot is not None and min(e.durable_ts for e in self._frontier.read()) == snapshot_ts(snapshot):
            self._source.undefined = UndefinedTables(snapshot)
        try:
            self._worker.start(self._stop)
            self._follow(self._worker, until_caught_up)
            done = not self._stop.is_set() and self._wait_until_durable([self._worker])
        finally:
            self._worker.close()
        return self._report("done" if done else "stopped")

    def _follow(self, worker: PusherWorker, until_caught_up: bool) -> None:
        while not self._stop.is_set():
            worker.step(WAIT_S)
            self._report("pushing")
            while not worker.wait_until_queued_at_most(_QUEUED_BYTES_MAX, WAIT_S) and not self._stop.is_set():
                self._report("pushing", problem=STORE_UNAVAILABLE)
            if until_caught_up and self._source.caught_up and not worker.resubscribing:
                return

    def _report(self, phase: str, *, problem: str = "") -> LogPushProgress:
        uploads = self._worker.uploads() if self._worker else None
        report = LogPushProgress(
            phase=phase,
            promised_ts=self._source.promised_ts,
            rows=self._worker.rows if self._worker else 0,
            files=uploads.files if uploads else 0,
            bytes=uploads.bytes if uploads else 0,
            undefined=str(self._source.undefined or ""),
            ahead=str(self._source.ahead or ""),
            problem=problem or self._source.problem,
        )
        self._progress(report)
        return report
