"""The messages of a snapshot read (`kvrpcpb.ScanRequest`, `ScanResponse`): the request as bytes, the answer as a value.

What this module decides:

- an answer is a page of pairs, or says why the region was not read (`RegionFault`), or was refused (`KvRefused`);
- pairs end before the first one that carries an error. A lock there is told (`Lock`); everything before it holds;
- keys rise strictly and lie in what was asked for. Other keys are damage, never left out quietly.

Pure; whatever bytes an answer has, the outcome is a value, KvRefused or CorruptObject.
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
_REFUSALS = {2: "retryable", 3: "abort"}  # errors of a key that are text


class ApiVersion(IntEnum):
    """kvrpcpb.APIVersion. TiDB without keyspaces is V1 on every server."""

    V1 = 0
    V2 = 2


class KvRefused(TiStreamError):
    """A store refused to read."""

    code = "TS-1036"


class FaultKind(IntEnum):
    """Why a region was not read; the numbers are those of the fields of errorpb.Error."""

    OTHER = 0  #: one that this version does not know
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
    """A region was not read. All faults pass; where the region is now is asked of PD."""

    kind: FaultKind
    message: str
    backoff_ms: int = 0  #: what SERVER_IS_BUSY asks for


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """A transaction that is being decided; what the read would see depends on the outcome."""

    key: bytes
    primary: bytes
    start_ts: int
    ttl_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Live pairs at the read's timestamp, in key order."""

    keys: list[bytes]
    values: list[bytes]
    commit_ts: list[int]  #: 0 where the server does not say
    lock: Lock | None = None  #: it stands behind these pairs; what lies beyond was not read


def scan_request(
    region: Region, part: KeyRange, limit: int, ts: int, api: ApiVersion, keyspace_id: int | None = None
) -> bytes:
    """Up to `limit` pairs of `part` (plain keys as stores know them, within the region) at `ts`, asked of the region's
    leader. It comes behind what others ask, and pushes nothing of theirs out of the store's cache."""
    where = context(region, api, keyspace_id, uint(_PRIORITY, _LOW) + uint(_NOT_FILL_CACHE, 1))
    return where + octets(2, part.start) + uint(3, limit) + uint(4, ts) + octets(7, part.end)


def context(region: Region, api: ApiVersion, keyspace_id: int | None, manners: bytes = b"") -> bytes:
    """Where a request wants to go, and how it is to be treated there."""
    epoch = message(2, uint(1, region.conf_ver) + uint(2, region.version))
    peer = message(3, uint(1, region.leader_peer_id) + uint(2, region.leader_store_id))
    space = uint(32, keyspace_id) if keyspace_id else b""
    return message(1, uint(1, region.id) + epoch + peer + manners + uint(21, api) + space)


def read_scan(answer: bytes, asked: KeyRange) -> Page | RegionFault:
    """What a store answered to a scan of `asked`."""
    fault, whole, first = b"", b"", b""  # of the region, of the answer, of the first pair that has one
    page = Page(keys=[], values=[], commit_ts=[])
    faulty = False
    for number, body in fields(answer, {1: BYTES, 2: BYTES, 3: BYTES}):
        if number == 1:
            faulty, fault = True, fault + body
        elif number == 3:
            whole += body
        elif not first:
            first = _take(body, asked, page)
    if faulty:
        return read_fault(fault)
    error = first or whole
    return Page(keys=page.keys, values=page.values, commit_ts=page.commit_ts, lock=_lock(error) if error else None)


def _take(body: bytes, asked: KeyRange, page: Page) -> bytes:
    """Add a pair to the page; its error instead when it has one."""
    said = merged(body, {1: BYTES, 2: BYTES, 3: BYTES, 4: VARINT})
    if said.get(1):
        return bytes(said[1])
    key = said.get(2, b"")
    if key not in asked or (page.keys and key <= page.keys[-1]):
        raise CorruptObject("a scan gave a key that was not asked for, or one out of order", key=key)
    page.keys.append(key)
    page.values.append(said.get(3, b""))
    page.commit_ts.append(said.get(4, 0))
    return b""


def read_fault(body: bytes) -> RegionFault:
    """What an errorpb.Error says."""
    kind, text, busy = FaultKind.OTHER, "", b""
    for number, value in fields(body, {1: BYTES, **{n: BYTES for n in FaultKind if n}}):
        if number == 1:
            text = value.decode(errors="replace")
        else:
            kind = FaultKind(number)
            busy = value if kind is FaultKind.SERVER_IS_BUSY else b""
    return RegionFault(kind=kind, message=text, backoff_ms=merged(busy, {2: VARINT}).get(2, 0))


def _lock(body: bytes) -> Lock:
    """The lock that an error of a key names. KvRefused for any other error."""
    said = merged(body, {_LOCKED: BYTES, **dict.fromkeys(_REFUSALS, BYTES)})
    if _LOCKED not in said:
        text = next((said[n].decode(errors="replace") for n in sorted(_REFUSALS) if n in said), "")
        raise KvRefused(text or "a store refused to read a key, for a reason that this version does not know")
    lock = merged(said[_LOCKED], {1: BYTES, 2: VARINT, 3: BYTES, 4: VARINT})
    return Lock(key=lock.get(3, b""), primary=lock.get(1, b""), start_ts=lock.get(2, 0), ttl_ms=lock.get(4, 0))
