"""A task's core whose rows may lie in snapshot objects: runs each step, and fetches the rows that it lacks.

A fetch that fails leaves the core as it was, so the step is simply repeated later.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pyarrow as pa

from sorter.core.contradictions import LogQuestion
from sorter.core.task_core import Effect, TaskCore
from sorter.core.watermark import Stuck
from sorter.rows.output import RowsToWrite
from sorter.rows.run import NotLoaded
from sorter.rows.saved import Group, SavedRun
from tistream.codec.segment_file import decode_segment
from tistream.errors import CorruptObject, ObjectNotFound, StoreError, StoreUnavailable, TiStreamError
from tistream.feed.protocol import FeedBatch
from tistream.keyrange import KeyRange

T = TypeVar("T")
Read = Callable[[str, int, int], bytes]  #: (object key, offset, length) -> bytes


class RowsOutOfReach(StoreUnavailable):
    """Rows in a snapshot object could not be fetched. Nothing has changed."""

    code = "TS-1035"
    hint = "The task continues automatically once the object store answers."


class StateUnreadable(CorruptObject):
    """An object of a task's saved state is missing or damaged. The task stops; its log and its batch files stay."""

    code = "TS-1065"
    hint = (
        "Restore the object that the error names, from a version or a copy of the bucket; then: tistream tasks retry."
    )


class StoredCore(TaskCore):
    """Every step that reads rows may raise RowsOutOfReach or StateUnreadable, before it has changed anything."""

    def __init__(
        self,
        task_id: int,
        range_: KeyRange,
        start_ts: int,
        durable_ts: int,
        read: Read,
        search: Callable[[LogQuestion], pa.Table] | None = None,
    ) -> None:
        """`search` finds rows of the task's committed log. Without it none is taken to be there, so a row that
        contradicts a promise is never taken for a repeated one."""
        super().__init__(task_id, range_, start_ts, durable_ts)
        self._read = read
        self._search = search

    def handle(self, batch: FeedBatch, logged: pa.Table | None = None) -> list[Effect]:
        if logged is None and self._search is not None:
            question = self._loaded(partial(self.question, batch))
            logged = None if question is None else self._search(question)
        return self._loaded(partial(super().handle, batch, logged))

    def settle(self) -> list[Effect]:
        return self._loaded(super().settle)

    def pending(self) -> int | None:
        return self._loaded(super().pending)

    def flushable_bytes(self) -> int:
        return self._loaded(super().flushable_bytes)

    def take(self, w: int) -> RowsToWrite:
        return self._loaded(partial(super().take, w))

    def explain(self, range_: KeyRange | None = None) -> list[Stuck]:
        """As in TaskCore, or one entry with the error when the rows it needs cannot be fetched."""
        try:
            return self._loaded(partial(super().explain, range_))
        except (RowsOutOfReach, StateUnreadable) as e:
            return [Stuck(range=self.range if range_ is None else range_, w=None, reason=f"unknown: {e}")]

    def _restrict(self) -> None:
        self._loaded(super()._restrict)

    def _loaded(self, step: Callable[[], T]) -> T:
        return loaded(step, self._read)


def loaded(step: Callable[[], T], read: Read) -> T:
    """The result of a step; repeats it with the rows that it reads loaded."""
    while True:
        try:
            return step()
        except NotLoaded as e:
            needs = e.needs
        for need in needs:
            run = need.run
            assert isinstance(run, SavedRun)
            if run.missing((need.part,)):  # else it was named twice
                run.load(need.part, fetch(run.group, read, need.part))


def fetch(group: Group, read: Read, name: str) -> pa.Table:
    """A part of a group. RowsOutOfReach when it cannot be fetched, StateUnreadable when it is missing or damaged."""
    try:
        return _fetched(group, read, name)
    except CorruptObject:
        pass  # possibly damaged in transit: read again
    except StoreError as e:
        raise _fetch_error(group, name, e) from e
    try:
        return _fetched(group, read, name)
    except (StoreError, CorruptObject) as e:
        raise _fetch_error(group, name, e) from e


def _fetched(group: Group, read: Read, name: str) -> pa.Table:
    part = group.parts[name]
    return decode_segment(
        group.object_key,
        part.number,
        read(group.object_key, part.offset, part.length),
        crc=part.crc,
        rows=None if name == "origins" else group.rows,
        raw_length=part.raw_length,
        offset=part.offset,
    )


def _fetch_error(group: Group, name: str, error: StoreError | CorruptObject) -> TiStreamError:
    permanent = isinstance(error, (ObjectNotFound, CorruptObject))
    kind = StateUnreadable if permanent else RowsOutOfReach
    return kind(object=group.object_key, part=name, cause=str(error))
