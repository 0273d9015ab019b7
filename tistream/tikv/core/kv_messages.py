"""Messages of a snapshot read (`kvrpcpb.ScanRequest`, `ScanResponse`).

- An answer is a page of pairs, the reason why the region was not read (`RegionFault`), or a refusal (`KvRefused`);
- a page ends before the first pair with an error. A lock there is returned (`Lock`); the pairs before it are valid;
- keys increase strictly and lie in the requested range. Other keys are damage, never ignored.

Pure: any bytes give a value, KvRefused or CorruptObject.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from tistream.codec.protobuf import BYTES, VARINT, fields, merged, message, octets, uint
from tistream.errors import CorruptObject, TiStreamError
from tistream.keyrange import KeyRange
from tistream.tikv.core.pd_messages import Region

_LOCKED = 1
_PRIORITY, _LOW, _NOT_FILL_CACHE = 6, 1, 8  # of kvrpcpb.Context
_REFUSALS = {2: "retryable", 3: "abort"}  # key errors with a text


class ApiVersion(IntEnum):
    """kvrpcpb.APIVersion. TiDB without keyspaces is V1 on every server."""

    V1 = 0
    V2 = 2


class KvRefused(TiStreamError):
    """A store refused to read."""

    code = "TS-1036"


class FaultKind(IntEnum):
    """Why a region was not read; numbers are the field numbers of errorpb.Error."""

    OTHER = 0  #: unknown to this version
    NOT_LEADER = 2
    REGION_NOT_FOUND = 3
    KEY_NOT_IN_REGION = 4
    EPOCH_NOT_MATCH = 5
    SERVER_IS_BUSY = 6
    STALE_COMMAND = 7
    STORE_NOT_MATCH = 8
    MAX_TIMESTAMP_NOT_SYNCED = 10
    READ_INDEX_NOT_READY = 11
    PROPOSAL_IN_MERGING_MODE = 12
    DATA_IS_NOT_READY = 13
    REGION_NOT_INITIALIZED = 14
    MISMATCH_PEER_ID = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionFault:
    """A region was not read. All faults are transient; ask PD where the region is now."""

    kind: FaultKind
    message: str
    backoff_ms: int = 0  #: for SERVER_IS_BUSY


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """An undecided transaction's lock; the read's result depends on its outcome."""

    key: bytes
    primary: bytes
    start_ts: int
    ttl_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Live pairs at the read's timestamp, in key order."""

    keys: list[bytes]
    values: list[bytes]
    commit_ts: list[int]  #: 0 = not in the answer
    lock: Lock | None = None  #: follows these pairs; keys from there on were not read


def scan_request(
    region: Region, part: KeyRange, limit: int, ts: int, api: ApiVersion, keyspace_id: int | None = None
) -> bytes:
    """Up to `limit` pairs of `part` (wire keys, within the region) at `ts`, from the region's leader, with low priority
    and without filling the store's cache."""
    request_context = context(region, api, keyspace_id, uint(_PRIORITY, _LOW) + uint(_NOT_FILL_CACHE, 1))
    return request_context + octets(2, part.start) + uint(3, limit) + uint(4, ts) + octets(7, part.end)


def context(region: Region, api: ApiVersion, keyspace_id: int | None, options: bytes = b"") -> bytes:
    """The kvrpcpb.Context of a request; `options`: further encoded fields."""
    epoch = message(2, uint(1, region.conf_ver) + uint(2, region.version))
    peer = message(3, uint(1, region.leader_peer_id) + uint(2, region.leader_store_id))
    space = uint(32, keyspace_id) if keyspace_id else b""
    return message(1, uint(1, region.id) + epoch + peer + options + uint(21, api) + space)


def read_scan(answer: bytes, asked: KeyRange) -> Page | RegionFault:
    """Parse a store's answer to a scan of `asked`."""
    region_error, answer_error, pair_error = b"", b"", b""  # of pairs the first one
    page = Page(keys=[], values=[], commit_ts=[])
    has_region_error = False
    for number, body in fields(answer, {1: BYTES, 2: BYTES, 3: BYTES}):
        if number == 1:
            has_region_error, region_error = True, region_error + body
        elif number == 3:
            answer_error += body
        elif not pair_error:
            pair_error = _take(body, asked, page)
    if has_region_error:
        return read_fault(region_error)
    error = pair_error or answer_error
    return Page(keys=page.keys, values=page.values, commit_ts=page.commit_ts, lock=_lock(error) if error else None)


def _take(body: bytes, asked: KeyRange, page: Page) -> bytes:
    """Add a pair to the page, or return its error."""
    pair = merged(body, {1: BYTES, 2: BYTES, 3: BYTES, 4: VARINT})
    if pair.get(1):
        return bytes(pair[1])
    key = pair.get(2, b"")
    if key not in asked or (page.keys and key <= page.keys[-1]):
        raise CorruptObject("a scan returned a key that was not requested, or is out of order", key=key)
    page.keys.append(key)
    page.values.append(pair.get(3, b""))
    page.commit_ts.append(pair.get(4, 0))
    return b""


def read_fault(body: bytes) -> RegionFault:
    """Parse an errorpb.Error."""
    kind, text, busy = FaultKind.OTHER, "", b""
    for number, value in fields(body, {1: BYTES, **{n: BYTES for n in FaultKind if n}}):
        if number == 1:
            text = value.decode(errors="replace")
        else:
            kind = FaultKind(number)
            busy = value if kind is FaultKind.SERVER_IS_BUSY else b""
    return RegionFault(kind=kind, message=text, backoff_ms=merged(busy, {2: VARINT}).get(2, 0))


def _lock(body: bytes) -> Lock:
    """The lock of a key error. KvRefused for any other error."""
    error = merged(body, {_LOCKED: BYTES, **dict.fromkeys(_REFUSALS, BYTES)})
    if _LOCKED not in error:
        text = next((error[n].decode(errors="replace") for n in sorted(_REFUSALS) if n in error), "")
        raise KvRefused(text or "a store refused to read a key, for an unknown reason")
    lock = merged(error[_LOCKED], {1: BYTES, 2: VARINT, 3: BYTES, 4: VARINT})
    return Lock(key=lock.get(3, b""), primary=lock.get(1, b""), start_ts=lock.get(2, 0), ttl_ms=lock.get(4, 0))
