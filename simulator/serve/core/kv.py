"""A store's requests besides its change feed, over the model: reads (`tikvpb.Tikv/KvScan`, `KvGet`), and finding and
ending locks (`KvScanLock`, `KvCheckTxnStatus`, `KvCheckSecondaryLocks`, `KvResolveLock`).

This module decides, as TiKV does:

- a request names a region, its version and a peer; a region error says what does not fit, with the current leader or
  regions;
- keys are plain; a scan begins in its region, and ends with it at the latest;
- a lock that the read would have to wait for is in the answer in its key's place, and the scan continues after it; it
  counts as one of `limit`;
- clients that are alive renew their locks: however slow a transaction is, no question ends it;
- a transaction is checked at its primary lock. Where that has outlived its time to live by the asker's clock, or is
  missing, the check rolls the transaction back; a committed one returns its commit_ts. A primary lock of async commit
  is returned with its secondaries instead, expired or not, unless the asker forces two phases;
- a secondary lock of async commit that is missing when it is asked for cannot be written any more;
- API versions: transactional keys of keyspaces need V2 and a store that has it, all others V1.

Pure; damage is CorruptObject.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from simulator.core.cluster import Cluster, Region
from simulator.core.mvcc import Lock
from simulator.loopback.core.feed_wire import region_form
from simulator.serve.core.regions import meta, peer
from tistream import ts
from tistream.codec.protobuf import parse
from tistream.keyrange import KeyRange
from tistream.model.change import Op
from tistream.tikv.core import wire
from tistream.tikv.core.api_versions import Api, Interface, refusal, serves

KV_SCAN, KV_GET = "/tikvpb.Tikv/KvScan", "/tikvpb.Tikv/KvGet"
KV_SCAN_LOCK, KV_CHECK_TXN, KV_CHECK_SECONDARIES, KV_RESOLVE_LOCK = (
    f"/tikvpb.Tikv/{name}" for name in ("KvScanLock", "KvCheckTxnStatus", "KvCheckSecondaryLocks", "KvResolveLock")
)
_LIMIT_MAX = 10_240
_LOCK_TTL_MS = 3000
_PUT, _DELETE = 0, 1
_EXPIRED, _NOT_THERE = 1, 2  # kvrpcpb.Action


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncLock:
    """What a lock of async commit says besides its change."""

    min_commit_ts: int
    secondaries: tuple[bytes, ...] = ()  #: of the primary lock


class KvReads:
    """Answers of all stores. `busy_next`: this many requests are refused because the server is busy."""

    def __init__(self, cluster: Cluster, api: Api = Api.V1) -> None:
        self._cluster, self._api = cluster, api
        self.latest_ts = cluster.now_ts  #: no timestamp above it was given
        self.primaries: dict[bytes, bytes] = {}  #: of locks whose primary is another key
        self.is_alive: Callable[[int], bool] = lambda start_ts: False  #: whether the client of a transaction renews it
        self.renewed_ms: dict[int, int] = {}  #: time to live of primary locks that their clients renew, by start_ts
        self.asynchronous: dict[tuple[bytes, int], AsyncLock] = {}  #: locks of async commit, by key and start_ts
        self.rolled_back: set[int] = set()  #: transactions that a question ended
        self.refused: set[tuple[bytes, int]] = set()  #: (key, start_ts) that have a rollback: no lock is written there
        self.busy_next = 0
        self.requests = 0
        self.boundary = region_form  #: of regions, as stores and PD write them

    def scan(self, store_id: int, data: bytes) -> bytes:
        """KvScan."""
        asked = parse(wire.ScanRequest, data)
        if error := self.region_error(store_id, asked.context, asked.start_key):
            return wire.ScanResponse(region_error=error).SerializeToString()
        reverse = "reverse scans are not served" if asked.reverse else ""
        if refusal := reverse or self._refusal(asked.context, asked.start_key, asked.version):
            refused = wire.KeyError(abort=refusal.encode())
            return wire.ScanResponse(pairs=[wire.KvPair(error=refused)], error=refused).SerializeToString()
        whole, start, end = self._cluster.region(asked.context.region_id).range, asked.start_key, asked.end_key
        wanted = KeyRange(start, end).intersect(whole) if not end or end > start else None
        snapshot = self._cluster.snapshot(wanted, asked.version) if wanted is not None else iter(())
        pairs = islice(snapshot, min(asked.limit, _LIMIT_MAX))
        return wire.ScanResponse(pairs=_pairs(pairs, key_only=asked.key_only)).SerializeToString()

    def get(self, store_id: int, data: bytes) -> bytes:
        """KvGet."""
        asked = parse(wire.GetRequest, data)
        if error := self.region_error(store_id, asked.context, asked.key):
            return wire.GetResponse(region_error=error).SerializeToString()
        if refusal := self._refusal(asked.context, asked.key, asked.version):
            return wire.GetResponse(error=wire.KeyError(abort=refusal.encode())).SerializeToString()
        pair = next(self._cluster.snapshot(KeyRange(asked.key, asked.key + b"\0"), asked.version), None)
        if pair is None:
            return wire.GetResponse(not_found=True).SerializeToString()
        if isinstance(pair[1], Lock):
            return wire.GetResponse(error=_locked(asked.key, pair[1])).SerializeToString()
        return wire.GetResponse(value=pair[1]).SerializeToString()

    def scan_lock(self, store_id: int, data: bytes) -> bytes:
        """KvScanLock."""
        asked = parse(wire.ScanLockRequest, data)
        if error := self.region_error(store_id, asked.context, asked.start_key):
            return wire.ScanLockResponse(region_error=error).SerializeToString()
        whole = self._cluster.region(asked.context.region_id).range
        wanted = KeyRange(asked.start_key, asked.end_key).intersect(whole)
        locked = self._cluster.locks(wanted, asked.max_version) if wanted is not None else []
        locks = [self._lock_info(key, lock) for key, lock in locked[: asked.limit or None]]
        return wire.ScanLockResponse(locks=locks).SerializeToString()

    def check_txn(self, store_id: int, data: bytes) -> bytes:
        """KvCheckTxnStatus."""
        asked = parse(wire.CheckTxnStatusRequest, data)
        return self._check_txn(store_id, asked).SerializeToString()

    def _check_txn(self, store_id: int, asked: wire.CheckTxnStatusRequest) -> wire.CheckTxnStatusResponse:
        primary, start_ts = asked.primary_key, asked.lock_ts
        if error := self.region_error(store_id, asked.context, primary):
            return wire.CheckTxnStatusResponse(region_error=error)
        lock = self._cluster.lock(primary)
        if lock is not None and lock.start_ts == start_ts:
            ttl_ms, info = self._ttl_ms(start_ts), self._lock_info(primary, lock)
            if info.use_async_commit and not asked.force_sync_commit:
                return wire.CheckTxnStatusResponse(lock_ttl=ttl_ms, lock_info=info)
            if ts.physical_ms(asked.current_ts) < ts.physical_ms(start_ts) + ttl_ms:
                return wire.CheckTxnStatusResponse(lock_ttl=ttl_ms, lock_info=info)
            self._roll_back(primary, start_ts)
            self.rolled_back.add(start_ts)
            return wire.CheckTxnStatusResponse(action=_EXPIRED)
        for version in self._cluster.versions(primary):
            if version.start_ts == start_ts:
                return wire.CheckTxnStatusResponse(commit_version=version.commit_ts)
        if (primary, start_ts) in self.refused:
            return wire.CheckTxnStatusResponse()
        if start_ts not in self.rolled_back and not asked.rollback_if_not_exist:
            missing = wire.TxnNotFound(start_ts=start_ts, primary_key=primary)
            return wire.CheckTxnStatusResponse(error=wire.KeyError(txn_not_found=missing))
        self.rolled_back.add(start_ts)
        self.refused.add((primary, start_ts))
        return wire.CheckTxnStatusResponse(action=_NOT_THERE)

    def check_secondaries(self, store_id: int, data: bytes) -> bytes:
        """KvCheckSecondaryLocks."""
        asked = parse(wire.CheckSecondaryLocksRequest, data)
        start_ts, locks = asked.start_version, list[wire.LockInfo]()
        for key in asked.keys:
            if error := self.region_error(store_id, asked.context, key):
                return wire.CheckSecondaryLocksResponse(region_error=error).SerializeToString()
            lock = self._cluster.lock(key)
            if lock is None or lock.start_ts != start_ts:
                commit_ts = self._committed(key, start_ts)
                if not commit_ts:
                    self._roll_back(key, start_ts)
                return wire.CheckSecondaryLocksResponse(commit_ts=commit_ts).SerializeToString()
            locks.append(self._lock_info(key, lock))
        return wire.CheckSecondaryLocksResponse(locks=locks).SerializeToString()

    def _committed(self, key: bytes, start_ts: int) -> int:
        return next((v.commit_ts for v in self._cluster.versions(key) if v.start_ts == start_ts), 0)

    def _roll_back(self, key: bytes, start_ts: int) -> None:
        self._cluster.rollback(key, start_ts=start_ts)
        self.refused.add((key, start_ts))

    def resolve_lock(self, store_id: int, data: bytes) -> bytes:
        """KvResolveLock, of single keys; without any, of all locks of the transaction in the region."""
        asked = parse(wire.ResolveLockRequest, data)
        for key in asked.keys:
            if error := self.region_error(store_id, asked.context, key):
                return wire.ResolveLockResponse(region_error=error).SerializeToString()
        start_ts, commit_ts = asked.start_version, asked.commit_version
        keys = list(asked.keys)
        if not keys:
            if error := self.region_error(store_id, asked.context, None):
                return wire.ResolveLockResponse(region_error=error).SerializeToString()
            keys = [k for k, _ in self._cluster.locks(self._cluster.region(asked.context.region_id).range, start_ts)]
        for key in keys:
            lock = self._cluster.lock(key)
            if lock is not None and lock.start_ts == start_ts:
                if commit_ts:
                    self._cluster.commit(key, start_ts=start_ts, commit_ts=commit_ts)
                else:
                    self._roll_back(key, start_ts)
        return b""

    def _lock_info(self, key: bytes, lock: Lock) -> wire.LockInfo:
        primary = self.primaries.get(key, key)
        info = _lock(key, lock)
        info.primary_lock = primary
        if (said := self.asynchronous.get((key, lock.start_ts))) is not None:
            info.use_async_commit, info.min_commit_ts = True, said.min_commit_ts
            info.secondaries.extend(said.secondaries)
        if primary == key:
            info.lock_ttl = self._ttl_ms(lock.start_ts)
        return info

    def _ttl_ms(self, start_ts: int) -> int:
        """The time to live of a primary lock, which counts from the start of its transaction."""
        age_ms = ts.physical_ms(self.latest_ts) - ts.physical_ms(start_ts) if self.is_alive(start_ts) else 0
        return age_ms + self.renewed_ms.get(start_ts, _LOCK_TTL_MS)

    # -- errors -----------------------------------------------------------------------------------------

    def region_error(self, store_id: int, context: wire.Context, key: bytes | None) -> wire.RegionError | None:
        """What does not fit; None when everything does. `key` None: a request for the whole region."""
        self.requests += 1
        asked_store = context.peer.store_id
        if self.busy_next:
            self.busy_next -= 1
            busy = wire.ServerIsBusy(reason=b"told to be", backoff_ms=20)
            return wire.RegionError(message=b"server is busy", server_is_busy=busy)
        if asked_store != store_id:
            other = wire.StoreNotMatch(request_store_id=asked_store, actual_store_id=store_id)
            return wire.RegionError(message=b"store not match", store_not_match=other)
        if not self._cluster.has_region(context.region_id):
            gone = wire.RegionNotFound(region_id=context.region_id)
            return wire.RegionError(message=b"region is not found", region_not_found=gone)
        region = self._cluster.region(context.region_id)
        if region.store_id != store_id:
            leader = peer(region.region_id, region.store_id)
            led = wire.NotLeader(region_id=region.region_id, leader=leader)
            return wire.RegionError(message=b"not leader", not_leader=led)
        if region.version != context.region_epoch.version:
            return wire.RegionError(message=b"epoch not match", epoch_not_match=self._current(region))
        if key is not None and key not in region.range:
            outside = wire.KeyNotInRegion(
                key=key,
                region_id=region.region_id,
                start_key=self.boundary(region.range.start),
                end_key=self.boundary(region.range.end),
            )
            return wire.RegionError(message=b"key not in region", key_not_in_region=outside)
        return None

    def _current(self, region: Region) -> wire.EpochNotMatch:
        """The region as it is, and the one before it, which a split may have made of it."""
        regions = (self._cluster.region_before(region), region)
        return wire.EpochNotMatch(
            current_regions=[meta(r, [r.store_id], self.boundary) for r in regions if r is not None]
        )

    def _refusal(self, context: wire.Context, key: bytes, ts: int) -> str:
        asked = list(Api)[context.api_version]
        if refusal(self._api, asked, Interface.TXN, key):
            storage = f"storage_api_version: {self._api}"
            if serves(self._api, asked, Interface.TXN):
                return f'Error(InvalidKeyMode {{ cmd: scan, {storage}, key: "{key.hex().upper()}" }})'
            return f"Error(ApiVersionNotMatched {{ cmd: scan, {storage}, req_api_version: {asked} }})"
        if ts < self._cluster.floor_ts:
            return "what was there at this version is gone"
        self._cluster.protect(min(ts, self.latest_ts))
        return ""


def _pairs(pairs: Iterator[tuple[bytes, bytes | Lock]], *, key_only: bool) -> Iterator[wire.KvPair]:
    for key, what in pairs:
        if isinstance(what, Lock):
            yield wire.KvPair(error=_locked(key, what))
        else:
            yield wire.KvPair(key=key, value=b"" if key_only else what)


def _locked(key: bytes, lock: Lock) -> wire.KeyError:
    return wire.KeyError(locked=_lock(key, lock))


def _lock(key: bytes, lock: Lock) -> wire.LockInfo:
    """The model knows no primary key, so that each is its own."""
    kind = _DELETE if lock.op is Op.DELETE else _PUT
    return wire.LockInfo(primary_lock=key, lock_version=lock.start_ts, key=key, lock_ttl=_LOCK_TTL_MS, lock_type=kind)
