"""Reads what a TiKV store sends on its change feed (`cdcpb.ChangeDataEvent`), without generated code.

    bytes of one message  ->  ChangeDataEvent: what it says of single registrations, or one resolved ts for many

The wire format is protobuf: fields are (number, wire type, body), in any order; `codec.protobuf` reads them. What this
module decides:

- an error of a kind that it does not know is OTHER, never nothing: the registration may be over;
- region numbers of a resolved ts come packed or one by one (TiKV does the latter).

Rows are the business of `cdcpb_rows`. `split_change_data` leaves them undecoded: entries of several events of one
registration, joined, are entries again (protobuf joins repeated fields), and decoding many at once is much cheaper.
Pure; whatever the bytes are, the outcome is an event or CorruptObject. What an event means for a subscription is
decided by the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pusher.core.cdcpb_rows import Octets, read_entries, wire_field, wire_uvarint
from tistream.codec.compiled import kernel
from tistream.codec.protobuf import BYTES, VARINT, fields
from tistream.errors import CorruptObject

U64 = npt.NDArray[np.uint64]


class RegionErrorKind(IntEnum):
    """Why a store ended a registration, or refused one; the numbers are the wire's."""

    OTHER = 0  #: one that this version does not know
    NOT_LEADER = 1
    REGION_NOT_FOUND = 2
    EPOCH_NOT_MATCH = 3
    DUPLICATE_REQUEST = 4
    COMPATIBILITY = 5
    CLUSTER_ID_MISMATCH = 6
    SERVER_IS_BUSY = 7
    CONGESTED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionNow:
    """A region as a store describes it."""

    region_id: int
    conf_ver: int
    version: int
    start: bytes  #: in region form
    end: bytes  #: in region form; empty = plus infinity


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionError:
    """An error of one registration. All but DUPLICATE_REQUEST end it."""

    kind: RegionErrorKind
    leader_store_id: int = 0  #: where NOT_LEADER says that the leader is; 0 = it does not say
    regions: tuple[RegionNow, ...] = ()  #: what EPOCH_NOT_MATCH says that the region has become; may be empty
    backoff_ms: int = 0  #: what SERVER_IS_BUSY asks for
    detail: str = ""  #: the words of COMPATIBILITY, CLUSTER_ID_MISMATCH and SERVER_IS_BUSY


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionMessage:
    """What one Event says of one registration, its rows not decoded."""

    region_id: int
    request_id: int
    entries: bytes | None = None  #: for cdcpb_rows.read_entries
    resolved_ts: int = 0  #: the deprecated form, one event per region; 0 = none
    error: RegionError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionEvent:
    """What one Event says of one registration."""

    region_id: int
    request_id: int
    rows: pa.RecordBatch | None = None  #: schema change.ROWS, in order of arrival; None when it has no entries
    initialized: bool = False  #: the opening scan is complete
    resolved_ts: int = 0  #: the deprecated form, one event per region; 0 = none
    error: RegionError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRegions:
    """One resolved ts for many registrations of one request. It may be lower than an earlier one."""

    request_id: int
    regions: U64
    ts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeDataEvent:
    """One message of the stream."""

    events: tuple[RegionEvent, ...]
    resolved: ResolvedRegions | None


def read_change_data(message: bytes) -> ChangeDataEvent:
    """One message. CorruptObject, with the offset inside the part that is damaged, when it is none."""
    messages, resolved = split_change_data(message)
    return ChangeDataEvent(events=tuple(_decoded(m) for m in messages), resolved=resolved)


def split_change_data(message: bytes) -> tuple[list[RegionMessage], ResolvedRegions | None]:
    """One message, its rows left as they are. CorruptObject when it is none; rows may still be damaged."""
    events: list[RegionMessage] = []
    resolved: list[bytes] = []
    for number, body in fields(message, {1: BYTES, 2: BYTES}):
        if number == 1:
            events.append(_event(body))
        else:
            resolved.append(body)
    return events, _resolved(b"".join(resolved)) if resolved else None


_EVENT = {1: VARINT, 3: BYTES, 5: BYTES, 6: VARINT, 7: VARINT}
_REGION = {1: VARINT, 2: BYTES, 3: BYTES, 4: BYTES}


