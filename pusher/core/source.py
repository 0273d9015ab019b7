"""What a pusher asks of one store's change feed, whoever gives it: a TiKV store, a recording or the simulator.

A source knows which regions its store leads, registers each of them at a checkpoint_ts, and tells what comes. One
registration is a *subscription*. Who runs the source polls it, in one thread:

    SubscriptionOpened -> (Rows | SubscriptionReady | Resolved)* -> SubscriptionClosed          for each subscription
    Tick(cut_ts)                                                              for the store

Relations that a source keeps:

- `subscription` ids rise within one source and are never used twice, in particular not for the same region again;
- `open_ts` is a TSO taken before registering and `ready_ts` one taken after INITIALIZED;
- the checkpoint_ts of a subscription comes from `CheckpointOf`, asked right before registering, and stays;
- `Rows` are columnar (schema change.ROWS), in order of arrival, keys plain. Rows of the opening scan and live rows come
  in separate events, because a scan may send a lock as it was behind the live rows of what it became (see `scan`). A
  source that cannot tell them apart gives all as live, and ends a subscription in which, before it is ready, two full
  prewrites of one lock say different things: nobody could know which is newer;
- a Resolved(ts) comes behind every row that it covers, and never before SubscriptionReady. It may fall back, as
  TiKV's does: the pusher keeps the largest;
- `cut_ts` of a Tick is a TSO fetched after the last row handed out, and never falls. A Tick comes at each flush
  interval; a source that can ask for a TSO at any time also gives one when it has handed out more than
  limits.BATCH_FILE_BYTES_TARGET since the last one. A recording cannot: its ticks are what was recorded;
- a source never waits for its reader without a bound: it drops subscriptions before it slows the store down.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tistream.keyrange import KeyRange

CheckpointOf = Callable[[KeyRange], int | None]
"""checkpoint_ts for a region that is about to be registered; None: not now, ask again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionOpened:
    """A region was registered."""

    subscription: int
    region_id: int
    version: int  #: of the region's epoch
    range: KeyRange
    checkpoint_ts: int  #: the opening scan holds everything committed above it
    open_ts: int  #: TSO taken before registering


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of one subscription."""

    subscription: int
    rows: pa.RecordBatch  #: schema change.ROWS
    scan: bool = (
        False  #: they come from the opening scan: older than any live row of the subscription about the same lock
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionReady:
    """The opening scan is complete."""

    subscription: int
    ready_ts: int  #: TSO taken after INITIALIZED


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Resolved timestamps of many subscriptions at once."""

    subscriptions: npt.NDArray[np.int64]  #: distinct
    resolved_ts: npt.NDArray[np.uint64]  #: one for each of `subscriptions`


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionClosed:
    """The subscription is over: leader moved, region split or merged, stream broken, or the pusher's own wish."""

    subscription: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Write what there is."""

    cut_ts: int  #: TSO fetched after the last row


SourceEvent = SubscriptionOpened | Rows | SubscriptionReady | Resolved | SubscriptionClosed | Tick


class Source(Protocol):
    """The change feed of one store. Used from one thread."""

    @property
    def store_id(self) -> int: ...

    def poll(self, timeout_s: float, checkpoint_of: CheckpointOf) -> Sequence[SourceEvent]:
        """What has come, waiting up to `timeout_s` seconds for something. Registers regions that have no subscription.

        Errors of single regions are the source's own business (it registers again); StoreUnavailable is raised when
        the store cannot be reached at all, and the next poll tries again."""
        ...

    def resubscribe(self, subscriptions: Collection[int]) -> None:
        """End these subscriptions (with SubscriptionClosed) and register their regions again, at a new checkpoint."""
        ...

    def drop(self) -> None:
        """Forget every subscription without a word and register nothing until `resume`."""
        ...

    def resume(self) -> None:
        """Register again after `drop`."""
        ...

    def close(self) -> None:
        """End everything; nothing comes any more."""
        ...
