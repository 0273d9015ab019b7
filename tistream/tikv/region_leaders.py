"""What all clients of regions share: the leader of a region, the channel to its store, and the retries.

    region, part = leader_at(pd, rest)        the region of the first key of a range, and its part of the range
    Stores(pd, channels).channel(store_id)    the channel to a store, at the address that PD lists
    Retries(...).run(attempt)                 calls `attempt` until it succeeds, with growing pauses

An attempt raises TryLater when the region cannot be asked now. Errors of kind RETRY are retried as well.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Protocol, TypeVar

import grpc

from tistream.clock import Clock
from tistream.errors import ErrorKind, StoreUnavailable, TiStreamError
from tistream.keyrange import KeyRange
from tistream.runtime.service import Backoff
from tistream.tikv.channels import Channels
from tistream.tikv.core.pd_messages import Region
from tistream.tikv.core.regions import Pd, plain_range, region_form

T = TypeVar("T")
Allowed = Callable[[], float]
"""Seconds in which a request may still be in progress; at or below 0 none may be sent."""
BUSY_S = 2.0  #: the least pause after an answer that a store is busy
_AT_ONCE_MAX = 3  # in a row


class OutOfTime(StoreUnavailable):
    """The time in which a request may be sent is over."""

    code = "TS-1103"


class TryLater(Exception):
    """The region cannot be asked now. `at_once`: its new place is known."""

    def __init__(self, why: str, *, at_once: bool = False, at_least_s: float = 0.0) -> None:
        self.at_once, self.at_least_s = at_once, at_least_s
        super().__init__(why)


class RegionPd(Pd, Protocol):
    def get_region(self, key: bytes) -> Region | None:
        """The region of a key in region form."""
        ...


def forever() -> float:
    """No limit in time."""
    return inf


def leader_at(pd: RegionPd, rest: KeyRange) -> tuple[Region, KeyRange]:
    """The region at the start of a range, which has a leader, and their common keys."""
    region = pd.get_region(region_form(rest.start))
    if region is None or not region.leader_store_id:
        raise TryLater(f"PD knows no leader for the key {rest.start.hex()}")
    region_range = plain_range(region)
    part = region_range.intersect(rest) if region_range is not None else None
    if part is None or part.start != rest.start:
        raise TryLater(f"PD returned region {region.id}, which does not contain the key {rest.start.hex()}")
    return region, part


class Stores:
    """Channels to stores by their ids. Thread-safe."""

    def __init__(self, pd: Pd, channels: Channels) -> None:
        self._pd, self._channels = pd, channels
        self._addresses: dict[int, str] = {}

    def channel(self, store_id: int) -> grpc.Channel:
        address = self._addresses.get(store_id)
        if address is None:
            self._addresses = {store.id: store.address for store in self._pd.stores()}
            if (address := self._addresses.get(store_id)) is None:
                raise TryLater(f"PD knows no store {store_id}")
            self._channels.keep(self._addresses.values())  # none of stores that have left
        return self._channels.at(address)

    def forget(self, store_id: int) -> None:
        """Ask PD again for the address of a store that did not answer."""
        self._addresses.pop(store_id, None)


@dataclass(slots=True, kw_only=True)
class Retries:
    """How an attempt is repeated. Several threads may use it, but `problem` is then of any of them."""

    error: str  #: what StoreUnavailable says when stopped or out of patience
    clock: Clock
    stop: threading.Event = field(default_factory=threading.Event)
    first_s: float
    max_s: float
    patience_s: float = inf
    notice: Callable[[str], object] = lambda _: None  #: gets the reason of each retry
    problem: str = ""  #: reason of the current retry

    def run(self, attempt: Callable[[], T], allowed: Allowed = forever, **facts: object) -> T:
        """The result of the first attempt that succeeds. OutOfTime; StoreUnavailable, with `facts`, when stopped or
        after `patience_s`; errors that are not of kind RETRY."""
        backoff = Backoff(first_s=self.first_s, max_s=self.max_s, rand=random.Random())
        until, at_once, why = self.clock.monotonic() + self.patience_s, 0, "stopped"
        while not self.stop.is_set():
            if allowed() <= 0:
                raise OutOfTime
            at_least_s, again = 0.0, False
            try:
                result = attempt()
                self.problem = ""
                return result
            except TryLater as e:
                why, at_least_s, again = str(e), e.at_least_s, e.at_once
            except OutOfTime:
                raise
            except TiStreamError as e:
                if e.kind is not ErrorKind.RETRY:
                    raise
                why = str(e)
            self.problem = why
            self.notice(why)
            if self.clock.monotonic() >= until:
                break
            at_once = at_once + 1 if again else 0
            if not 0 < at_once <= _AT_ONCE_MAX:
                self.clock.wait(self.stop, min(max(backoff.next_s(), at_least_s), max(allowed(), 0.0)))
        raise StoreUnavailable(self.error, **facts, cause=why)
