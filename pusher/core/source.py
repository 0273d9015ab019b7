"""Source: the change feed of one store, whether of a TiKV store, a recording or the simulator.

A source knows which regions its store leads, registers each at a checkpoint_ts, and returns events. One registration is
a *subscription*. The owner polls the source from one thread:

    SubscriptionOpened -> (Rows | SubscriptionReady | Resolved)* -> SubscriptionClosed          for each subscription
    Tick(cut_ts)                                                              for the store

A source guarantees:

- subscription ids increase and are never reused, not even for the same region;
- `open_ts` is a TSO taken before registering, `ready_ts` one taken after INITIALIZED;
- the checkpoint_ts of a subscription comes from `CheckpointOf`, called right before registering, and is constant;
- `Rows` are columnar (schema change.ROWS), in arrival order, with plain keys. Rows of the opening scan and live rows
  come in separate events, because a scan may deliver an older state of a lock after live rows (see `scan`). A source
  that cannot distinguish them marks all as live, and closes a subscription that receives, before it is ready, two full
  prewrites of one lock with different contents: their order would be unknown;
- Resolved(ts) follows all rows that it covers, and SubscriptionReady. It may decrease, as TiKV's does: the pusher keeps
  the largest;
- `cut_ts` of a Tick is a TSO fetched after the last row returned, and never decreases. A Tick comes every flush
  interval, and earlier after limits.BATCH_FILE_BYTES_TARGET of rows, if the source can fetch a TSO at any time. A
  recording cannot: its ticks are as recorded;
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
"""checkpoint_ts for a region about to be registered; None: not now, try again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionOpened:
    subscription: int
    region_id: int
    version: int  #: of the region's epoch
    range: KeyRange
    checkpoint_ts: int  #: the opening scan has everything committed above it
    open_ts: int  #: TSO taken before registering


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    subscription: int
    rows: pa.RecordBatch  #: schema change.ROWS
    scan: bool = False  #: from the opening scan: older than any live row of the same lock


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionReady:
    subscription: int
    ready_ts: int  #: TSO taken after INITIALIZED


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Resolved timestamps of many subscriptions at once."""

    subscriptions: npt.NDArray[np.int64]  #: distinct
    resolved_ts: npt.NDArray[np.uint64]  #: one for each of `subscriptions`


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionClosed:
    """The subscription ended: leader moved, region split or merged, stream broken, or closed by the pusher."""

    subscription: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Write a batch file."""

    cut_ts: int  #: TSO fetched after the last row


SourceEvent = SubscriptionOpened | Rows | SubscriptionReady | Resolved | SubscriptionClosed | Tick


class Source(Protocol):
    """The change feed of one store. Used from one thread."""

    @property
    def store_id(self) -> int: ...

    def poll(self, timeout_s: float, checkpoint_of: CheckpointOf) -> Sequence[SourceEvent]:
        """Return events, waiting up to `timeout_s` seconds for some. Registers regions that have no subscription.

        The source handles errors of single regions (it registers again). StoreUnavailable when the store is
        unreachable; the next poll retries."""
        ...

    def resubscribe(self, subscriptions: Collection[int]) -> None:
        """Close these subscriptions (with SubscriptionClosed) and register their regions again, at a new checkpoint."""
        ...

    def drop(self) -> None:
        """Drop every subscription without an event; register nothing until `resume`."""
        ...

    def resume(self) -> None:
        """Register again after `drop`."""
        ...

    def close(self) -> None:
        """End everything; no event follows."""
        ...
