"""Reads the change feed messages of a TiKV store (`cdcpb.ChangeDataEvent`).

    bytes of one message  ->  events of single registrations, or one resolved ts for many registrations

An error of an unknown kind is OTHER, never ignored: it may end the registration.

Rows are decoded by `cdcpb_rows`. `split_change_data` leaves them encoded: concatenated entries of several events of one
registration are valid entries (protobuf joins repeated fields), and decoding many at once is much cheaper. Pure: any
bytes give an event or CorruptObject. The source decides what an event means for a subscription.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from tistream.codec.protobuf import parse
from tistream.model.arrays import U64
from tistream.tikv.core import wire
from tistream.tikv.core.pd_messages import Region


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
class ResolvedRegions:
    """One resolved ts for many registrations of one request. May be lower than an earlier one."""

    request_id: int
    regions: U64
    ts: int


def split_change_data(message: bytes) -> tuple[list[RegionMessage], ResolvedRegions | None]:
    """Decode one message but not its rows. CorruptObject when it is invalid; rows may still be damaged."""
    said = parse(wire.ChangeDataEvent, message)
    events = [
        RegionMessage(
            region_id=event.region_id,
            request_id=event.request_id,
            entries=b"".join(event.entries) if event.entries else None,
            resolved_ts=event.resolved_ts,
            error=_error(event.error) if event.HasField("error") else None,
        )
        for event in said.events
    ]
    if not said.HasField("resolved_ts"):
        return events, None
    of = said.resolved_ts
    regions = np.fromiter(of.regions, np.uint64, len(of.regions))
    return events, ResolvedRegions(request_id=of.request_id, regions=regions, ts=of.ts)


def _error(error: wire.RegistrationError) -> RegionError:
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
