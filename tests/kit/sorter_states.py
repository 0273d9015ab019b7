"""States of sorter cores as plain tables, and snapshots in a bucket that forgets what no snapshot refers to.

`SnapshotFiles` is what the runner, the catalog and the collector are together to one task: it saves a core's state as
objects, and deletes at once every object that no task refers to any more, so that one which is let go too early is
missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pyarrow as pa

from sorter.core.conflicts import COMMITS, OPEN, READY, VERSION, frame_of_all
from sorter.core.task_core import CoreSnapshot, Effect, TaskCore
from sorter.rows.batch_rows import to_arrow
from sorter.rows.run import Run, require
from sorter.rows.saved import RunState, SavedRun
from sorter.state.saving import Save
from sorter.state.snapshot import objects_named_by, read_state_file
from sorter.worker.stored_core import Read, StoredCore, loaded
from tistream.errors import ObjectNotFound, invariant
from tistream.feed.protocol import FeedBatch
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.objectstore.layout import SnapshotKey

SCHEMAS = {"open": OPEN, "commits": COMMITS, "ready": READY}
_ORDER = {"open": ["row_no"], "commits": VERSION, "ready": VERSION}


def unread(_key: str, _offset: int, _length: int) -> bytes:
    raise AssertionError("nothing may be fetched")


class LoadingCore(StoredCore):
    """As the runner uses a core: what a file makes due is decided in slices, after its rows are loaded."""

    def handle(self, batch: FeedBatch, logged: pa.Table | None = None) -> list[Effect]:
        effects = super().handle(batch, logged)
        while self.settling and any(run.missing() for run in self._runs()):
            effects += self.settle()
        return effects

    def check(self) -> None:
        loaded(partial(require, self._runs()), self._read)
        super().check()


def tables_of(state: CoreSnapshot, read: Read = unread) -> dict[str, pa.Table]:
    """All that a state holds: open, commits and ready by their schemas, slices, waiting and promised. Loads
    nothing into it."""
    tables = {kind: table_of(getattr(state, kind), kind, read) for kind in SCHEMAS}
    return {**tables, "slices": state.slices, "waiting": state.waiting, "promised": state.promised}


def table_of(states: tuple[RunState, ...], kind: str, read: Read = unread) -> pa.Table:
    """The living rows of runs of one kind."""
    frame = frame_of_all([whole_run(state, read) for state in states], SCHEMAS[kind])
    return to_arrow(frame.sort(_ORDER[kind]), SCHEMAS[kind])


def whole_run(state: RunState, read: Read) -> Run:
    """A run with all of its rows."""
    run = state.run
    if not run.missing():
        return state.revive()
    assert isinstance(run, SavedRun)
    again = SavedRun(run.group, state.alive, run._late_ready)
    loaded(partial(require, [again]), read)
    if state.origins is not None:
        again.origins = state.origins
    return again


class Bucket:
    """Objects, and which task's snapshot refers to which."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.refers: dict[int, frozenset[str]] = {}

    def read(self, key: str, offset: int, length: int) -> bytes:
        """A range of an object."""
        if key not in self.objects:
            raise ObjectNotFound(key=key)
        return self.objects[key][offset : offset + length]

    def core(self, task_id: int, range_: KeyRange, start_ts: int, durable_ts: int) -> LoadingCore:
        """A core whose rows may lie here."""
        return LoadingCore(task_id, range_, start_ts, durable_ts, self.read)

    def forget(self) -> None:
        """Delete what nobody refers to."""
        needed = frozenset[str]().union(*self.refers.values())
        self.objects = {key: data for key, data in self.objects.items() if key in needed}


class SnapshotFiles:
    """The snapshots of one task."""

    def __init__(self, task_id: int = 1, bucket: Bucket | None = None) -> None:
        self.bucket = bucket or Bucket()
        self.saves = self.bytes = 0  #: so far
        self.key: str | None = None  #: of the state that counts
        self.task_id, self._n = task_id, 0

    def save(self, core: TaskCore, *, lands: bool = True) -> Mapping[str, int]:
        """Save the core's state; the new objects and their sizes. Unless it lands, nobody switches to it."""
        self.saves += 1
        save = loaded(partial(Save, core.snapshot(), self._next_key, f"w{self._n}"), self.bucket.read)
        for key, data in save.objects():
            invariant(key not in self.bucket.objects, "a key is used twice", key=key)
            self.bucket.objects[key] = data
            self.bytes += len(data)
        if lands:
            before = self.bucket.refers.get(self.task_id, frozenset())
            invariant(save.keeps <= before, "a snapshot keeps what was let go", missing=save.keeps - before)
            self.key = str(save.key)
            named = objects_named_by(self.key, self.bucket.objects[self.key])
            invariant(
                named | {self.key} == save.keeps | save.new.keys(), "a state refers to other objects than it says"
            )
            self.bucket.refers[self.task_id] = named | {self.key}
            save.done()
        self.bucket.forget()
        return save.new

    def load(self) -> CoreSnapshot | None:
        """The state that counts, as a new owner reads it."""
        if self.key is None:
            return None
        return read_state_file(self.key, self.bucket.objects[self.key]).state

    def _next_key(self) -> SnapshotKey:
        self._n += 1
        return SnapshotKey(tenant=Tenant(1, 1), task_id=self.task_id, epoch=1, n=self._n)
