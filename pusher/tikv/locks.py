"""Finds the locks that hold resolved ts back, names them, and ends those whose clients are gone.

    regions whose resolved ts lies 20 s behind -> KvScanLock -> KvCheckTxnStatus at the primary -> KvResolveLock

A lock whose client died stays until somebody resolves it: a reader that meets it, or the cluster's garbage collection,
which the hold on history may keep from getting there. Meanwhile its region's resolved ts stands at the lock's start_ts,
and with it the tenant's frontier. Rules, which are those of every client of TiKV:

- a transaction is asked for at its primary lock only when a lock of it has outlived its own time to live by PD's clock;
  a client that lives renews it there, and then nothing is done;
- what became of the transaction is the store's to say: committed, or rolled back by that very question. The locks of
  the region follow it, key by key;
- transactions of async commit are named and left alone: all of their locks decide, and readers and TiDB resolve them;
- locks that are no change (SELECT FOR UPDATE, pessimistic ones) hold nothing back.

With `resolve` false locks are named and nothing is written to the cluster. A fault of a store or of PD is named too,
and the next look tries again.
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

BEHIND_S = 20.0  #: a resolved ts so far behind PD's time makes no progress
REGIONS_MAX = 64  #: are looked at in one go, those that are furthest behind
LOCKS_MAX = 1024  #: of a region in one go
_TIKV = "/tikvpb.Tikv/"
_CALL_S = 10.0


class LockResolver:
    """Used from one thread, but for `problems`; `close` it."""

    def __init__(
        self, pd: RegionPd, *, keyspace: KeyspaceKeys = WHOLE, tls: Tls | None = None, resolve: bool = True
    ) -> None:
        """`pd`, and the parts that are looked at, speak of the keyspace's keys."""
        self._pd, self._keyspace, self._resolve = pd, keyspace, resolve
        self._api = ApiVersion.V1 if keyspace.id is None else ApiVersion.V2
        self._channels = Channels(tls)
        self._addresses: dict[int, str] = {}
        self.problems: tuple[str, ...] = ()  #: locks that hold something back, and what is in the way
        self.resolved = 0  #: locks that were ended

    def look(self, parts: Sequence[HeldBack]) -> None:
        """Look at the parts that are furthest behind. Raises nothing that passes."""
        found: list[str] = []
        now_ts = self._pd.tso() if parts else 0
        for part in sorted(parts, key=lambda p: p.resolved_ts)[:REGIONS_MAX]:
            try:
                found += self._look(part, now_ts)
            except TiStreamError as e:
                if not isinstance(e, KvRefused | CorruptObject) and e.kind is not ErrorKind.RETRY:
                    raise
                found.append(f"region {part.region_id}: its locks cannot be looked at: {e}")
        self.problems = tuple(found)

    def locks(self, part: KeyRange, max_ts: int) -> tuple[Region, list[HeldLock]]:
        """The region in which `part` begins, and the locks of their common keys that hold a resolved ts back."""
        region, common = self._region_of(part)
        asked = self._keyspace.outer_range(common)
        request = scan_lock_request(region, asked, max_ts, LOCKS_MAX, self._api, self._keyspace.id)
        found = self._ask(region, "KvScanLock", request, lambda answer: read_scan_lock(answer, asked))
        return region, [lock for lock in found if lock.holds_resolved_ts]

    def close(self) -> None:
        """Close the connections."""
        self._channels.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _look(self, part: HeldBack, now_ts: int) -> list[str]:
        limit_ts = now_ts - (int(BEHIND_S * 1000) << tso.LOGICAL_BITS)
        region, locks = self.locks(part.range, limit_ts)
        said = []
        for start_ts, group in groupby(sorted(locks, key=lambda lock: lock.start_ts), key=lambda lock: lock.start_ts):
            of_txn = list(group)
            outcome = self._settle(region, of_txn, now_ts)
            if outcome:
                words = describe(region.id, of_txn[0], now_ts)
                more = f", and {len(of_txn) - 1} more keys" if len(of_txn) > 1 else ""
                said.append(f"{words}{more}: {outcome}")
            else:
                log.info("locks of a lost client were resolved", region=region.id, start_ts=start_ts, keys=len(of_txn))
                self.resolved += len(of_txn)
        return said

    def _settle(self, region: Region, locks: Sequence[HeldLock], now_ts: int) -> str:
        """End the locks of one transaction in a region; why they stay, or an empty text."""
        lock = locks[0]
        if not self._resolve:
            return "nothing is done (--no-resolve-locks)"
        if tso.physical_ms(now_ts) - tso.physical_ms(lock.start_ts) < max(each.ttl_ms for each in locks):
            return "its time to live is not over"
        if any(each.is_async for each in locks):
            return "it commits asynchronously, a reader or TiDB ends it"
        inner = self._keyspace.inner_key(lock.primary)
        at, _ = self._region_of(KeyRange(inner, inner + b"\0"))
        request = check_txn_request(at, lock.primary, lock.start_ts, now_ts, self._api, self._keyspace.id)
        status: TxnStatus = self._ask(at, "KvCheckTxnStatus", request, read_check_txn)
        if status.ttl_ms:
            return "its client lives"
        keys = [each.key for each in locks]
        request = resolve_lock_request(region, lock.start_ts, status.commit_ts, keys, self._api, self._keyspace.id)
        self._ask(region, "KvResolveLock", request, read_resolve_lock)
        return ""

    def _region_of(self, part: KeyRange) -> tuple[Region, KeyRange]:
        region = self._pd.get_region(region_form(part.start))
        whole = plain_range(region) if region is not None else None
        common = whole.intersect(part) if whole is not None else None
        if region is None or not region.leader_store_id or common is None or common.start != part.start:
            raise StoreUnavailable("PD names no leader", key=part.start)
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
                "a region is not there now", store=store_id, cause=f"{found.kind.name} {found.message}"
            )
        return found

    def _address(self, store_id: int) -> str:
        if store_id not in self._addresses:
            address = next((s.address for s in self._pd.stores() if s.id == store_id), None)
            if address is None:
                raise StoreUnavailable("PD knows no such store", store=store_id)
            self._addresses[store_id] = address
        return self._addresses[store_id]


def describe(region_id: int, lock: HeldLock, now_ts: int) -> str:
    """Which lock holds a region's resolved ts, in words."""
    age_s = (tso.physical_ms(now_ts) - tso.physical_ms(lock.start_ts)) // 1000
    return (
        f"region {region_id}: the lock of the key {lock.key.hex()} by the transaction {lock.start_ts}, {age_s} s old,"
        " holds its resolved ts"
    )
