"""Reads the change feed messages of a TiKV store (`cdcpb.ChangeDataEvent`).

    bytes of one message  ->  events of single registrations, or one resolved ts for many registrations

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
from tistream.codec.protobuf import BYTES, VARINT, fields, parse
from tistream.errors import CorruptObject
from tistream.tikv.core import wire
from tistream.tikv.core.pd_messages import Region

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
class RegionError:
    """An error of one registration. All but DUPLICATE_REQUEST end it."""

    kind: RegionErrorKind
    leader_store_id: int = 0  #: for NOT_LEADER; 0 = not given
    regions: tuple[Region, ...] = ()  #: for EPOCH_NOT_MATCH: the current regions, without leaders; may be empty
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
    error = parse(wire.RegistrationError, message)
    name = error.WhichOneof("kind")
    kind = RegionErrorKind[name.upper()] if name else RegionErrorKind.OTHER
    detail = error.server_is_busy.reason.decode(errors="replace")
    if kind is RegionErrorKind.COMPATIBILITY:
        detail = f"the store requires version {error.compatibility.required_version.decode(errors='replace')}"
    elif kind is RegionErrorKind.CLUSTER_ID_MISMATCH:
        ids = error.cluster_id_mismatch
        detail = f"the store belongs to cluster {ids.current}, not {ids.request}"
    return RegionError(
        kind=kind,
        leader_store_id=error.not_leader.leader.store_id,
        regions=tuple(_region(region) for region in error.epoch_not_match.current_regions),
        backoff_ms=error.server_is_busy.backoff_ms,
        detail=detail,
    )


def _region(region: wire.MetaRegion) -> Region:
    epoch = region.region_epoch
    return Region(
        id=region.id, conf_ver=epoch.conf_ver, version=epoch.version, start=region.start_key, end=region.end_key
    )


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
