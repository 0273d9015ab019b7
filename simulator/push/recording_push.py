"""Shared by the pushes of recordings: workers, progress and result."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from pusher.control import RecordingControl
from pusher.core.source import Source
from pusher.push_run import PushRun
from pusher.schema_push import put_schema_snapshot
from pusher.worker import PusherWorker
from tistream.clock import Clock, SystemClock
from tistream.limits import UPLOAD_QUEUE_BYTES_MAX
from tistream.objectstore.layout import SchemaSnapKey
from tistream.objectstore.protocol import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class PushProgress:
    """How far a recording has been pushed."""

    phase: str  #: connecting, waiting (for the frontier), seeding, pushing, finishing (the uploads), done
    ticks: int = 0  #: played so far
    ticks_total: int = 0
    now_ts: int = 0  #: of the newest tick
    rows: int = 0  #: written to files, all stores together
    files: int = 0  #: durable
    bytes: int = 0  #: durable
    problem: str = ""  #: the fault that is waited for, if any


@dataclass(frozen=True, slots=True, kw_only=True)
class PushResult:
    """What was pushed."""

    complete: bool  #: False when it was stopped before the end
    last_resolved_ts: int  #: cut_ts of the last files; 0 when there are none
    rows: int
    files: int
    bytes: int


class RecordingPush(PushRun):
    """One push of a recording."""

    def __init__(
        self,
        control: RecordingControl,
        progress: Callable[[PushProgress], None],
        stop: threading.Event | None,
        clock: Clock | None,
    ) -> None:
        super().__init__(control, stop, clock or SystemClock())
        self._control, self._progress = control, progress
        self._workers: list[PusherWorker] = []

    def run(self, open_store: Callable[[str], ObjectStore]) -> PushResult:
        """Push the schema, then the recording, until all is durable or `stop` is set."""
        complete = False
        self._report("connecting")
        if (bundle := self._retry(self._control.push_bundle)) is not None:
            store = open_store(bundle.object_store)
            if self._begin(store) and self._wait_for_frontier(bundle.state):
                complete = self._push(store)
        return PushResult(complete=complete, last_resolved_ts=self._played()[2], **self._pushed())

    def _begin(self, store: ObjectStore) -> bool:
        """Give the tenant what it begins with; False when stopped."""
        ts, schema = self._schema()
        key = SchemaSnapKey(tenant=self._control.tenant, ts=ts)
        return self._retry(lambda: put_schema_snapshot(store, key, schema)) is not None

    def _push(self, store: ObjectStore) -> bool:
        """Play the recording; False when stopped before the end."""
        try:
            complete = self._play(store)
            complete = self._wait_until_durable(self._workers) and complete
            complete = complete and self._end_streams(self._played()[2])
        finally:
            for worker in self._workers:
                worker.close()
        self._report("done")
        return complete

    @abstractmethod
    def _schema(self) -> tuple[int, bytes]:
        """Its timestamp, and the snapshot."""

    @abstractmethod
    def _play(self, store: ObjectStore) -> bool:
        """Start workers and push everything; False when stopped before the end."""

    @abstractmethod
    def _played(self) -> tuple[int, int, int]:
        """Ticks played, of how many, and the timestamp of the newest."""

    def _start_worker(self, source: Source, store: ObjectStore, queue_bytes_max: int = UPLOAD_QUEUE_BYTES_MAX) -> int:
        """The largest cut_ts that this store has pushed; 0 = none."""
        worker = PusherWorker(
            source=source,
            control=self._control,
            frontier=self._frontier,
            store=store,
            clock=self._clock,
            queue_bytes_max=queue_bytes_max,
        )
        self._workers.append(worker)
        return worker.start(self._stop)

    def _end_streams(self, end_ts: int) -> bool:
        """Say that no store has a change above `end_ts`; False when stopped first."""

        def end() -> bool:
            for worker in self._workers:
                self._control.end_stream(worker.store_id, worker.incarnation, end_ts)
            return True

        return not self._workers or self._retry(end, "finishing") is not None

    def _pushed(self) -> dict[str, int]:
        uploads = [w.uploads() for w in self._workers]
        return {
            "rows": sum(w.rows for w in self._workers),
            "files": sum(u.files for u in uploads),
            "bytes": sum(u.bytes for u in uploads),
        }

    def _report(self, phase: str, *, problem: str = "") -> None:
        ticks, total, now_ts = self._played()
        progress = PushProgress(
            phase=phase, ticks=ticks, ticks_total=total, now_ts=now_ts, problem=problem, **self._pushed()
        )
        self._progress(progress)
