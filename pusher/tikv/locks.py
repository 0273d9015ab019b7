"""Finds locks that hold resolved ts back, reports them, and resolves those of dead clients.

    regions whose resolved ts is 20 s behind -> KvScanLock -> KvCheckTxnStatus at the primary -> KvResolveLock
                                                                 | async commit
                                                                 v
                                                              KvCheckSecondaryLocks

A dead client's lock stays until it is resolved by a reader or by the cluster's garbage collection, which the GC barrier
may keep from getting there. Meanwhile the region's resolved ts stays at the lock's start_ts, and with it the tenant's
watermark. The rules are those of every TiKV client:

- a transaction's primary lock is checked only when one of its locks has outlived its time to live by PD's clock; a live
  client renews it there, and then nothing is done;
- the store decides the transaction's outcome: committed, or rolled back by that check. The locks of the region follow
  it, key by key;
- of a transaction of async commit all locks decide (`tistream.tikv.core.async_commit`), and all of its keys follow;
- a region is scanned to its end: a large transaction leaves more locks than one scan returns. `problems` names the
  lock meanwhile;
- locks without a change (SELECT FOR UPDATE, pessimistic ones) hold nothing back.

With `resolve` false locks are reported and nothing is written to the cluster. Faults of a store or of PD are reported
too, and retried at the next check.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import grpc
import structlog

from pusher.tikv.core.effects import HeldBack
from tistream import ts as tso
from tistream.errors import CorruptObject, ErrorKind, StoreUnavailable, TiStreamError
from tistream.keyrange import KeyRange
from tistream.tikv.channels import Channels, Tls
from tistream.tikv.core import wire
from tistream.tikv.core.async_commit import NotAsync, decided
from tistream.tikv.core.keyspaces import WHOLE, KeyspaceKeys
from tistream.tikv.core.kv_messages import ApiVersion, KvRefused, RegionFault, context
from tistream.tikv.core.lock_messages import (
    A,
    HeldLock,
    SecondaryLocks,
    TxnStatus,
    held_lock,
    read_answer,
    secondary_locks,
    txn_status,
)
from tistream.tikv.core.pd_messages import Region
from tistream.tikv.region_leaders import RegionPd, Stores, TryLater, leader_at

log = structlog.get_logger(__name__)

BEHIND_S = 20.0  #: a resolved ts this far behind PD's time is stalled
REGIONS_MAX = 64  #: checked at once, those furthest behind first
LOCKS_MAX = 1024  #: of a scan
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
        self._stores = Stores(pd, self._channels)
        self._stop = threading.Event()
        self._outcomes: dict[int, int | str] = {}  # of the transactions of a check: commit_ts, or why its locks stay
        self.problems: tuple[str, ...] = ()  #: locks that hold something back, and why they stay
        self.resolved = 0  #: number of resolved locks

    def check(self, parts: Sequence[HeldBack]) -> None:
        """Check the pieces that are furthest behind. Raises only errors that are not transient."""
        problems: list[str] = []
        now_ts = self._pd.tso() if parts else 0
        self._outcomes.clear()
        for part in sorted(parts, key=lambda p: p.resolved_ts)[:REGIONS_MAX]:
            try:
                problems += self._check(part, now_ts, tuple(problems))
            except TiStreamError as e:
                if not isinstance(e, KvRefused | CorruptObject) and e.kind is not ErrorKind.RETRY:
                    raise
                problems.append(f"region {part.region_id}: its locks cannot be checked: {e}")
        self.problems = tuple(problems)

    def locks(self, part: KeyRange, max_ts: int) -> tuple[Region, list[HeldLock]]:
        """The region at the start of `part`, and the first locks on their common keys that hold a resolved ts back."""
        region, _, locks = self._scan(part, max_ts)
        return region, [lock for lock in locks if lock.holds_resolved_ts]

    def stop(self) -> None:
        """A check that runs ends at its next scan. From any thread."""
        self._stop.set()

    def close(self) -> None:
        self._channels.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _scan(self, part: KeyRange, max_ts: int) -> tuple[Region, KeyRange, list[HeldLock]]:
        """The region at the start of `part`, their common keys, and the first locks on these, of every kind."""
        region, common = self._region_of(part)
        outer = self._keyspace.outer_range(common)
        request = wire.ScanLockRequest(max_version=max_ts, start_key=outer.start, limit=LOCKS_MAX, end_key=outer.end)
        body = self._ask(region, "KvScanLock", request, wire.ScanLockResponse)
        return region, common, [held_lock(lock, outer) for lock in body.locks]

    def _check(self, part: HeldBack, now_ts: int, before: tuple[str, ...]) -> list[str]:
        """Resolve what can be in one region; what remains, one line for each transaction."""
        limit_ts = now_ts - (int(BEHIND_S * 1000) << tso.LOGICAL_BITS)
        rest, remaining = part.range, dict[int, tuple[str, int, str]]()
        while not self._stop.is_set():
            region, common, locks = self._scan(rest, limit_ts)
            holding = sorted((lock for lock in locks if lock.holds_resolved_ts), key=lambda lock: lock.start_ts)
            for start_ts, group in groupby(holding, key=lambda lock: lock.start_ts):
                of_txn = list(group)
                words = describe(region.id, of_txn[0], now_ts)
                self.problems = (*before, *map(_line, remaining.values()), f"{words}: it is being resolved")
                outcome = self._settle(region, of_txn, now_ts)
                if outcome:
                    words, keys, _ = remaining.get(start_ts, (words, 0, ""))
                    remaining[start_ts] = words, keys + len(of_txn), outcome
                else:
                    log.info("locks of a dead client resolved", region=region.id, start_ts=start_ts, keys=len(of_txn))
                    self.resolved += len(of_txn)
            if len(locks) < LOCKS_MAX:
                break
            after = self._keyspace.inner_key(locks[-1].key) + b"\0"
            if after not in common:
                break
            rest = KeyRange(after, common.end)
        return [_line(each) for each in remaining.values()]

    def _settle(self, region: Region, locks: Sequence[HeldLock], now_ts: int) -> str:
        """Resolve the locks of one transaction in a region; why they stay, or ""."""
        lock = locks[0]
        if not self._resolve:
            return "not resolved (--no-resolve-locks)"
        if _lives(lock.start_ts, max(each.ttl_ms for each in locks), now_ts):
            return "its time to live has not expired"
        outcome = self._outcomes.get(lock.start_ts)
        if outcome is None:
            outcome = self._outcomes[lock.start_ts] = self._outcome(lock, now_ts)
        if isinstance(outcome, str):
            return outcome
        self._end(region, lock.start_ts, outcome, [each.key for each in locks])
        return ""

    def _outcome(self, lock: HeldLock, now_ts: int) -> int | str:
        """The commit_ts of the transaction, 0 for a rollback; or why its locks stay. One of async commit is resolved
        in the regions of its other keys as well, so that none of them is decided again."""
        status = self._status(lock, now_ts)
        if status.primary is not None and status.is_async:
            if _lives(lock.start_ts, status.ttl_ms, now_ts):
                return "its client is alive"
            keys = status.primary.secondaries
            try:
                commit_ts = decided(status.primary, self._secondaries(lock.start_ts, keys))
            except NotAsync:
                status = self._status(lock, now_ts, force_sync=True)
            else:
                for at, part in self._by_region((*keys, lock.primary)):
                    self._end(at, lock.start_ts, commit_ts, part)
                return commit_ts
        return "its client is alive" if status.ttl_ms else status.commit_ts

    def _status(self, lock: HeldLock, now_ts: int, *, force_sync: bool = False) -> TxnStatus:
        """The outcome, from the primary lock. Without one there the transaction is rolled back, so one of its locks
        must have expired. `force_sync`: take a primary lock of async commit for a plain one."""
        ((at, _),) = self._by_region([lock.primary])
        request = wire.CheckTxnStatusRequest(
            primary_key=lock.primary,
            lock_ts=lock.start_ts,
            current_ts=now_ts,
            rollback_if_not_exist=True,
            force_sync_commit=force_sync,
        )
        return txn_status(self._ask(at, "KvCheckTxnStatus", request, wire.CheckTxnStatusResponse))

    def _secondaries(self, start_ts: int, keys: Sequence[bytes]) -> Iterator[tuple[int, SecondaryLocks]]:
        """Of an expired async commit. Where a lock is missing, a rollback is written in its place."""
        for at, part in self._by_region(keys):
            request = wire.CheckSecondaryLocksRequest(keys=part, start_version=start_ts)
            answer = self._ask(at, "KvCheckSecondaryLocks", request, wire.CheckSecondaryLocksResponse)
            yield len(part), secondary_locks(answer)

    def _end(self, region: Region, start_ts: int, commit_ts: int, keys: Sequence[bytes]) -> None:
        """Commit the locks of these keys at `commit_ts`, or roll them back with 0."""
        request = wire.ResolveLockRequest(start_version=start_ts, commit_version=commit_ts, keys=keys)
        self._ask(region, "KvResolveLock", request, wire.ResolveLockResponse)

    def _by_region(self, keys: Sequence[bytes]) -> Iterator[tuple[Region, list[bytes]]]:
        """Wire keys, ascending, by the region that PD has for them."""
        rest = sorted(set(keys))
        while rest:
            first = self._keyspace.inner_key(rest[0])
            region, common = self._region_of(KeyRange(first))
            mine = [key for key in rest if self._keyspace.inner_key(key) in common]
            yield region, mine
            rest = rest[len(mine) :]

    def _region_of(self, part: KeyRange) -> tuple[Region, KeyRange]:
        try:
            return leader_at(self._pd, part)
        except TryLater as e:
            raise StoreUnavailable(str(e)) from e

    def _ask(self, region: Region, method: str, request: Any, kind: type[A]) -> A:
        """The answer of the region's leader."""
        request.context.CopyFrom(context(region, self._api, self._named_id))
        store_id, data = region.leader_store_id, request.SerializeToString()
        try:
            answer = self._stores.channel(store_id).unary_unary(_TIKV + method)(data, timeout=_CALL_S)
        except TryLater as e:
            raise StoreUnavailable(str(e)) from e
        except grpc.RpcError as e:
            self._stores.forget(store_id)
            cause = f"{method} {e.code().name}: {e.details()}"
            raise StoreUnavailable("a store does not answer", store=store_id, cause=cause) from e
        body = read_answer(kind, answer)
        if isinstance(body, RegionFault):
            raise StoreUnavailable(
                "a region is not available", store=store_id, cause=f"{body.kind.name} {body.message}"
            )
        return body


def _lives(start_ts: int, ttl_ms: int, now_ts: int) -> bool:
    return tso.physical_ms(now_ts) - tso.physical_ms(start_ts) < ttl_ms


def _line(remaining: tuple[str, int, str]) -> str:
    words, keys, why = remaining
    more = f", and {keys - 1} more keys" if keys > 1 else ""
    return f"{words}{more}: {why}"


def describe(region_id: int, lock: HeldLock, now_ts: int) -> str:
    age_s = (tso.physical_ms(now_ts) - tso.physical_ms(lock.start_ts)) // 1000
    return (
        f"region {region_id}: the lock on key {lock.key.hex()} by transaction {lock.start_ts}, {age_s} s old,"
        " holds its resolved ts back"
    )
