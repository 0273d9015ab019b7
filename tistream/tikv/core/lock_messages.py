"""Messages to find and resolve locks (`KvScanLock`, `KvCheckTxnStatus`, `KvResolveLock`).

    scan_lock      the locks of a range with a start_ts up to a maximum
    check_txn      a transaction's outcome, from its primary lock; rolls an expired one back
    resolve_lock   commit or roll back locks like their transaction

Keys and ranges are wire keys. Pure: any bytes give a value, KvRefused or CorruptObject.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tistream.codec.protobuf import BYTES, VARINT, fields, merged, octets, uint
from tistream.errors import CorruptObject
from tistream.keyrange import KeyRange
from tistream.tikv.core.kv_messages import ApiVersion, KvRefused, RegionFault, context, read_fault
from tistream.tikv.core.pd_messages import Region

_PUT, _DELETE, _INSERT = 0, 1, 4  # kvrpcpb.Op
_ERROR = {1: BYTES, 2: BYTES}
_TEXTS = {2: BYTES, 3: BYTES}


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
    """The state of a transaction."""

    ttl_ms: int  #: > 0: it is alive
    commit_ts: int  #: > 0: committed; else, unless alive, rolled back


def scan_lock_request(
    region: Region, part: KeyRange, max_ts: int, limit: int, api: ApiVersion, keyspace_id: int | None
) -> bytes:
    """Up to `limit` locks of `part`, within the region, with a start_ts at or below `max_ts`."""
    body = uint(2, max_ts) + octets(3, part.start) + uint(4, limit) + octets(5, part.end)
    return context(region, api, keyspace_id) + body


def check_txn_request(
    region: Region, primary: bytes, start_ts: int, now_ts: int, api: ApiVersion, keyspace_id: int | None
) -> bytes:
    """For the region of the primary lock. A transaction without a primary lock there is rolled back, so call it only
    when one of its locks has expired."""
    body = octets(2, primary) + uint(3, start_ts) + uint(5, now_ts) + uint(6, 1)
    return context(region, api, keyspace_id) + body


def resolve_lock_request(
    region: Region, start_ts: int, commit_ts: int, keys: Sequence[bytes], api: ApiVersion, keyspace_id: int | None
) -> bytes:
    """Commit the locks of these keys at `commit_ts`, or roll them back with 0."""
    body = uint(2, start_ts) + uint(3, commit_ts) + b"".join(octets(5, key) for key in keys)
    return context(region, api, keyspace_id) + body


def read_scan_lock(answer: bytes, asked: KeyRange) -> list[HeldLock] | RegionFault:
    """Parse a store's answer to a lock scan of `asked`."""
    if (fault := _judged(answer)) is not None:
        return fault
    locks = [_lock(body) for _, body in fields(answer, {3: BYTES})]
    for lock in locks:
        if lock.key not in asked or not lock.start_ts or not lock.primary:
            raise CorruptObject("a store listed a lock that was not requested, or is incomplete", key=lock.key)
    return locks


def read_check_txn(answer: bytes) -> TxnStatus | RegionFault:
    """Parse a store's answer about a transaction."""
    if (fault := _judged(answer)) is not None:
        return fault
    status = merged(answer, {3: VARINT, 4: VARINT})
    return TxnStatus(ttl_ms=status.get(3, 0), commit_ts=status.get(4, 0))


def read_resolve_lock(answer: bytes) -> RegionFault | None:
    """None when it was done."""
    return _judged(answer)


def _judged(answer: bytes) -> RegionFault | None:
    """The region fault of an answer, if any. KvRefused when a key was refused."""
    errors = merged(answer, _ERROR)
    if 1 in errors:
        return read_fault(errors[1])
    if 2 in errors:
        texts = merged(errors[2], _TEXTS)
        text = next((texts[n].decode(errors="replace") for n in sorted(texts)), "")
        raise KvRefused(text or "a store refused a request for a lock, for an unknown reason")
    return None


def _lock(body: bytes) -> HeldLock:
    lock = merged(body, {1: BYTES, 2: VARINT, 3: BYTES, 4: VARINT, 6: VARINT, 8: VARINT})
    return HeldLock(
        key=lock.get(3, b""),
        primary=lock.get(1, b""),
        start_ts=lock.get(2, 0),
        ttl_ms=lock.get(4, 0),
        kind=lock.get(6, _PUT),
        is_async=bool(lock.get(8, 0)),
    )
