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

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import grpc

from tistream.clock import Clock
from tistream.errors import CorruptObject
from tistream.keyrange import KeyRange
from tistream.runtime.rate_limiter import RateLimiter
from tistream.tikv.channels import Channels, Tls
from tistream.tikv.core.keyspaces import WHOLE, KeyspaceKeys
from tistream.tikv.core.kv_messages import ApiVersion, FaultKind, KvRefused, Page, RegionFault, read_scan, scan_request
from tistream.tikv.core.pd_messages import Region
from tistream.tikv.region_leaders import BUSY_S, RegionPd, Retries, Stores, TryLater, leader_at

METHOD = "/tikvpb.Tikv/KvScan"
RATE_BYTES_S = 16 << 20  #: rate limit
_CALL_S, _CALL_MAX_S = 20.0, 160.0
_PAIRS_FIRST, _PAIRS_MAX = 64, 4096
_PAGE_BYTES = 1 << 20  # target size of a page
_FINAL = ("ApiVersionNotMatched", "InvalidKeyMode")  #: final refusals


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
        keyspace: KeyspaceKeys = WHOLE,
        notice: Callable[[str], object] = lambda _: None,
    ) -> None:
        """`pd` and all ranges use the keyspace's keys. `patience_s`: how long one page is retried before
        StoreUnavailable. `notice` gets the reason of each retry."""
        self._pd, self._keyspace = pd, keyspace
        self._rate = RateLimiter(rate_bytes_s, clock, stop)
        self._retries = Retries(
            error="keys could not be read",
            clock=clock,
            stop=stop,
            first_s=0.05,
            max_s=3.0,
            patience_s=patience_s,
            notice=notice,
        )
        self._channels = Channels(tls)
        self._stores = Stores(pd, self._channels)
        self._pairs, self._call_s = _PAIRS_FIRST, _CALL_S

    @property
    def problem(self) -> str:
        """Reason of the current retry."""
        return self._retries.problem

    def read(self, part: KeyRange, ts: int, api: ApiVersion | None = None) -> Iterator[Page]:
        """All pairs of `part` that are live at `ts`; empty pages are skipped."""
        if api is None:
            api = ApiVersion.V1 if self._keyspace.id is None else ApiVersion.V2
        rest = part
        while True:
            page, done_to = self._retries.run(partial(self._try, rest, ts, api), range=str(rest), ts=ts)
            self._rate.take(_size(page))
            if page.keys:
                yield page
            if done_to == b"" or (part.end and done_to >= part.end):
                return
            rest = KeyRange(done_to, part.end)

    def close(self) -> None:
        self._channels.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _try(self, rest: KeyRange, ts: int, api: ApiVersion) -> tuple[Page, bytes]:
        """The next page of `rest`, and where it ended (b"" = plus infinity)."""
        region, part = leader_at(self._pd, rest)
        pairs = self._pairs
        answer = self._ask(region, part, pairs, ts, api)
        if isinstance(answer, RegionFault):
            at_least_s = max(BUSY_S, answer.backoff_ms / 1000) if answer.kind is FaultKind.SERVER_IS_BUSY else 0.0
            raise TryLater(
                f"region {region.id} cannot be read: {answer.kind.name} {answer.message}".rstrip(),
                at_least_s=at_least_s,
            )
        if answer.lock is not None and not answer.keys:
            lock = answer.lock
            raise TryLater(f"region {region.id}: transaction {lock.start_ts} locks the key {lock.key.hex()}")
        if answer.keys:
            self._pairs = min(max(_PAGE_BYTES * len(answer.keys) // _size(answer), 1), 2 * pairs, _PAIRS_MAX)
        if answer.lock is not None or len(answer.keys) >= pairs:
            return answer, answer.keys[-1] + b"\0"
        return answer, part.end

    def _ask(self, region: Region, part: KeyRange, pairs: int, ts: int, api: ApiVersion) -> Page | RegionFault:
        outer = self._keyspace.outer_range(part)
        request = scan_request(region, outer, pairs, ts, api, self._keyspace.id)
        facts = {"store": region.leader_store_id, "region": region.id, "request": f"KvScan {part} at {ts}"}
        try:
            answer = self._stores.channel(region.leader_store_id).unary_unary(METHOD)(request, timeout=self._call_s)
        except grpc.RpcError as e:
            self._stores.forget(region.leader_store_id)
            self._shrink_request(late=e.code() is grpc.StatusCode.DEADLINE_EXCEEDED)
            text = f"{e.code().name} {e.details()}"
            raise TryLater(f"store {region.leader_store_id} does not answer {facts['request']}: {text}") from e
        try:
            page = read_scan(answer, outer)
            self._call_s = _CALL_S
            if isinstance(page, RegionFault):
                return page
            return replace(page, keys=[self._keyspace.inner_key(key) for key in page.keys])
        except (KvRefused, CorruptObject) as e:
            if any(words in e.message for words in _FINAL):
                raise KvRefused(e.message, **{**e.facts, **facts}) from e
            self._shrink_request(late=False)
            target = ", ".join(f"{name} {value}" for name, value in facts.items())
            raise TryLater(f"a store returned no pairs: {e} ({target})") from e

    def _shrink_request(self, *, late: bool) -> None:
        """Change the next attempt: fewer pairs, more time after a timeout."""
        self._pairs = max(self._pairs // 2, 1)
        if late:
            self._call_s = min(2 * self._call_s, _CALL_MAX_S)


def _size(page: Page) -> int:
    return sum(map(len, page.keys)) + sum(map(len, page.values))
