"""Finds locks that hold resolved ts back, reports them, and resolves those of dead clients.

    regions whose resolved ts is 20 s behind -> KvScanLock -> KvCheckTxnStatus at the primary -> KvResolveLock

A dead client's lock stays until it is resolved by a reader or by the cluster's garbage collection, which the GC barrier
may keep from getting there. Meanwhile the region's resolved ts stays at the lock's start_ts, and with it the tenant's
watermark. The rules are those of every TiKV client:

- a transaction's primary lock is checked only when one of its locks has outlived its time to live by PD's clock; a live
  client renews it there, and then nothing is done;
- the store decides the transaction's outcome: committed, or rolled back by that check. The locks of the region follow
  it, key by key;
- transactions of async commit are reported and left alone: all of their locks decide, and readers and TiDB resolve
  them;
- locks without a change (SELECT FOR UPDATE, pessimistic ones) hold nothing back.

With `resolve` false locks are reported and nothing is written to the cluster. Faults of a store or of PD are reported
too, and retried at the next check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeVar

import grpc
import structlog

from pusher.tikv.core.effects import HeldBack
from tistream import ts as tso
from tistream.errors import CorruptObject, ErrorKind, StoreUnavailable, TiStreamError
from tistream.keyrange import KeyRange
from tistream.tikv.channels import Channels, Tls
from tistream.tikv.core.keyspaces import WHOLE, KeyspaceKeys
from tistream.tikv.core.kv_messages import ApiVersion, KvRefused, RegionFault
from tistream.tikv.core.lock_messages import (
    HeldLock,
    TxnStatus,
    check_txn_request,
    read_check_txn,
    read_resolve_lock,
    read_scan_lock,
    resolve_lock_request,
    scan_lock_request,
)
from tistream.tikv.core.pd_messages import Region
from tistream.tikv.core.regions import plain_range, region_form
from tistream.tikv.kv_scan import RegionPd

T = TypeVar("T")
log = structlog.get_logger(__name__)

BEHIND_S = 20.0  #: a resolved ts this far behind PD's time is stalled
REGIONS_MAX = 64  #: checked at once, those furthest behind first
LOCKS_MAX = 1024  #: of a region at once
_TIKV = "/tikvpb.Tikv/"
_CALL_S = 10.0


class LockResolver:
    """Used from one thread, except `problems`; `close` it."""

    def __init__(
        self,
        pd: RegionPd,
        *,
        keyspace: KeyspaceKeys = WHOLE,
        api_keyspace: int | None = None,
        tls: Tls | None = None,
        resolve: bool = True,
    ) -> None:
        """`pd` and all ranges use the keyspace's keys. `api_keyspace`: that requests name although keys are whole."""
        self._pd, self._keyspace, self._resolve = pd, keyspace, resolve
        self._named_id = keyspace.id if api_keyspace is None else api_keyspace
        self._api = ApiVersion.V1 if self._named_id is None else ApiVersion.V2
        self._channels = Channels(tls)
        self._addresses: dict[int, str] = {}
        self.problems: tuple[str, ...] = ()  #: locks that hold something back, and why they stay
        self.resolved = 0  #: number of resolved locks

    def check(self, parts: Sequence[HeldBack]) -> None:
        """Check the pieces that are furthest behind. Raises only errors that are not transient."""
        found: list[str] = []
        now_ts = self._pd.tso() if parts else 0
        for part in sorted(parts, key=lambda p: p.resolved_ts)[:REGIONS_MAX]:
            try:
                found += self._check(part, now_ts)
            except TiStreamError as e:
                if not isinstance(e, KvRefused | CorruptObject) and e.kind is not ErrorKind.RETRY:
                    raise
                found.append(f"region {part.region_id}: its locks cannot be checked: {e}")
        self.problems = tuple(found)

    def locks(self, part: KeyRange, max_ts: int) -> tuple[Region, list[HeldLock]]:
        """The region at the start of `part`, and the locks on their common keys that hold a resolved ts back."""
        region, common = self._region_of(part)
        asked = self._keyspace.outer_range(common)
        request = scan_lock_request(region, asked, max_ts, LOCKS_MAX, self._api, self._named_id)
        found = self._ask(region, "KvScanLock", request, lambda answer: read_scan_lock(answer, asked))
        return region, [lock for lock in found if lock.holds_resolved_ts]

    def close(self) -> None:
        self._channels.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _check(self, part: HeldBack, now_ts: int) -> list[str]:
        limit_ts = now_ts - (int(BEHIND_S * 1000) << tso.LOGICAL_BITS)
        region, locks = self.locks(part.range, limit_ts)
        remaining = []
        for start_ts, group in groupby(sorted(locks, key=lambda lock: lock.start_ts), key=lambda lock: lock.start_ts):
            of_txn = list(group)
            outcome = self._settle(region, of_txn, now_ts)
            if outcome:
                words = describe(region.id, of_txn[0], now_ts)
                more = f", and {len(of_txn) - 1} more keys" if len(of_txn) > 1 else ""
                remaining.append(f"{words}{more}: {outcome}")
            else:
                log.info("locks of a dead client resolved", region=region.id, start_ts=start_ts, keys=len(of_txn))
                self.resolved += len(of_txn)
        return remaining

    def _settle(self, region: Region, locks: Sequence[HeldLock], now_ts: int) -> str:
        """Resolve the locks of one transaction in a region; why they stay, or ""."""
        lock = locks[0]
        if not self._resolve:
            return "not resolved (--no-resolve-locks)"
        if tso.physical_ms(now_ts) - tso.physical_ms(lock.start_ts) < max(each.ttl_ms for each in locks):
            return "its time to live has not expired"
        if any(each.is_async for each in locks):
            return "async commit, resolved by a reader or TiDB"
        inner = self._keyspace.inner_key(lock.primary)
        at, _ = self._region_of(KeyRange(inner, inner + b"\0"))
        request = check_txn_request(at, lock.primary, lock.start_ts, now_ts, self._api, self._named_id)
        status: TxnStatus = self._ask(at, "KvCheckTxnStatus", request, read_check_txn)
        if status.ttl_ms:
            return "its client is alive"
        keys = [each.key for each in locks]
        request = resolve_lock_request(region, lock.start_ts, status.commit_ts, keys, self._api, self._named_id)
        self._ask(region, "KvResolveLock", request, read_resolve_lock)
        return ""

    def _region_of(self, part: KeyRange) -> tuple[Region, KeyRange]:
        region = self._pd.get_region(region_form(part.start))
        region_range = plain_range(region) if region is not None else None
        common = region_range.intersect(part) if region_range is not None else None
        if region is None or not region.leader_store_id or common is None or common.start != part.start:
            raise StoreUnavailable("PD knows no leader", key=part.start)
        return region, common

    def _ask(self, region: Region, method: str, request: bytes, read: Callable[[bytes], T | RegionFault]) -> T:
        store_id = region.leader_store_id
        try:
            answer = self._channels.at(self._address(store_id)).unary_unary(_TIKV + method)(request, timeout=_CALL_S)
        except grpc.RpcError as e:
            self._addresses.pop(store_id, None)
            cause = f"{method} {e.code().name}: {e.details()}"
            raise StoreUnavailable("a store does not answer", store=store_id, cause=cause) from e
        found = read(answer)
        if isinstance(found, RegionFault):
            raise StoreUnavailable(
                "a region is not available", store=store_id, cause=f"{found.kind.name} {found.message}"
            )
        return found

    def _address(self, store_id: int) -> str:
        if store_id not in self._addresses:
            address = next((s.address for s in self._pd.stores() if s.id == store_id), None)
            if address is None:
                raise StoreUnavailable("PD does not know the store", store=store_id)
            self._addresses[store_id] = address
        return self._addresses[store_id]


def describe(region_id: int, lock: HeldLock, now_ts: int) -> str:
    age_s = (tso.physical_ms(now_ts) - tso.physical_ms(lock.start_ts)) // 1000
    return (
        f"region {region_id}: the lock on key {lock.key.hex()} by transaction {lock.start_ts}, {age_s} s old,"
        " holds its resolved ts back"
    )