def _event(message: bytes) -> RegionMessage:
    said: dict[int, int] = {}
    parts: dict[int, list[bytes]] = {}
    for number, value in fields(message, _EVENT):
        if isinstance(value, bytes):
            parts.setdefault(number, []).append(value)
        else:
            said[number] = value
    return RegionMessage(
        region_id=said.get(1, 0),
        request_id=said.get(7, 0),
        entries=b"".join(parts[3]) if 3 in parts else None,
        resolved_ts=said.get(6, 0),
        error=_error(b"".join(parts[5])) if 5 in parts else None,
    )


def _decoded(said: RegionMessage) -> RegionEvent:
    rows, initialized = (None, False) if said.entries is None else read_entries(said.entries)
    return RegionEvent(
        region_id=said.region_id,
        request_id=said.request_id,
        rows=rows,
        initialized=initialized,
        resolved_ts=said.resolved_ts,
        error=said.error,
    )


def _error(message: bytes) -> RegionError:
    error = RegionError(kind=RegionErrorKind.OTHER)
    for number, body in fields(message, dict.fromkeys(range(1, 9), BYTES)):
        kind = RegionErrorKind(number)
        error = RegionError(kind=kind)
        if kind is RegionErrorKind.NOT_LEADER:
            peers = [peer for _, peer in fields(body, {2: BYTES})]
            error = RegionError(kind=kind, leader_store_id=dict(fields(b"".join(peers), {2: VARINT})).get(2, 0))
        elif kind is RegionErrorKind.EPOCH_NOT_MATCH:
            error = RegionError(kind=kind, regions=tuple(_region(region) for _, region in fields(body, {1: BYTES})))
        elif kind is RegionErrorKind.SERVER_IS_BUSY:
            said = dict(fields(body, {1: BYTES, 2: VARINT}))
            error = RegionError(kind=kind, detail=_text(said.get(1, b"")), backoff_ms=said.get(2, 0))
        elif kind is RegionErrorKind.COMPATIBILITY:
            required = dict(fields(body, {1: BYTES})).get(1, b"")
            error = RegionError(kind=kind, detail=f"the store asks for version {_text(required)}")
        elif kind is RegionErrorKind.CLUSTER_ID_MISMATCH:
            ids = dict(fields(body, {1: VARINT, 2: VARINT}))
            error = RegionError(kind=kind, detail=f"the store's cluster is {ids.get(1, 0)}, not {ids.get(2, 0)}")
    return error


def _region(message: bytes) -> RegionNow:
    said = dict(fields(message, _REGION))
    epoch = dict(fields(said.get(4, b""), {1: VARINT, 2: VARINT}))
    return RegionNow(
        region_id=said.get(1, 0),
        conf_ver=epoch.get(1, 0),
        version=epoch.get(2, 0),
        start=said.get(2, b""),
        end=said.get(3, b""),
    )


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")


def _resolved(message: bytes) -> ResolvedRegions:
    data = np.frombuffer(message, np.uint8)
    count = int(_scan_resolved(data, np.zeros(2, np.uint64), np.zeros(0, np.uint64), False))
    said, regions = np.zeros(2, np.uint64), np.zeros(max(count, 0), np.uint64)
    if count < 0 or _scan_resolved(data, said, regions, True) < 0:
        raise CorruptObject("a resolved ts of the change feed is damaged", offset=-count - 1)
    return ResolvedRegions(request_id=int(said[1]), regions=regions, ts=int(said[0]))


@kernel
def _scan_resolved(data: Octets, said: U64, regions: U64, fill: bool) -> int:
    """Fill ts and request id, and the region numbers if wanted; how many there are. -1 - offset: damage."""
    at = 0
    count = 0
    end = len(data)
    while at < end:
        number, wire, value, body = wire_field(data, at, end)
        if body < 0 or (number == 1 and wire != 0 and wire != 2) or ((number == 2 or number == 3) and wire != 0):
            return -1 - at
        after = body + int(value) if wire == 2 else body
        if number == 1 and wire == 0:
            if fill:
                regions[count] = value
            count += 1
        elif number == 1:
            while body < after:
                region, following = wire_uvarint(data, body, after)
                if following < 0:
                    return -1 - body
                if fill:
                    regions[count] = region
                count += 1
                body = following
        elif number == 2 or number == 3:
            said[number - 2] = value
        at = after
    return count
