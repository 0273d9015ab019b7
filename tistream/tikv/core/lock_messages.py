"""Answers to requests about locks (`KvScanLock`, `KvCheckTxnStatus`, `KvCheckSecondaryLocks`, `KvResolveLock`).

Keys and ranges are wire keys. Pure: any bytes give a value, KvRefused or CorruptObject.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from tistream.codec.protobuf import parse
from tistream.errors import CorruptObject
from tistream.keyrange import KeyRange
from tistream.tikv.core import wire
from tistream.tikv.core.kv_messages import KvRefused, RegionFault, read_fault

A = TypeVar(
    "A",
    wire.ScanLockResponse,
    wire.CheckTxnStatusResponse,
    wire.CheckSecondaryLocksResponse,
    wire.ResolveLockResponse,
)
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
    min_commit_ts: int = 0  #: of an async commit: it commits at the largest of its locks
    secondaries: tuple[bytes, ...] = ()  #: of the primary lock of an async commit: all other keys

    @property
    def holds_resolved_ts(self) -> bool:
        """False for locks without a change: lock-only and pessimistic ones."""
        return self.kind in (_PUT, _DELETE, _INSERT)


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnStatus:
    ttl_ms: int  #: > 0: it is alive
    commit_ts: int  #: > 0: committed; else, unless alive, rolled back
    primary: HeldLock | None = None  #: the primary lock, where it is there

    @property
    def is_async(self) -> bool:
        """Whether all of its locks decide. Then `ttl_ms` says nothing of a client: it is in the answer when it has
        expired, too."""
        return self.primary is not None and self.primary.is_async


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondaryLocks:
    """What is there of some secondary keys: all of their locks, or the transaction is decided."""

    locks: tuple[HeldLock, ...]
    commit_ts: int  #: > 0: committed; with fewer locks than keys and 0 it is rolled back


def read_answer(kind: type[A], answer: bytes) -> A | RegionFault:
    """The answer, or why the region did not serve. KvRefused when a key was refused."""
    body = parse(kind, answer)
    if body.HasField("region_error"):
        return read_fault(body.region_error)
    if body.HasField("error"):
        text = (body.error.retryable or body.error.abort).decode(errors="replace")
        raise KvRefused(text or "a store refused a request for a lock, for an unknown reason")
    return body


def held_lock(lock: wire.LockInfo, range_: KeyRange | None = None) -> HeldLock:
    """A lock of an answer. CorruptObject when it is incomplete, or its key is outside of `range_`."""
    if (range_ is not None and lock.key not in range_) or not lock.lock_version or not lock.primary_lock:
        raise CorruptObject("a store listed a lock that was not requested, or is incomplete", key=lock.key)
    return HeldLock(
        key=lock.key,
        primary=lock.primary_lock,
        start_ts=lock.lock_version,
        ttl_ms=lock.lock_ttl,
        kind=lock.lock_type,
        is_async=lock.use_async_commit,
        min_commit_ts=lock.min_commit_ts,
        secondaries=tuple(lock.secondaries),
    )


def txn_status(body: wire.CheckTxnStatusResponse) -> TxnStatus:
    primary = held_lock(body.lock_info) if body.HasField("lock_info") else None
    return TxnStatus(ttl_ms=body.lock_ttl, commit_ts=body.commit_version, primary=primary)


def secondary_locks(body: wire.CheckSecondaryLocksResponse) -> SecondaryLocks:
    return SecondaryLocks(locks=tuple(map(held_lock, body.locks)), commit_ts=body.commit_ts)
