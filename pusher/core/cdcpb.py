"""Reads the change feed messages of a TiKV store (`cdcpb.ChangeDataEvent`), without generated code.

    bytes of one message  ->  events of single registrations, or one resolved ts for many registrations

The wire format is protobuf, read by `codec.protobuf`.

- An error of an unknown kind is OTHER, never ignored: it may end the registration;
- the region ids of a resolved ts may be packed or repeated (TiKV repeats them).

Rows are decoded by `cdcpb_rows`. `split_change_data` leaves them encoded: concatenated entries of several events of one
registration are valid entries (protobuf joins repeated fields), and decoding many at once is much cheaper. Pure: any
bytes give an event or CorruptObject. The source decides what an event means for a subscription.
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
    """Why a store ended or refused a registration; numbers as on the wire."""

    OTHER = 0  #: unknown to this version
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
    region_id: int
    conf_ver: int
    version: int
    start: bytes  #: in region form
    end: bytes  #: in region form; empty = plus infinity


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionError:
    """An error of one registration. All but DUPLICATE_REQUEST end it."""

    kind: RegionErrorKind
    leader_store_id: int = 0  #: for NOT_LEADER; 0 = not given
    regions: tuple[RegionNow, ...] = ()  #: for EPOCH_NOT_MATCH: the current regions; may be empty
    backoff_ms: int = 0  #: for SERVER_IS_BUSY
    detail: str = ""  #: for COMPATIBILITY, CLUSTER_ID_MISMATCH and SERVER_IS_BUSY


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionMessage:
    """One Event of one registration, its rows still encoded."""

    region_id: int
    request_id: int
    entries: bytes | None = None  #: for cdcpb_rows.read_entries
    resolved_ts: int = 0  #: the deprecated form, one event per region; 0 = none
    error: RegionError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionEvent:
    region_id: int
    request_id: int
    rows: pa.RecordBatch | None = None  #: schema change.ROWS, in arrival order; None = no entries
    initialized: bool = False  #: the opening scan is complete
    resolved_ts: int = 0  #: the deprecated form, one event per region; 0 = none
    error: RegionError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRegions:
    """One resolved ts for many registrations of one request. May be lower than an earlier one."""

    request_id: int
    regions: U64
    ts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeDataEvent:
    events: tuple[RegionEvent, ...]
    resolved: ResolvedRegions | None


def read_change_data(message: bytes) -> ChangeDataEvent:
    """Decode one message. CorruptObject, with the offset in the damaged part, when it is invalid."""
    messages, resolved = split_change_data(message)
    return ChangeDataEvent(events=tuple(_decoded(m) for m in messages), resolved=resolved)


def split_change_data(message: bytes) -> tuple[list[RegionMessage], ResolvedRegions | None]:
    """Decode one message but not its rows. CorruptObject when it is invalid; rows may still be damaged."""
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
    numbers: dict[int, int] = {}
    parts: dict[int, list[bytes]] = {}
    for number, value in fields(message, _EVENT):
        if isinstance(value, bytes):
            parts.setdefault(number, []).append(value)
        else:
            numbers[number] = value
    return RegionMessage(
        region_id=numbers.get(1, 0),
        request_id=numbers.get(7, 0),
        entries=b"".join(parts[3]) if 3 in parts else None,
        resolved_ts=numbers.get(6, 0),
        error=_error(b"".join(parts[5])) if 5 in parts else None,
    )


def _decoded(event: RegionMessage) -> RegionEvent:
    rows, initialized = (None, False) if event.entries is None else read_entries(event.entries)
    return RegionEvent(
        region_id=event.region_id,
        request_id=event.request_id,
        rows=rows,
        initialized=initialized,
        resolved_ts=event.resolved_ts,
        error=event.error,
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
            busy = dict(fields(body, {1: BYTES, 2: VARINT}))
            error = RegionError(kind=kind, detail=_text(busy.get(1, b"")), backoff_ms=busy.get(2, 0))
        elif kind is RegionErrorKind.COMPATIBILITY:
            required = dict(fields(body, {1: BYTES})).get(1, b"")
            error = RegionError(kind=kind, detail=f"the store requires version {_text(required)}")
        elif kind is RegionErrorKind.CLUSTER_ID_MISMATCH:
            ids = dict(fields(body, {1: VARINT, 2: VARINT}))
            error = RegionError(kind=kind, detail=f"the store belongs to cluster {ids.get(1, 0)}, not {ids.get(2, 0)}")
    return error


def _region(message: bytes) -> RegionNow:
    region = dict(fields(message, _REGION))
    epoch = dict(fields(region.get(4, b""), {1: VARINT, 2: VARINT}))
    return RegionNow(
        region_id=region.get(1, 0),
        conf_ver=epoch.get(1, 0),
        version=epoch.get(2, 0),
        start=region.get(2, b""),
        end=region.get(3, b""),
    )


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")


def _resolved(message: bytes) -> ResolvedRegions:
    data = np.frombuffer(message, np.uint8)
    count = int(_scan_resolved(data, np.zeros(2, np.uint64), np.zeros(0, np.uint64), False))
    header, regions = np.zeros(2, np.uint64), np.zeros(max(count, 0), np.uint64)
    if count < 0 or _scan_resolved(data, header, regions, True) < 0:
        raise CorruptObject("a resolved ts of the change feed is damaged", offset=-count - 1)
    return ResolvedRegions(request_id=int(header[1]), regions=regions, ts=int(header[0]))


@kernel
def _scan_resolved(data: Octets, header: U64, regions: U64, fill: bool) -> int:
    """Fill `header` (ts, request id), and `regions` if `fill`; returns the number of regions, or -1 - offset of
    damage."""
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
            header[number - 2] = value
        at = after
    return count
