"""The contract between a dispatcher and a sorter.

A sorter subscribes once per (task, store). For every batch file of that store, in order, it receives the rows and the
watermark rows of its task's range. A file without anything for the range still arrives, empty: a watermark row counts
only with all files of its store up to it. `positions` is what the subscriber has durably consumed.

Relations:

- within one (store, incarnation) batches come with `seq` = position + 1, + 2, ... without gap or repeat;
- incarnations of a store are independent streams; a batch with `closes` ends an older one;
- `rows` are clustered as in the file and `regions.row_offset/row_count` count in *this* batch's rows;
- a region that straddles the range keeps its own start and end key in `regions`; rows outside the range are cut.

A subscription is looked at, never waited for: one thread of a sorter serves thousands of them, and looks again when it
is woken. There are two implementations: a dispatcher's worker is itself a Feed for sorters in its own process, and
`tistream.feed.flight` reaches other dispatchers over Arrow Flight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import pyarrow as pa

from tistream.errors import TiStreamError
from tistream.ids import Position, Tenant
from tistream.keyrange import KeyRange


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRequest:
    """A subscription of one task to one store."""

    tenant: Tenant
    store_id: int
    task_id: int
    epoch: int  #: of the task: only its present owner is served
    worker_id: str  #: the owner
    range: KeyRange
    positions: Mapping[int, Position] = field(default_factory=dict)  #: incarnation -> consumed so far


@dataclass(frozen=True, kw_only=True)
class FeedBatch:
    """The part of one batch file for one task, or the end of an incarnation (`closes`)."""

    store_id: int
    incarnation: int
    seq: int  #: of the file; with `closes` of the incarnation's last file (0 = none)
    cut_ts: int  #: TSO fetched after the file's last record; 0 with `closes`
    rows: pa.RecordBatch  #: schema change.ROWS
    regions: pa.RecordBatch  #: schema change.REGIONS
    closes: bool = False

    @cached_property
    def nbytes(self) -> int:
        """Memory of the batch. Cached, because Arrow recomputes it each time."""
        return int(self.rows.nbytes + self.regions.nbytes)


class Wake(Protocol):
    """An Event, or something like it. `set` is called from any thread and returns quickly."""

    def set(self) -> None: ...


NoBatch = tuple[TiStreamError | None, float]  #: the current error; when to look again, monotonic seconds


class FeedStream(Protocol):
    """An open subscription. Used from one thread at a time."""

    def look(self) -> FeedBatch | NoBatch:
        """The next batch if available, else the current error and when to look again, unless woken earlier. Never
        waits. An error never moves the position; an exception ends the subscription."""
        ...

    def close(self) -> None: ...


class Feed(Protocol):
    def open(self, request: FeedRequest, wake: Wake) -> FeedStream:
        """Open a subscription; `wake` is set whenever another look may find more. FeedUnavailable when it is already
        known that the store is not served here, Fenced when the task has another owner or epoch."""
        ...
