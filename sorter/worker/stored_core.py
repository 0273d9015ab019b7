"""A task's core whose rows may lie in snapshot objects: fetches what each step needs, then runs the step.

A fetch that fails leaves the core as it was, so the step is simply repeated later.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyarrow as pa

from sorter.core.acceptance import Accepted
from sorter.core.contradictions import LogQuestion
from sorter.core.task_core import CoreSnapshot, Effect, TaskCore
from sorter.core.watermark import Stuck
from sorter.rows.output import Output
from sorter.rows.run import Need
from sorter.rows.saved import Group, SavedRun
from tistream.codec.segment_file import decode_segment
from tistream.errors import CorruptObject, ObjectNotFound, StoreError, StoreUnavailable, TiStreamError
from tistream.feed.protocol import FeedBatch
from tistream.keyrange import KeyRange
from tistream.model.positions import Positions

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

    def handle(
        self, batch: FeedBatch, logged: pa.Table | None = None, accepted: Accepted | None = None
    ) -> list[Effect]:
        effects: list[Effect] = []
        while self.settling:
            effects += self.settle()
        load(partial(self.needs, batch), self._read)
        searches = logged is None and accepted is None and self._search is not None
        if searches and (asked := self.question(batch)) is not None:
            assert self._search is not None
            logged = self._search(asked)
        return effects + super().handle(batch, logged, accepted)

    def accept(self, batch: FeedBatch, logged: pa.Table | None = None) -> Accepted:
        load(partial(self.needs_of_accept, batch), self._read)
        if logged is None and self._search is not None and (asked := self.question_of_accept(batch)) is not None:
            logged = self._search(asked)
        return super().accept(batch, logged)

    def settle(self) -> list[Effect]:
        load(self.needs, self._read)
        return super().settle()

    def pending(self) -> int | None:
        load(self.needs_of_flush, self._read)
        return super().pending()

    def flushable_bytes(self) -> int:
        load(self.needs_of_flush, self._read)
        return super().flushable_bytes()

    def take(self, w: int) -> Output:
        load(partial(self.needs_of_flush, w), self._read)
        output = super().take(w)
        load(output.needs, self._read)
        return output

    def explain(self, range_: KeyRange | None = None) -> list[Stuck]:
        """As in TaskCore, or one entry with the error when the rows it needs cannot be fetched."""
        try:
            load(self.needs_of_explain, self._read)
        except (RowsOutOfReach, StateUnreadable) as e:
            return [Stuck(range=self.range if range_ is None else range_, w=None, reason=f"unknown: {e}")]
        return super().explain(range_)

    def restore(self, snapshot: CoreSnapshot, positions: Positions) -> None:
        load(partial(self.needs_of_restore, snapshot), self._read)
        super().restore(snapshot, positions)


def load(needs: Callable[[], list[Need]], read: Read) -> None:
    """Fetch and load what `needs` names, until it names nothing."""
    while found := needs():
        for need in found:
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
