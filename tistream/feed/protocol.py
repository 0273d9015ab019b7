"""The contract between a dispatcher and a sorter: who asks for what, and what comes back.

A sorter subscribes once per (task, store). It receives, for every batch file of that store in order, the rows and the
watermark rows of its task's range. A file without anything for the range still comes, empty: a watermark row counts
only with all files of its store up to it. `positions` says what the subscriber already has durably.

Relations:

- within one (store, incarnation) the batches come with `seq` = position + 1, + 2, ... and never a gap or a repeat;
- incarnations of a store are independent streams; a batch with `closes` ends an older one: nothing of it follows;
- `rows` are clustered as in the file and `regions.row_offset/row_count` count in *this* batch's rows;
- a region that straddles the range keeps its own start and end key in `regions`; rows outside the range are cut.

Two ends keep this contract: a dispatcher's worker is itself a Feed for sorters in its own process, and
`tistream.feed.flight` reaches a dispatcher elsewhere over Arrow Flight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, runtime_checkable

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
    range: KeyRange
    positions: Mapping[int, Position] = field(default_factory=dict)  #: incarnation -> consumed so far


@dataclass(frozen=True, kw_only=True)
class FeedBatch:
    """What one batch file holds for one task, or the news that an incarnation has ended (`closes`)."""

    store_id: int
    incarnation: int
    seq: int  #: of the file; with `closes` the last file of the incarnation (0 = it never had one)
    cut_ts: int  #: TSO fetched after the file's last record; 0 with `closes`
    rows: pa.RecordBatch  #: schema change.ROWS
    regions: pa.RecordBatch  #: schema change.REGIONS
    closes: bool = False

    @cached_property
    def nbytes(self) -> int:
        """Memory that it takes. Arrow adds that up anew each time, which is much for a small batch."""
        return int(self.rows.nbytes + self.regions.nbytes)


class FeedStream(Protocol):
    """An open subscription. Used from one thread."""

    def next(self, timeout_s: float) -> FeedBatch | None:
        """The next batch, or None when none came in time. FeedGap, CorruptObject, StoreUnavailable and
        FeedUnavailable are raised to the subscriber and leave the stream usable: the next call tries again at the
        same place. While the trouble lasts, calls raise (when their time is up) instead of returning None."""
        ...

    def close(self) -> None: ...


class Wake(Protocol):
    """Who wants to know: an Event, or something like it. `set` is called from any thread and never waits for long."""

    def set(self) -> None: ...


NoBatch = tuple[TiStreamError | None, float]  #: what is in the way, if anything; when to look again, monotonic seconds


class Watched(Protocol):
    """An open subscription that is looked at instead of waited for. Used from one thread at a time."""

    def look(self) -> FeedBatch | NoBatch:
        """The next batch if it is here, else what is in the way and when to look again, if nobody was woken before.
        What is raised ends the subscription."""
        ...

    def close(self) -> None: ...


class Feed(Protocol):
    """Where a sorter subscribes."""

    def subscribe(self, request: FeedRequest) -> FeedStream:
        """Open a stream. FeedUnavailable when it is known at once that nobody serves the store here."""
        ...


@runtime_checkable
class WatchedFeed(Protocol):
    """A Feed for subscriptions by the thousand: one thread looks at all of them."""

    def watch(self, request: FeedRequest, wake: Wake) -> Watched:
        """Open one; `wake` is set whenever another look may find more. Errors as of `subscribe`."""
        ...
