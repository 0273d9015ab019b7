"""Reads what a TiKV store sends on its change feed (`cdcpb.ChangeDataEvent`), without generated code.

    bytes of one message  ->  ChangeDataEvent: what it says of single registrations, or one resolved ts for many

The wire format is protobuf: fields are (number, wire type, body), in any order; `codec.protobuf` reads them. What this
module decides:

- an error of a kind that it does not know is OTHER, never nothing: the registration may be over;
- region numbers of a resolved ts come packed or one by one (TiKV does the latter).

Rows are the business of `cdcpb_rows`. Pure; whatever the bytes are, the outcome is an event or CorruptObject. What an
event means for a tenure is decided by the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tistream.codec.memcomparable import decode_uvarint
from tistream.codec.protobuf import BYTES, REPEATED, VARINT, fields
from tistream.pusher.cdcpb_rows import read_entries


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
class RegionError:
    """An error of one registration. All but DUPLICATE_REQUEST end it."""

    kind: RegionErrorKind
    leader_store_id: int = 0  #: where NOT_LEADER says that the leader is; 0 = it does not say


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
    regions: npt.NDArray[np.uint64]
    ts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeDataEvent:
    """One message of the stream."""

    events: tuple[RegionEvent, ...]
    resolved: ResolvedRegions | None


def read_change_data(message: bytes) -> ChangeDataEvent:
    """One message. CorruptObject, with the offset inside the part that is damaged, when it is none."""
    events: list[RegionEvent] = []
    resolved: list[bytes] = []
    for number, body in fields(message, {1: BYTES, 2: BYTES}):
        if number == 1:
            events.append(_event(body))
        else:
            resolved.append(body)
    return ChangeDataEvent(events=tuple(events), resolved=_resolved(b"".join(resolved)) if resolved else None)


def _event(message: bytes) -> RegionEvent:
    said: dict[int, int] = {}
    parts: dict[int, list[bytes]] = {}
    for number, value in fields(message, {1: VARINT, 3: BYTES, 5: BYTES, 6: VARINT, 7: VARINT}):
        if isinstance(value, bytes):
            parts.setdefault(number, []).append(value)
        else:
            said[number] = value
    rows, initialized = read_entries(b"".join(parts[3])) if 3 in parts else (None, False)
    return RegionEvent(
        region_id=said.get(1, 0),
        request_id=said.get(7, 0),
        rows=rows,
        initialized=initialized,
        resolved_ts=said.get(6, 0),
        error=_error(b"".join(parts[5])) if 5 in parts else None,
    )


def _error(message: bytes) -> RegionError:
    kind, leader = RegionErrorKind.OTHER, 0
    for number, body in fields(message, dict.fromkeys(range(1, 9), BYTES)):
        kind = RegionErrorKind(number)
        if kind is RegionErrorKind.NOT_LEADER:
            peers = [peer for _, peer in fields(body, {2: BYTES})]
            leader = dict(fields(b"".join(peers), {2: VARINT})).get(2, 0)
    return RegionError(kind=kind, leader_store_id=leader)


def _resolved(message: bytes) -> ResolvedRegions:
    regions: list[int] = []
    said = {2: 0, 3: 0}
    for number, value in fields(message, {1: REPEATED, 2: VARINT, 3: VARINT}):
        if number != 1:
            said[number] = value
        elif isinstance(value, int):
            regions.append(value)
        else:
            at = 0
            while at < len(value):
                region, at = decode_uvarint(value, at)
                regions.append(region)
    return ResolvedRegions(request_id=said[3], regions=np.array(regions, np.uint64), ts=said[2])
