"""Messages to find and resolve locks (`KvScanLock`, `KvCheckTxnStatus`, `KvResolveLock`).

    scan_lock      the locks of a range with a start_ts up to a maximum
    check_txn      a transaction's outcome, from its primary lock; rolls an expired one back
    resolve_lock   commit or roll back locks like their transaction

Keys and ranges are wire keys. Pure: any bytes give a value, KvRefused or CorruptObject.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from tistream.codec.protobuf import parse
from tistream.errors import CorruptObject
from tistream.keyrange import KeyRange
from tistream.tikv.core import wire
from tistream.tikv.core.kv_messages import ApiVersion, KvRefused, RegionFault, context, read_fault
from tistream.tikv.core.pd_messages import Region

A = TypeVar("A", wire.ScanLockResponse, wire.CheckTxnStatusResponse, wire.ResolveLockResponse)
_PUT, _DELETE, _INSERT = 0, 1, 4  # kvrpcpb.Op


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLock:
    """A lock as listed by a store."""

    key: bytes
    primary: bytes
    start_ts: int
    ttl_ms: int
    kind: int  #: kvrpcpb.Op
    is_async: bool  #: of an async commit: all locks of the transaction decide its outcome

    @property
    def holds_resolved_ts(self) -> bool:
        """False for locks without a change: lock-only and pessimistic ones."""
        return self.kind in (_PUT, _DELETE, _INSERT)


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnStatus:
    ttl_ms: int  #: > 0: it is alive
    commit_ts: int  #: > 0: committed; else, unless alive, rolled back


def scan_lock_request(
    region: Region, part: KeyRange, max_ts: int, limit: int, api: ApiVersion, keyspace_id: int | None
) -> bytes:
    """Up to `limit` locks of `part`, within the region, with a start_ts at or below `max_ts`."""
    return wire.ScanLockRequest(
        context=context(region, api, keyspace_id),
        max_version=max_ts,
        start_key=part.start,
        limit=limit,
        end_key=part.end,
    ).SerializeToString()


def check_txn_request(
    region: Region, primary: bytes, start_ts: int, now_ts: int, api: ApiVersion, keyspace_id: int | None
) -> bytes:
    """For the region of the primary lock. A transaction without a primary lock there is rolled back, so call it only
    when one of its locks has expired."""
    return wire.CheckTxnStatusRequest(
        context=context(region, api, keyspace_id),
        primary_key=primary,
        lock_ts=start_ts,
        current_ts=now_ts,
        rollback_if_not_exist=True,
    ).SerializeToString()


def resolve_lock_request(
    region: Region, start_ts: int, commit_ts: int, keys: Sequence[bytes], api: ApiVersion, keyspace_id: int | None
) -> bytes:
    """Commit the locks of these keys at `commit_ts`, or roll them back with 0."""
    return wire.ResolveLockRequest(
        context=context(region, api, keyspace_id), start_version=start_ts, commit_version=commit_ts, keys=keys
    ).SerializeToString()


def read_scan_lock(answer: bytes, asked: KeyRange) -> list[HeldLock] | RegionFault:
    body = _read(wire.ScanLockResponse, answer)
    return body if isinstance(body, RegionFault) else [_lock(lock, asked) for lock in body.locks]


def read_check_txn(answer: bytes) -> TxnStatus | RegionFault:
    body = _read(wire.CheckTxnStatusResponse, answer)
    return body if isinstance(body, RegionFault) else TxnStatus(ttl_ms=body.lock_ttl, commit_ts=body.commit_version)


def read_resolve_lock(answer: bytes) -> RegionFault | None:
    """None when it was done."""
    body = _read(wire.ResolveLockResponse, answer)
    return body if isinstance(body, RegionFault) else None


def _read(kind: type[A], answer: bytes) -> A | RegionFault:
    """The answer, or its region fault. KvRefused when a key was refused."""
    body = parse(kind, answer)
    if body.HasField("region_error"):
        return read_fault(body.region_error)
    if body.HasField("error"):
        text = (body.error.retryable or body.error.abort).decode(errors="replace")
        raise KvRefused(text or "a store refused a request for a lock, for an unknown reason")
    return body


def _lock(lock: wire.LockInfo, asked: KeyRange) -> HeldLock:
    if lock.key not in asked or not lock.lock_version or not lock.primary_lock:
        raise CorruptObject("a store listed a lock that was not requested, or is incomplete", key=lock.key)
    return HeldLock(
        key=lock.key,
        primary=lock.primary_lock,
        start_ts=lock.lock_version,
        ttl_ms=lock.lock_ttl,
        kind=lock.lock_type,
        is_async=lock.use_async_commit,
    )
