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

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import grpc
import numpy as np
import pyarrow as pa

from tistream import ts
from tistream.clock import Clock
from tistream.errors import CorruptObject, ErrorKind, InvalidInput, StoreUnavailable, TiStreamError
from tistream.keyrange import KeyRange, end_before
from tistream.runtime.service import Backoff
from tistream.tikv.channels import Channels, Tls
from tistream.tikv.core import raw_messages as m
from tistream.tikv.core import wire
from tistream.tikv.core.api_versions import Api, server_version
from tistream.tikv.core.kv_messages import read_fault
from tistream.tikv.core.raw_messages import Columns, RawRefused, RawSpace, Seconds
from tistream.tikv.core.region_map import Known, RegionMap
from tistream.tikv.pd import PdClient

Allowed = Callable[[], float]
"""Seconds in which a request may still be in progress; at or below 0 none may be sent."""
A = TypeVar("A")
T = TypeVar("T")

_CALL_S = 20.0
_BEGIN = 0.8  #: of the time of a request, by which a store must have begun with it
_WRITES = frozenset({"RawBatchPut", "RawBatchDelete"})
_BUSY_S = 2.0
_AT_ONCE_MAX = 3  #: in a row
_REGIONS_PAGE = 128
_REFUSED_MAX = 1000  #: entries, after which the rest of a write is not tried


class OutOfTime(StoreUnavailable):
    """The time in which a request may be sent is over."""

    code = "TS-1103"


class _Later(Exception):
    """The region cannot be asked now; retry."""

    def __init__(self, why: str, *, at_once: bool = False, at_least_s: float = 0.0) -> None:
        self.at_once, self.at_least_s = at_once, at_least_s
        super().__init__(why)


class _TooLarge(Exception):
    """A write is too large for the region's log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How much is sent at once, and how soon again."""

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


def forever() -> float:
    """No limit in time."""
    return float("inf")


