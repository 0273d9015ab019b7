"""RawKV client of a cluster: writes in batches, reads, checksums; keys are those of users, without mode and keyspace.

    space = RawSpace(learn_api(pd, clock=clock), keyspace_id)
    client = RawClient(pd, space, clock=clock)
    client.batch_put(keys, values, expires, allowed=allowed)        Arrow arrays, keys rising
    client.batch_delete(keys, allowed=allowed)

- A batch is cut by region, number of keys and bytes; the parts are sent by up to `concurrency` threads. When a call
  returns or raises, none of its requests is in progress;
- each key is in one request at a time, so calls one after the other write a key in their order;
- a request lasts as long as `allowed` gives at most, a write no longer than `write_s`. The store drops it when it has
  not begun somewhat earlier, which leaves time for the way there;
- a write without an answer, whatever the error, may be in a queue of the store. Nothing else is written to its keys,
  and the call does not end, before its deadline has passed;
- gRPC does not say whether a request that failed was sent. So a store that did not answer the last request gets a read
  before the next write: when the store is away, that read fails, and nothing must be waited for;
- whatever the region error, the lost store or the unknown refusal: the part is sent again after a pause, until
  `patience_s` have passed without success. Entries that can never be written are left out, and raised at the end
  with their keys; a refusal of everything is raised at once;
- expiries are Unix seconds. The time to live is computed at each try from the time of the cluster's PD; an entry that
  has expired by then is deleted.

Errors: OutOfTime; RawRefused; StoreUnavailable when out of patience.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TypeVar

import grpc
import numpy as np
import pyarrow as pa

from tistream import ts
from tistream.clock import Clock
from tistream.errors import CorruptObject, InvalidInput, TiStreamError
from tistream.keyrange import KeyRange, end_before
from tistream.outbound.checked_names import CheckedNames
from tistream.runtime.rate_limiter import RateLimiter
from tistream.tikv.channels import Channels, Tls
from tistream.tikv.core import raw_messages as m
from tistream.tikv.core import wire
from tistream.tikv.core.api_versions import Api, server_version
from tistream.tikv.core.kv_messages import read_fault
from tistream.tikv.core.raw_messages import Columns, RawRefused, RawSpace, Seconds
from tistream.tikv.core.region_map import CachedRegion, RegionMap
from tistream.tikv.pd import PdClient
from tistream.tikv.region_leaders import BUSY_S, Allowed, OutOfTime, Retries, Stores, TryLater, forever

A = TypeVar("A")
T = TypeVar("T")

_CALL_S = 20.0
_BEGIN = 0.8  #: of the time of a request, by which a store must have begun with it
_WRITES = frozenset({"RawBatchPut", "RawBatchDelete"})
_REGIONS_PAGE = 128
_REFUSED_MAX = 1000  #: entries, after which the rest of a write is not tried


class _TooLarge(Exception):
    """A write is too large for the region's log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteLimits:
    """Of the requests: how much at once, how soon again, for how long."""

    concurrency: int = 4  #: requests in progress
    batch_keys: int = 1024
    batch_bytes: int = 1 << 20
    rate_bytes_s: int = 0  #: of keys and values; 0 = no limit
    backoff_base_s: float = 0.1
    backoff_max_s: float = 5.0
    patience_s: float = 20.0  #: without a success
    write_s: float = 3.0  #: the longest deadline of a write, which is waited for when there is no answer


@dataclass(frozen=True, slots=True)
class RawPage:
    """Pairs in key order."""

    keys: pa.BinaryArray
    values: pa.BinaryArray


@dataclass(frozen=True, slots=True)
class RawChecksum:
    """Of keys, as they are on the wire, and values: CRC64 (xor of all pairs), pairs, bytes."""

    crc64: int = 0
    pairs: int = 0
    size: int = 0


