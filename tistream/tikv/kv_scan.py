"""Reads live pairs of a cluster at a timestamp, region by region (`KvScan`), rate limited.

    KvReader(pd, ...).read(range, ts) -> pages, in key order, without a gap

- Every page starts where the previous one ended, so each key is read once whatever splits, merges or moves;
- a region that cannot be read (moved, split, busy, store unavailable) is looked up in PD again and retried with growing
  pauses, without limit; `problem` has the reason. So are invalid answers, and refusals that are not known to be final;
- after a failed or late page half as many pairs are requested: they may exceed a message, or lie behind many deleted
  keys, for which a late read also gets more time;
- reads have low priority at the store and do not fill its cache;
- locks are waited for, never resolved: the reader writes nothing to the cluster. The cluster's garbage collection ends
  a dead client's transaction at the latest;
- the caller must hold history at `ts` (`PdClient.hold_history`); no store refuses a read below the safe point.

Errors: StoreUnavailable when stopped or out of patience; KvRefused for a final refusal, with store, region and request.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

import grpc

from tistream.clock import Clock
from tistream.errors import CorruptObject, StoreUnavailable
from tistream.keyrange import KeyRange
from tistream.runtime.service import Backoff
from tistream.tikv.channels import Channels, Tls
from tistream.tikv.core.keyspaces import WHOLE, KeyspaceKeys
from tistream.tikv.core.kv_messages import ApiVersion, FaultKind, KvRefused, Page, RegionFault, read_scan, scan_request
from tistream.tikv.core.pd_messages import Region
from tistream.tikv.core.regions import Pd, plain_range, region_form

METHOD = "/tikvpb.Tikv/KvScan"
RATE_BYTES_S = 16 << 20  #: rate limit
_CALL_S, _CALL_MAX_S = 20.0, 160.0
_PAIRS_FIRST, _PAIRS_MAX = 64, 4096
_PAGE_BYTES = 1 << 20  # target size of a page
_BUSY_S = 2.0
_FINAL = ("ApiVersionNotMatched", "InvalidKeyMode")  #: final refusals


class RegionPd(Pd, Protocol):
    def get_region(self, key: bytes) -> Region | None:
        """The region of a key in region form."""
        ...


class _Later(Exception):
    """The region cannot be read now; retry."""

    def __init__(self, why: str, *, at_least_s: float = 0.0) -> None:
        self.at_least_s = at_least_s
        super().__init__(why)


class KvReader:
    """Reads at timestamps. Used from one thread, except `problem`; `close` it."""

    def __init__(
        self,
        pd: RegionPd,
        *,
        clock: Clock,
        stop: threading.Event,
        tls: Tls | None = None,
        rate_bytes_s: int = RATE_BYTES_S,
        patience_s: float = float("inf"),
        rand: random.Random | None = None,
        keyspace: KeyspaceKeys = WHOLE,
        notice: Callable[[str], object] = lambda _: None,
    ) -> None:
        """`pd` and all ranges use the keyspace's keys. `patience_s`: how long one page is retried before
        StoreUnavailable. `notice` gets the reason of each retry."""
        self._pd, self._clock, self._stop = pd, clock, stop
        self._rate_bytes_s, self._patience_s, self._rand = rate_bytes_s, patience_s, rand or random.Random()
        self._keyspace, self._notice = keyspace, notice
        self._channels = Channels(tls)
        self._addresses: dict[int, str] = {}
        self._pairs, self._call_s = _PAIRS_FIRST, _CALL_S
        self.problem = ""  #: reason of the current retry

    def read(self, part: KeyRange, ts: int, api: ApiVersion | None = None) -> Iterator[Page]:
        """All pairs of `part` that are live at `ts`; empty pages are skipped."""
        if api is None:
            api = ApiVersion.V1 if self._keyspace.id is None else ApiVersion.V2
        at = part.start
        while True:
            began = self._clock.monotonic()
            page, done_to = self._next(KeyRange(at, part.end), ts, api)
            if page.keys:
                yield page
            if done_to == b"" or (part.end and done_to >= part.end):
                return
            at = done_to
            size = sum(map(len, page.keys)) + sum(map(len, page.values))
            due = began + size / self._rate_bytes_s
            if (pause_s := due - self._clock.monotonic()) > 0:
                self._clock.wait(self._stop, pause_s)

    def close(self) -> None:
        self._channels.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _next(self, rest: KeyRange, ts: int, api: ApiVersion) -> tuple[Page, bytes]:
        """The next page of `rest`, and where it ended (b"" = plus infinity)."""
        backoff = Backoff(first_s=0.05, max_s=3.0, rand=self._rand)
        until = self._clock.monotonic() + self._patience_s
        while not self._stop.is_set():
            try:
                found = self._try(rest, ts, api)
            except _Later as e:
                why, at_least_s = str(e), e.at_least_s
            except StoreUnavailable as e:
                why, at_least_s = str(e), 0.0
            else:
                self.problem = ""
                return found
            self.problem = why
            self._notice(why)
            if self._clock.monotonic() >= until:
                break
            self._clock.wait(self._stop, max(backoff.next_s(), at_least_s))
        raise StoreUnavailable("keys could not be read", range=str(rest), ts=ts, cause=self.problem or "stopped")

    def _try(self, rest: KeyRange, ts: int, api: ApiVersion) -> tuple[Page, bytes]:
        region = self._pd.get_region(region_form(rest.start))
        if region is None or not region.leader_store_id:
            raise _Later(f"PD knows no leader for the key {rest.start.hex()}")
        region_range = plain_range(region)
        part = region_range.intersect(rest) if region_range is not None else None
        if part is None or part.start != rest.start:
            raise _Later(f"PD returned region {region.id}, which does not contain the key {rest.start.hex()}")
        pairs = self._pairs
        answer = self._ask(region, part, pairs, ts, api)
        if isinstance(answer, RegionFault):
            at_least_s = max(_BUSY_S, answer.backoff_ms / 1000) if answer.kind is FaultKind.SERVER_IS_BUSY else 0.0
            raise _Later(
                f"region {region.id} cannot be read: {answer.kind.name} {answer.message}".rstrip(),
                at_least_s=at_least_s,
            )
        if answer.lock is not None and not answer.keys:
            lock = answer.lock
            raise _Later(f"region {region.id}: transaction {lock.start_ts} locks the key {lock.key.hex()}")
        if answer.keys:
            size = sum(map(len, answer.keys)) + sum(map(len, answer.values))
            self._pairs = min(max(_PAGE_BYTES * len(answer.keys) // size, 1), 2 * pairs, _PAIRS_MAX)
        if answer.lock is not None or len(answer.keys) >= pairs:
            return answer, answer.keys[-1] + b"\0"
        return answer, part.end

    def _ask(self, region: Region, part: KeyRange, pairs: int, ts: int, api: ApiVersion) -> Page | RegionFault:
        asked = self._keyspace.outer_range(part)
        request = scan_request(region, asked, pairs, ts, api, self._keyspace.id)
        facts = {"store": region.leader_store_id, "region": region.id, "request": f"KvScan {part} at {ts}"}
        try:
            answer = self._channel(region.leader_store_id).unary_unary(METHOD)(request, timeout=self._call_s)
        except grpc.RpcError as e:
            self._addresses.pop(region.leader_store_id, None)
            self._shrink_request(late=e.code() is grpc.StatusCode.DEADLINE_EXCEEDED)
            text = f"{e.code().name} {e.details()}"
            raise _Later(f"store {region.leader_store_id} does not answer {facts['request']}: {text}") from e
        try:
            page = read_scan(answer, asked)
            self._call_s = _CALL_S
            if isinstance(page, RegionFault):
                return page
            return replace(page, keys=[self._keyspace.inner_key(key) for key in page.keys])
        except (KvRefused, CorruptObject) as e:
            if any(words in e.message for words in _FINAL):
                raise KvRefused(e.message, **{**e.facts, **facts}) from e
            self._shrink_request(late=False)
            target = ", ".join(f"{name} {value}" for name, value in facts.items())
            raise _Later(f"a store returned no pairs: {e} ({target})") from e

    def _shrink_request(self, *, late: bool) -> None:
        """Change the next attempt: fewer pairs, more time after a timeout."""
        self._pairs = max(self._pairs // 2, 1)
        if late:
            self._call_s = min(2 * self._call_s, _CALL_MAX_S)

    def _channel(self, store_id: int) -> grpc.Channel:
        address = self._addresses.get(store_id)
        if address is None:
            address = next((s.address for s in self._pd.stores() if s.id == store_id), None)
            if address is None:
                raise _Later(f"PD knows no store {store_id}")
            self._addresses[store_id] = address
        return self._channels.at(address)
