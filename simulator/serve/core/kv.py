"""A store's requests beside its change feed, over the model: reads (`tikvpb.Tikv/KvScan`, `KvGet`), and finding and
ending locks (`KvScanLock`, `KvCheckTxnStatus`, `KvResolveLock`).

This module decides, as TiKV does:

- a request names a region, its version and a peer; a region error says what does not fit, with the current leader or
  regions;
- keys are plain; a scan begins in its region, and ends with it at the latest;
- a lock that the read would have to wait for is in the answer in its key's place, and the scan continues after it; it
  counts as one of `limit`;
- a transaction is checked at its primary lock. Where that has outlived its time to live by the asker's clock, or is
  missing, the check rolls the transaction back; a committed one returns its commit_ts;
- API versions: transactional keys of keyspaces need V2 and a store that has it, all others V1.

Pure; damage is CorruptObject.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from simulator.core.cluster import Cluster, Region
from simulator.core.mvcc import Lock
from simulator.loopback.core.feed_wire import region_form
from simulator.serve.core.regions import listed, peer
from tistream import ts
from tistream.codec.protobuf import BYTES, VARINT, fields, merged, message, octets, uint
from tistream.errors import CorruptObject
from tistream.keyrange import KeyRange
from tistream.model.change import Op

KV_SCAN, KV_GET = "/tikvpb.Tikv/KvScan", "/tikvpb.Tikv/KvGet"
KV_SCAN_LOCK, KV_CHECK_TXN, KV_RESOLVE_LOCK = (
    f"/tikvpb.Tikv/{name}" for name in ("KvScanLock", "KvCheckTxnStatus", "KvResolveLock")
)
_LIMIT_MAX = 10_240
_LOCK_TTL_MS = 3000
_PUT, _DELETE = 0, 1
_EXPIRED, _NOT_THERE = 1, 2  # kvrpcpb.Action
_API_V1, _API_V2 = 0, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """The target of a request."""

    region_id: int
    version: int
    store_id: int
    api_version: int


class KvReads:
    """Answers of all stores. `busy_next`: this many requests are refused because the server is busy."""

    def __init__(self, cluster: Cluster, *, api_v2: bool = False) -> None:
        self._cluster, self._api_v2 = cluster, api_v2
        self.latest_ts = cluster.now_ts  #: no timestamp above it was given
        self.primaries: dict[bytes, bytes] = {}  #: of locks whose primary is another key
        self.renewed_ms: dict[int, int] = {}  #: time to live of primary locks that their clients renew, by start_ts
        self.asynchronous: set[int] = set()  #: transactions of async commit
        self.rolled_back: set[int] = set()  #: transactions that a question ended
        self.busy_next = 0
        self.requests = 0

    def scan(self, store_id: int, data: bytes) -> bytes:
        """KvScan."""
        said = _once(data, {1: BYTES, 2: BYTES, 3: VARINT, 4: VARINT, 5: VARINT, 6: VARINT, 7: BYTES})
        context, start, end = _context(said.get(1, b"")), said.get(2, b""), said.get(7, b"")
        if error := self._region_error(store_id, context, start):
            return message(1, error)
        refusal = "reverse scans are not served" if said.get(6) else self._refusal(context, start, said.get(4, 0))
        if refusal:
            return message(2, message(1, message(3, refusal.encode()))) + message(3, message(3, refusal.encode()))
        whole = self._cluster.region(context.region_id).range
        wanted = KeyRange(start, end).intersect(whole) if not end or end > start else None
        found = self._cluster.snapshot(wanted, said.get(4, 0)) if wanted is not None else iter(())
        pairs = islice(found, min(said.get(3, 0), _LIMIT_MAX))
        return b"".join(message(2, pair) for pair in _pairs(pairs, key_only=bool(said.get(5))))

    def get(self, store_id: int, data: bytes) -> bytes:
        """KvGet."""
        said = _once(data, {1: BYTES, 2: BYTES, 3: VARINT})
        context, key, ts = _context(said.get(1, b"")), said.get(2, b""), said.get(3, 0)
        if error := self._region_error(store_id, context, key):
            return message(1, error)
        if refusal := self._refusal(context, key, ts):
            return message(2, message(3, refusal.encode()))
        found = next(self._cluster.snapshot(KeyRange(key, key + b"\0"), ts), None)
        if found is None:
            return uint(4, 1)
        return message(2, _locked(key, found[1])) if isinstance(found[1], Lock) else octets(3, found[1])

    def scan_lock(self, store_id: int, data: bytes) -> bytes:
        """KvScanLock."""
        said = _once(data, {1: BYTES, 2: VARINT, 3: BYTES, 4: VARINT, 5: BYTES})
        context, start, end = _context(said.get(1, b"")), said.get(3, b""), said.get(5, b"")
        if error := self._region_error(store_id, context, start):
            return message(1, error)
        wanted = KeyRange(start, end).intersect(self._cluster.region(context.region_id).range)
        found = self._cluster.locks(wanted, said.get(2, 0)) if wanted is not None else []
        return b"".join(message(3, self._lock_info(key, lock)) for key, lock in found[: said.get(4, 0) or None])

    def check_txn(self, store_id: int, data: bytes) -> bytes:
        """KvCheckTxnStatus."""
        said = _once(data, {1: BYTES, 2: BYTES, 3: VARINT, 4: VARINT, 5: VARINT, 6: VARINT})
        primary, start_ts = said.get(2, b""), said.get(3, 0)
        if error := self._region_error(store_id, _context(said.get(1, b"")), primary):
            return message(1, error)
        lock = self._cluster.lock(primary)
        if lock is not None and lock.start_ts == start_ts:
            ttl_ms = self.renewed_ms.get(start_ts, _LOCK_TTL_MS)
            if ts.physical_ms(said.get(5, 0)) < ts.physical_ms(start_ts) + ttl_ms:
                return uint(3, ttl_ms)
            self._cluster.rollback(primary, start_ts=start_ts)
            self.rolled_back.add(start_ts)
            return uint(5, _EXPIRED)
        for version in self._cluster.versions(primary):
            if version.start_ts == start_ts:
                return uint(4, version.commit_ts)
        if start_ts not in self.rolled_back and not said.get(6):
            return message(2, message(8, uint(1, start_ts) + octets(2, primary)))
        self.rolled_back.add(start_ts)
        return uint(5, _NOT_THERE)

    def resolve_lock(self, store_id: int, data: bytes) -> bytes:
        """KvResolveLock, of single keys."""
        said = dict(fields(data, {1: BYTES, 2: VARINT, 3: VARINT}))
        keys, start_ts, commit_ts = [k for _, k in fields(data, {5: BYTES})], said.get(2, 0), said.get(3, 0)
        for key in keys:
            if error := self._region_error(store_id, _context(said.get(1, b"")), key):
                return message(1, error)
        for key in keys:
            lock = self._cluster.lock(key)
            if lock is not None and lock.start_ts == start_ts:
                if commit_ts:
                    self._cluster.commit(key, start_ts=start_ts, commit_ts=commit_ts)
                else:
                    self._cluster.rollback(key, start_ts=start_ts)
        return b""

    def _lock_info(self, key: bytes, lock: Lock) -> bytes:
        primary = self.primaries.get(key, key)
        ttl_ms = self.renewed_ms.get(lock.start_ts, _LOCK_TTL_MS) if primary == key else _LOCK_TTL_MS
        kind = _DELETE if lock.op is Op.DELETE else _PUT
        is_async = uint(8, lock.start_ts in self.asynchronous)
        return octets(1, primary) + uint(2, lock.start_ts) + octets(3, key) + uint(4, ttl_ms) + uint(6, kind) + is_async

    # -- what does not fit -----------------------------------------------------------------------------------------

    def _region_error(self, store_id: int, context: _Context, key: bytes) -> bytes:
        """The body of an errorpb.Error; empty when everything fits."""
        self.requests += 1
        if self.busy_next:
            self.busy_next -= 1
            return octets(1, b"server is busy") + message(6, octets(1, b"told to be") + uint(2, 20))
        if context.store_id != store_id:
            return octets(1, b"store not match") + message(8, uint(1, context.store_id) + uint(2, store_id))
        if not self._cluster.has_region(context.region_id):
            return octets(1, b"region is not found") + message(3, uint(1, context.region_id))
        region = self._cluster.region(context.region_id)
        if region.store_id != store_id:
            leader = message(2, peer(region.region_id, region.store_id))
            return octets(1, b"not leader") + message(2, uint(1, region.region_id) + leader)
        if region.version != context.version:
            return octets(1, b"epoch not match") + message(5, self._current(region))
        if key not in region.range:
            bounds = octets(3, region_form(region.range.start)) + octets(4, region_form(region.range.end))
            return octets(1, b"key not in region") + message(4, octets(1, key) + uint(2, region.region_id) + bounds)
        return b""

    def _current(self, region: Region) -> bytes:
        """The region as it is, and the one before it, which a split may have made of it."""
        found = (self._cluster.region_before(region), region)
        return b"".join(message(1, listed(r, [r.store_id]).as_message()) for r in found if r is not None)

    def _refusal(self, context: _Context, key: bytes, ts: int) -> str:
        mode = _API_V2 if key.startswith(b"x") else _API_V1
        if context.api_version == _API_V2 and not self._api_v2:
            return "Error(ApiVersionNotMatched { storage_api_version: V1, req_api_version: V2 })"
        if context.api_version != mode:
            return f"Error(InvalidKeyMode {{ req_api_version: {context.api_version}, key: {key.hex().upper()} }})"
        if ts < self._cluster.floor_ts:
            return "what was there at this version is gone"
        self._cluster.protect(min(ts, self.latest_ts))
        return ""


def _pairs(found: Iterator[tuple[bytes, bytes | Lock]], *, key_only: bool) -> Iterator[bytes]:
    for key, what in found:
        if isinstance(what, Lock):
            yield message(1, _locked(key, what))
        else:
            yield octets(2, key) + (b"" if key_only else octets(3, what))


def _locked(key: bytes, lock: Lock) -> bytes:
    """A KeyError that names a lock; the model knows no primary key, so that each is its own."""
    kind = _DELETE if lock.op is Op.DELETE else _PUT
    who = octets(1, key) + uint(2, lock.start_ts) + octets(3, key)
    return message(1, who + uint(4, _LOCK_TTL_MS) + uint(6, kind))


def _context(data: bytes) -> _Context:
    said = merged(data, {1: VARINT, 2: BYTES, 3: BYTES, 21: VARINT})
    return _Context(
        region_id=said.get(1, 0),
        version=merged(said.get(2, b""), {2: VARINT}).get(2, 0),
        store_id=merged(said.get(3, b""), {2: VARINT}).get(2, 0),
        api_version=said.get(21, 0),
    )


def _once(data: bytes, known: Mapping[int, int]) -> dict[int, Any]:
    """The known fields; CorruptObject when one comes twice, which no writer does."""
    out: dict[int, Any] = {}
    for number, value in fields(data, known):
        if number in out:
            raise CorruptObject("a field of a request comes twice", field=number)
        out[number] = value
    return out