class RawClient:
    """One cluster's RawKV in a space of keys. Thread-safe; `close` it."""

    def __init__(
        self,
        pd: PdClient,
        space: RawSpace,
        *,
        clock: Clock,
        tls: Tls | None = None,
        limits: WriteLimits | None = None,
        notice: Callable[[str], object] = lambda _: None,
        connection: int | None = None,
        names: CheckedNames | None = None,
    ) -> None:
        """`notice` gets the reason of each retry. `connection`, `names`: see `Channels`."""
        self.space = space
        self._pd, self._clock = pd, clock
        self._limits = limits = limits or WriteLimits()
        self._retries = Retries(
            error="a cluster does not serve RawKV",
            clock=clock,
            first_s=limits.backoff_base_s,
            max_s=limits.backoff_max_s,
            patience_s=limits.patience_s,
            notice=notice,
        )
        self._channels = Channels(tls, connection, names)
        self._lock = threading.Lock()
        self._known = RegionMap(space.range_of)
        self._stores = Stores(pd, self._channels)
        self._responded: set[int] = set()  # stores that have answered the last request
        self._never = threading.Event()
        self._rate = RateLimiter(limits.rate_bytes_s or inf, clock, self._never)

    def close(self) -> None:
        self._channels.close()

    # -- writes ----------------------------------------------------------------------------------------------------

    def batch_put(
        self,
        keys: pa.BinaryArray,
        values: pa.BinaryArray,
        expires: Seconds | None = None,
        *,
        allowed: Allowed = forever,
    ) -> None:
        """Write pairs; `keys` rise. `expires`: Unix seconds, 0 = never; InvalidInput where the space has no expiry."""
        if expires is not None and not expires.any():
            expires = None
        if expires is not None and not self.space.has_expiry:
            raise InvalidInput("the cluster's stores have no expiry (API V1 without TTL)")
        self._write(Columns.of(keys, values), expires, allowed)

    def batch_delete(self, keys: pa.BinaryArray, *, allowed: Allowed = forever) -> None:
        """Delete keys, which rise; they need not exist."""
        self._write(Columns.of(keys, None), None, allowed)

    def _write(self, columns: Columns, expires: Seconds | None, allowed: Allowed) -> None:
        if not columns.is_rising:
            raise InvalidInput("the keys of a write must rise")
        write = _Write(columns, expires, None if expires is None else self.pd_time(allowed), allowed)
        parts = self._parts(write)
        if self._limits.concurrency == 1 or len(parts) == 1:
            for start, end in parts:
                self._send(write, start, end)
        else:
            # of this write: a client that waits has no threads, and a process may have very many of them
            with ThreadPoolExecutor(min(self._limits.concurrency, len(parts)), thread_name_prefix="raw-kv") as threads:
                calls = [threads.submit(self._send, write, start, end) for start, end in parts]
            errors = [error for call in calls if (error := call.exception()) is not None]
            refusals = [error for error in errors if isinstance(error, RawRefused)]
            if errors and not write.refused:
                raise (refusals or errors)[0]  # a refusal is final, the other errors may pass
        if write.refused:
            key, cause = min(write.refused)
            refusal = RawRefused(cause, key=key.hex())
            refusal.refused = sorted(write.refused)
            raise refusal

    def pd_time(self, allowed: Allowed = forever) -> Callable[[], int]:
        """The PD's time in Unix seconds, from one of its timestamps and the monotonic clock."""
        at_ms = ts.physical_ms(self._retries.run(self._pd.tso, allowed))
        began = self._clock.monotonic()
        return lambda: int(at_ms + (self._clock.monotonic() - began) * 1000) // 1000

    def _parts(self, write: _Write) -> list[tuple[int, int]]:
        """Rows of the requests, by the regions that are known."""
        bounds, rows = write.columns.bounds, len(write.columns.bounds) - 1
        parts, at = list[tuple[int, int]](), 0
        while at < rows:
            try:
                end = self._end_in(write, self._region_at(self._key(write, at)).range, at, rows)
            except (TryLater, TiStreamError):  # each part looks for itself
                end = rows
            parts += m.cut(bounds, at, end, self._limits.batch_keys, self._limits.batch_bytes)
            at = end
        return parts

    def _send(self, write: _Write, start: int, end: int) -> None:
        """Write rows [start, end), region by region."""
        most = end - start
        try:
            while start < end and not write.failed.is_set():
                try:
                    some = partial(self._send_some, write, start, min(start + most, end))
                    start = self._retries.run(some, write.allowed)
                except (_TooLarge, RawRefused) as e:
                    if isinstance(e, RawRefused) and not e.is_of_entry:
                        raise
                    if most > 1:
                        most //= 2  # look for the key
                        continue
                    write.refused.append((write.columns.key(start), e.args[0]))
                    if len(write.refused) >= _REFUSED_MAX:
                        write.failed.set()
                    start += 1
                    most = end - start
        except BaseException:
            write.failed.set()
            raise

    def _send_some(self, write: _Write, start: int, end: int) -> int:
        """Write rows from `start` on that are in one region; the row after them."""
        cached = self._region_at(self._key(write, start))
        end = self._end_in(write, cached.range, start, end)
        columns, rows, ttls = write.columns, np.arange(start, end), None
        gone = rows if columns.values is None else rows[:0]
        if write.expires is not None and write.now_s is not None:
            ttls, expired = m.remaining(write.expires[start:end], write.now_s())
            gone, rows, ttls = rows[expired], rows[~expired], ttls[~expired]
        if cached.region.leader_store_id not in self._responded:
            body = wire.RawKeyRequest(key=self._key(write, start)).SerializeToString()
            self._ask(cached, "RawGet", body, wire.RawGetResponse, write.allowed)
        self._rate.take(int(columns.bounds[end] - columns.bounds[start]), write.allowed())
        if len(gone):
            body = m.delete_body(self.space, columns, gone)
            self._ask(cached, "RawBatchDelete", body, wire.RawWriteResponse, write.allowed)
        if columns.values is not None and len(rows):
            body = m.put_body(self.space, columns, rows, ttls)
            self._ask(cached, "RawBatchPut", body, wire.RawWriteResponse, write.allowed)
        return end

    def _key(self, write: _Write, row: int) -> bytes:
        return self.space.prefix + write.columns.key(row)

    def _end_in(self, write: _Write, part: KeyRange, start: int, end: int) -> int:
        """The first row above `start` that lies beyond the range."""
        low, high = start + 1, end
        while part.end and low < high:
            middle = (low + high) // 2
            if self._key(write, middle) < part.end:
                low = middle + 1
            else:
                high = middle
        return low if part.end else end

    # -- reads -----------------------------------------------------------------------------------------------------

    def get(self, key: bytes, *, allowed: Allowed = forever) -> bytes | None:
        """The value; None when there is none."""
        body = self._ask_for("RawGet", key, wire.RawGetResponse, allowed)
        return None if body.not_found else body.value

    def get_ttl(self, key: bytes, *, allowed: Allowed = forever) -> int | None:
        """Seconds that an entry has left, 0 = it never expires; None when there is none. InvalidInput where the space
        has no expiry: the question would end the store's process."""
        if not self.space.has_expiry:
            raise InvalidInput("the cluster's stores have no expiry (API V1 without TTL)")
        body = self._ask_for("RawGetKeyTTL", key, wire.RawGetKeyTtlResponse, allowed)
        return None if body.not_found else body.ttl

    def _ask_for(self, name: str, key: bytes, kind: type[A], allowed: Allowed) -> A:
        outer = self.space.prefix + key
        body = wire.RawKeyRequest(key=outer).SerializeToString()
        return self._retries.run(lambda: self._ask(self._region_at(outer), name, body, kind, allowed), allowed)

    def scan(
        self, part: KeyRange | None = None, *, page_keys: int = 1024, allowed: Allowed = forever
    ) -> Iterator[RawPage]:
        """The pairs of a range in pages, region by region; each key is read once."""
        rest: KeyRange | None = self.space.outer_range(part or KeyRange())
        while rest is not None:
            page, rest = self._retries.run(partial(self._scan, rest, min(page_keys, m.SCAN_MAX), allowed), allowed)
            if len(page.keys):
                yield page

    def _scan(self, rest: KeyRange, limit: int, allowed: Allowed) -> tuple[RawPage, KeyRange | None]:
        """(a page, what is left to read)."""
        cached = self._region_at(rest.start)
        part = cached.range.intersect(rest)
        assert part is not None
        body = wire.RawScanRequest(start_key=rest.start, limit=limit, end_key=part.end).SerializeToString()
        pairs = self._call(cached, "RawScan", body, lambda answer: m.read_scan(answer, part), allowed)
        page = RawPage(
            pa.array([self.space.inner_key(pair.key) for pair in pairs], pa.binary()),
            pa.array([pair.value for pair in pairs], pa.binary()),
        )
        at = pairs[-1].key + b"\0" if len(pairs) >= limit else part.end
        done = not at or (bool(rest.end) and not end_before(at, rest.end))
        return page, None if done else KeyRange(at, rest.end)

    def checksum(self, part: KeyRange | None = None, *, allowed: Allowed = forever) -> RawChecksum:
        """Of all pairs of a range, computed by the stores."""
        total = RawChecksum()
        rest: KeyRange | None = self.space.outer_range(part or KeyRange())
        while rest is not None:
            sums, rest = self._retries.run(partial(self._checksum, rest, allowed), allowed)
            total = RawChecksum(
                total.crc64 ^ sums.checksum, total.pairs + sums.total_kvs, total.size + sums.total_bytes
            )
        return total

    def _checksum(self, rest: KeyRange, allowed: Allowed) -> tuple[wire.RawChecksumResponse, KeyRange | None]:
        cached = self._region_at(rest.start)
        part = cached.range.intersect(rest)
        assert part is not None
        ranges = [wire.KeyRange(start_key=part.start, end_key=part.end)]
        body = wire.RawChecksumRequest(ranges=ranges).SerializeToString()
        answer = self._ask(cached, "RawChecksum", body, wire.RawChecksumResponse, allowed)
        done = not part.end or part.end == rest.end
        return answer, None if done else KeyRange(part.end, rest.end)

    def regions(self, part: KeyRange | None = None) -> list[KeyRange]:
        """The ranges of the regions of a range, in key order, as PD lists them now; there may be gaps."""
        outer = self.space.outer_range(part or KeyRange())
        at, end = outer.start, self.space.boundary(outer.end) if outer.end else b""
        key_ranges: list[KeyRange] = []
        while True:
            page = self._retries.run(
                partial(self._pd.scan_regions, self.space.boundary(at), end, _REGIONS_PAGE), forever
            )
            ranges = [r for region in page if (r := self.space.range_of(region)) is not None]
            key_ranges += ranges
            if not ranges or not ranges[-1].end or ranges[-1].end <= at or not end_before(ranges[-1].end, outer.end):
                break
            at = ranges[-1].end
        return [inner for r in key_ranges if (inner := self.space.inner_range(r)) is not None]

    # -- requests --------------------------------------------------------------------------------------------------

    def _ask(self, cached: CachedRegion, name: str, body: bytes, kind: type[A], allowed: Allowed) -> A:
        return self._call(cached, name, body, lambda answer: m.read_answer(kind, answer), allowed)

    def _call(
        self,
        cached: CachedRegion,
        name: str,
        body: bytes,
        read: Callable[[bytes], T | wire.RegionError],
        allowed: Allowed,
    ) -> T:
        """Ask the region's leader. TryLater when it does not serve."""
        region, is_write = cached.region, name in _WRITES
        channel = self._stores.channel(region.leader_store_id)
        seconds = min(allowed(), self._limits.write_s if is_write else _CALL_S)
        if seconds <= 0:
            raise OutOfTime
        until = self._clock.monotonic() + seconds
        request = self.space.head(region, seconds * _BEGIN, fills_cache=name != "RawScan") + body
        place = f"{name} of region {region.id} at store {region.leader_store_id}"
        try:
            reply = channel.unary_unary(f"/tikvpb.Tikv/{name}")(request, timeout=seconds)
            self._responded.add(region.leader_store_id)
            answer = read(reply)
        except grpc.RpcError as e:
            with self._lock:
                self._known.drop(region)
                self._stores.forget(region.leader_store_id)
                self._responded.discard(region.leader_store_id)
            if is_write:  # the store may still have it
                self._clock.wait(self._never, max(until - self._clock.monotonic(), 0.0))
            raise TryLater(f"{place}: {e.code().name} {e.details()}") from e
        except CorruptObject as e:
            raise TryLater(f"{place}: {e}") from e
        except RawRefused as e:
            if e.is_final:
                raise
            raise TryLater(f"{place}: {e}") from e
        if isinstance(answer, wire.RegionError):
            self._learn(cached, place, answer)
        return answer  # type: ignore[return-value]

    def _learn(self, cached: CachedRegion, place: str, error: wire.RegionError) -> None:
        """Note a region error, and raise what it means."""
        fault = read_fault(error)
        if fault.kind.name == "RAFT_ENTRY_TOO_LARGE":
            raise _TooLarge(f"{place}: too large for the region's log, {fault.message}")
        with self._lock:
            at_once = self._known.learn(cached.region, error)
            if fault.kind.name == "STORE_NOT_MATCH":
                self._stores.forget(cached.region.leader_store_id)
        busy_s = fault.backoff_ms / 1000 or BUSY_S if fault.kind.name == "SERVER_IS_BUSY" else 0.0
        raise TryLater(f"{place}: {fault.kind.name} {fault.message}".rstrip(), at_once=at_once, at_least_s=busy_s)

    def _region_at(self, key: bytes) -> CachedRegion:
        """The region of a key on the wire."""
        with self._lock:
            if (cached := self._known.find(key)) is not None:
                return cached
        listed = self._pd.scan_regions(self.space.boundary(key), b"", _REGIONS_PAGE)
        with self._lock:
            self._known.add(listed)
            if (cached := self._known.find(key)) is not None:
                return cached
        region = self._pd.get_region(self.space.boundary(key))
        with self._lock:
            self._known.add([] if region is None else [region])
            if (cached := self._known.find(key)) is not None:
                return cached
        raise TryLater(f"PD knows no region with a leader for the key {key.hex()}")


@dataclass(frozen=True, slots=True)
class _Write:
    """A write in progress. `failed`: a part of it has failed. `refused`: entries that the stores can never take; the
    others are written."""

    columns: Columns
    expires: Seconds | None
    now_s: Callable[[], int] | None  #: the PD's time
    allowed: Allowed
    failed: threading.Event = field(default_factory=threading.Event)
    refused: list[tuple[bytes, str]] = field(default_factory=list)


def learn_api(
    pd: PdClient,
    *,
    clock: Clock,
    tls: Tls | None = None,
    limits: WriteLimits | None = None,
    names: CheckedNames | None = None,
) -> Api:
    """The API version of the cluster's stores: they name it when they refuse a request of another one."""
    client = RawClient(pd, RawSpace(Api.V2), clock=clock, tls=tls, limits=limits, names=names)
    try:
        client.get(b"")
        return Api.V2
    except RawRefused as e:
        if (api := server_version(e.message)) is None:
            raise
        return api
    finally:
        client.close()