class RawClient:
    """One cluster's RawKV in a space of keys. Thread-safe; `close` it."""

    def __init__(
        self,
        pd: PdClient,
        space: RawSpace,
        *,
        clock: Clock,
        tls: Tls | None = None,
        pace: Pace | None = None,
        rand: random.Random | None = None,
        notice: Callable[[str], object] = lambda _: None,
        connection: int | None = None,
    ) -> None:
        """`notice` gets the reason of each retry. `connection`: see `Channels`."""
        self.space = space
        self._pd, self._clock, self._rand, self._notice = pd, clock, rand or random.Random(), notice
        self._pace = pace or Pace()
        self._channels = Channels(tls, connection)
        self._lock = threading.Lock()
        self._known = RegionMap(space.range_of)
        self._addresses: dict[int, str] = {}
        self._heard: set[int] = set()  # stores that have answered the last request
        self._free_at = clock.monotonic()  # when the rate limit lets the next request pass
        self._never = threading.Event()
        self.problem = ""  #: reason of the latest retry

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
        write = _Write(columns, expires, None if expires is None else self._pd_time(allowed), allowed)
        parts = self._parts(write)
        if self._pace.concurrency == 1 or len(parts) == 1:
            for start, end in parts:
                self._send(write, start, end)
        else:
            # of this write: a client that waits has no threads, and a process may have very many of them
            with ThreadPoolExecutor(min(self._pace.concurrency, len(parts)), thread_name_prefix="raw-kv") as threads:
                calls = [threads.submit(self._send, write, start, end) for start, end in parts]
            errors = [error for call in calls if (error := call.exception()) is not None]
            if errors and not write.refused:  # all calls have ended
                raise min(errors, key=lambda e: not isinstance(e, RawRefused))
        if write.refused:
            key, cause = min(write.refused)
            refusal = RawRefused(cause, key=key.hex())
            refusal.refused = sorted(write.refused)
            raise refusal

    def _pd_time(self, allowed: Allowed) -> Callable[[], int]:
        """The PD's time in Unix seconds, from one of its timestamps and the monotonic clock."""
        at_ms = ts.physical_ms(self._retry(self._pd.tso, allowed))
        began = self._clock.monotonic()
        return lambda: int(at_ms + (self._clock.monotonic() - began) * 1000) // 1000

    def _parts(self, write: _Write) -> list[tuple[int, int]]:
        """Rows of the requests, by the regions that are known."""
        bounds, rows = write.columns.bounds, len(write.columns.bounds) - 1
        parts, at = list[tuple[int, int]](), 0
        while at < rows:
            try:
                end = self._end_in(write, self._region_at(self._key(write, at)).range, at, rows)
            except (_Later, TiStreamError):  # each part looks for itself
                end = rows
            parts += m.cut(bounds, at, end, self._pace.batch_keys, self._pace.batch_bytes)
            at = end
        return parts

    def _send(self, write: _Write, start: int, end: int) -> None:
        """Write rows [start, end), region by region."""
        most = end - start
        try:
            while start < end and not write.failed.is_set():
                try:
                    some = partial(self._send_some, write, start, min(start + most, end))
                    start = self._retry(some, write.allowed)
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
        known = self._region_at(self._key(write, start))
        end = self._end_in(write, known.range, start, end)
        columns, rows, ttls = write.columns, np.arange(start, end), None
        gone = rows if columns.values is None else rows[:0]
        if write.expires is not None and write.now_s is not None:
            ttls, expired = m.remaining(write.expires[start:end], write.now_s())
            gone, rows, ttls = rows[expired], rows[~expired], ttls[~expired]
        if known.region.leader_store_id not in self._heard:
            body = wire.RawKeyRequest(key=self._key(write, start)).SerializeToString()
            self._ask(known, "RawGet", body, wire.RawGetResponse, write.allowed)
        self._limit_rate(int(columns.bounds[end] - columns.bounds[start]), write.allowed)
        if len(gone):
            body = m.delete_body(self.space, columns, gone)
            self._ask(known, "RawBatchDelete", body, wire.RawWriteResponse, write.allowed)
        if columns.values is not None and len(rows):
            body = m.put_body(self.space, columns, rows, ttls)
            self._ask(known, "RawBatchPut", body, wire.RawWriteResponse, write.allowed)
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

    def _limit_rate(self, size: int, allowed: Allowed) -> None:
        if not self._pace.rate_bytes_s:
            return
        with self._lock:
            due = max(self._free_at, self._clock.monotonic())
            self._free_at = due + size / self._pace.rate_bytes_s
        pause_s = min(due - self._clock.monotonic(), allowed())
        if pause_s > 0:
            self._clock.wait(self._never, pause_s)

    # -- reads -----------------------------------------------------------------------------------------------------

    def get(self, key: bytes, *, allowed: Allowed = forever) -> bytes | None:
        """The value; None when there is none."""
        found = self._ask_for("RawGet", key, wire.RawGetResponse, allowed)
        return None if found.not_found else found.value

    def get_ttl(self, key: bytes, *, allowed: Allowed = forever) -> int | None:
        """Seconds that an entry has left, 0 = it never expires; None when there is none. InvalidInput where the space
        has no expiry: the question would end the store's process."""
        if not self.space.has_expiry:
            raise InvalidInput("the cluster's stores have no expiry (API V1 without TTL)")
        found = self._ask_for("RawGetKeyTTL", key, wire.RawGetKeyTtlResponse, allowed)
        return None if found.not_found else found.ttl

    def _ask_for(self, name: str, key: bytes, kind: type[A], allowed: Allowed) -> A:
        outer = self.space.prefix + key
        body = wire.RawKeyRequest(key=outer).SerializeToString()
        return self._retry(lambda: self._ask(self._region_at(outer), name, body, kind, allowed), allowed)

    def scan(
        self, part: KeyRange | None = None, *, page_keys: int = 1024, allowed: Allowed = forever
    ) -> Iterator[RawPage]:
        """The pairs of a range in pages, region by region; each key is read once."""
        rest: KeyRange | None = self.space.outer_range(part or KeyRange())
        while rest is not None:
            page, rest = self._retry(partial(self._scan, rest, min(page_keys, m.SCAN_MAX), allowed), allowed)
            if len(page.keys):
                yield page

    def _scan(self, rest: KeyRange, limit: int, allowed: Allowed) -> tuple[RawPage, KeyRange | None]:
        """(a page, what is left to read)."""
        known = self._region_at(rest.start)
        part = known.range.intersect(rest)
        assert part is not None
        body = wire.RawScanRequest(start_key=rest.start, limit=limit, end_key=part.end).SerializeToString()
        pairs = self._call(known, "RawScan", body, lambda answer: m.read_scan(answer, part), allowed)
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
            found, rest = self._retry(partial(self._checksum, rest, allowed), allowed)
            total = RawChecksum(
                total.crc64 ^ found.checksum, total.pairs + found.total_kvs, total.size + found.total_bytes
            )
        return total

    def _checksum(self, rest: KeyRange, allowed: Allowed) -> tuple[wire.RawChecksumResponse, KeyRange | None]:
        known = self._region_at(rest.start)
        part = known.range.intersect(rest)
        assert part is not None
        ranges = [wire.KeyRange(start_key=part.start, end_key=part.end)]
        body = wire.RawChecksumRequest(ranges=ranges).SerializeToString()
        found = self._ask(known, "RawChecksum", body, wire.RawChecksumResponse, allowed)
        done = not part.end or part.end == rest.end
        return found, None if done else KeyRange(part.end, rest.end)

    def regions(self, part: KeyRange | None = None) -> list[KeyRange]:
        """The ranges of the regions of a range, in key order, as PD lists them now; there may be gaps."""
        outer = self.space.outer_range(part or KeyRange())
        at, end = outer.start, self.space.boundary(outer.end) if outer.end else b""
        found: list[KeyRange] = []
        while True:
            page = self._retry(partial(self._pd.scan_regions, self.space.boundary(at), end, _REGIONS_PAGE), forever)
            ranges = [r for region in page if (r := self.space.range_of(region)) is not None]
            found += ranges
            if not ranges or not ranges[-1].end or ranges[-1].end <= at or not end_before(ranges[-1].end, outer.end):
                break
            at = ranges[-1].end
        return [inner for r in found if (inner := self.space.inner_range(r)) is not None]

    # -- requests --------------------------------------------------------------------------------------------------

    def _ask(self, known: Known, name: str, body: bytes, kind: type[A], allowed: Allowed) -> A:
        return self._call(known, name, body, lambda answer: m.read_answer(kind, answer), allowed)

    def _call(
        self,
        known: Known,
        name: str,
        body: bytes,
        read: Callable[[bytes], T | wire.RegionError],
        allowed: Allowed,
    ) -> T:
        """Ask the region's leader. _Later when it does not serve."""
        region, is_write = known.region, name in _WRITES
        channel = self._channel(region.leader_store_id)
        seconds = min(allowed(), self._pace.write_s if is_write else _CALL_S)
        if seconds <= 0:
            raise OutOfTime
        until = self._clock.monotonic() + seconds
        request = self.space.head(region, seconds * _BEGIN, fills_cache=name != "RawScan") + body
        place = f"{name} of region {region.id} at store {region.leader_store_id}"
        try:
            reply = channel.unary_unary(f"/tikvpb.Tikv/{name}")(request, timeout=seconds)
            self._heard.add(region.leader_store_id)
            answer = read(reply)
        except grpc.RpcError as e:
            with self._lock:
                self._known.drop(region)
                self._addresses.pop(region.leader_store_id, None)
                self._heard.discard(region.leader_store_id)
            if is_write:  # the store may still have it
                self._clock.wait(self._never, max(until - self._clock.monotonic(), 0.0))
            raise _Later(f"{place}: {e.code().name} {e.details()}") from e
        except CorruptObject as e:
            raise _Later(f"{place}: {e}") from e
        except RawRefused as e:
            if e.is_final:
                raise
            raise _Later(f"{place}: {e}") from e
        if isinstance(answer, wire.RegionError):
            self._learn(known, place, answer)
        return answer  # type: ignore[return-value]

    def _learn(self, known: Known, place: str, error: wire.RegionError) -> None:
        """Note a region error, and raise what it means."""
        fault = read_fault(error)
        if fault.kind.name == "RAFT_ENTRY_TOO_LARGE":
            raise _TooLarge(f"{place}: too large for the region's log, {fault.message}")
        with self._lock:
            at_once = self._known.learn(known.region, error)
            if fault.kind.name == "STORE_NOT_MATCH":
                self._addresses.pop(known.region.leader_store_id, None)
        busy_s = fault.backoff_ms / 1000 or _BUSY_S if fault.kind.name == "SERVER_IS_BUSY" else 0.0
        raise _Later(f"{place}: {fault.kind.name} {fault.message}".rstrip(), at_once=at_once, at_least_s=busy_s)

    def _retry(self, attempt: Callable[[], T], allowed: Allowed) -> T:
        """Until it succeeds, with growing pauses."""
        pace = self._pace
        backoff = Backoff(first_s=pace.backoff_base_s, max_s=pace.backoff_max_s, rand=self._rand)
        until, at_once = self._clock.monotonic() + pace.patience_s, 0
        while True:
            if allowed() <= 0:
                raise OutOfTime
            at_least_s, again = 0.0, False
            try:
                return attempt()
            except _Later as e:
                self.problem, at_least_s, again = str(e), e.at_least_s, e.at_once
            except OutOfTime:
                raise
            except TiStreamError as e:
                if e.kind is not ErrorKind.RETRY:
                    raise
                self.problem = str(e)
            self._notice(self.problem)
            if self._clock.monotonic() >= until:
                raise StoreUnavailable("a cluster does not serve RawKV", cause=self.problem)
            at_once = at_once + 1 if again else 0
            if not 0 < at_once <= _AT_ONCE_MAX:
                self._clock.wait(self._never, min(max(backoff.next_s(), at_least_s), max(allowed(), 0.0)))

    def _region_at(self, key: bytes) -> Known:
        """The region of a key on the wire."""
        with self._lock:
            if (found := self._known.find(key)) is not None:
                return found
        listed = self._pd.scan_regions(self.space.boundary(key), b"", _REGIONS_PAGE)
        with self._lock:
            self._known.add(listed)
            if (found := self._known.find(key)) is not None:
                return found
        region = self._pd.get_region(self.space.boundary(key))
        with self._lock:
            self._known.add([] if region is None else [region])
            if (found := self._known.find(key)) is not None:
                return found
        raise _Later(f"PD knows no region with a leader for the key {key.hex()}")

    def _channel(self, store_id: int) -> grpc.Channel:
        address = self._addresses.get(store_id)
        if address is None:
            address = next((store.address for store in self._pd.stores() if store.id == store_id), None)
            if address is None:
                raise _Later(f"PD knows no store {store_id}")
            self._addresses[store_id] = address
        return self._channels.at(address)


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


def learn_api(pd: PdClient, *, clock: Clock, tls: Tls | None = None, pace: Pace | None = None) -> Api:
    """The API version of the cluster's stores: they name it when they refuse a request of another one."""
    client = RawClient(pd, RawSpace(Api.V2), clock=clock, tls=tls, pace=pace)
    try:
        client.get(b"")
        return Api.V2
    except RawRefused as e:
        if (found := server_version(e.message)) is None:
            raise
        return found
    finally:
        client.close()
