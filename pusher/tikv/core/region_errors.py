"""Interprets errors of registrations: how long to wait, where the region is now, whether the store refuses for good.

    not_leader        another store leads it, usually named in the error
    epoch_not_match   it was split or merged; the error may have the current regions
    busy, congested   wait for as long as the store asks, up to a bound
    compatibility     the store refuses this pusher; so does one of another cluster

Pure.
"""

from __future__ import annotations

from dataclasses import replace

from pusher.core.cdcpb import RegionError, RegionErrorKind
from pusher.tikv.core.pieces import Piece
from tistream.errors import InvalidInput
from tistream.tikv.core.keyspaces import KeyspaceKeys
from tistream.tikv.core.pd_messages import Region
from tistream.tikv.core.regions import region_form

STALE_S = 1.0  #: PD may lag this far behind a store
_BACKOFF_MAX_S = 60.0  # bound on the pause that a store asks for
_FATAL = (RegionErrorKind.COMPATIBILITY, RegionErrorKind.CLUSTER_ID_MISMATCH)
#: minimal pauses in seconds; the store may ask for more
_AT_LEAST_S = {
    RegionErrorKind.SERVER_IS_BUSY: 0.5,
    RegionErrorKind.CONGESTED: 1.0,
    RegionErrorKind.DUPLICATE_REQUEST: 1.0,
    RegionErrorKind.OTHER: 1.0,
}


def refusal(error: RegionError, store_id: int, piece: Piece) -> InvalidInput | None:
    """The error when the store cannot be followed at all; None when a retry may succeed."""
    if error.kind not in _FATAL:
        return None
    return InvalidInput(
        f"the store refuses the change feed: {error.detail}",
        store=store_id,
        region=piece.region_id,
        request=piece.request_id,
        reason=error.kind.name,
    )


def is_unclear(error: RegionError) -> bool:
    """The store may still have the registration, so it must be deregistered."""
    return error.kind in (RegionErrorKind.DUPLICATE_REQUEST, RegionErrorKind.OTHER)


def pause_s(error: RegionError) -> float:
    """The minimal pause before the next attempt."""
    return max(_AT_LEAST_S.get(error.kind, 0.0), min(error.backoff_ms / 1000, _BACKOFF_MAX_S))


def moved(error: RegionError, store_id: int, piece: Piece) -> Region | None:
    """The piece as a region of its new leader; None when the error names no other leader."""
    if error.kind is not RegionErrorKind.NOT_LEADER or error.leader_store_id in (0, store_id):
        return None
    return Region(
        id=piece.region_id,
        conf_ver=piece.conf_ver,
        version=piece.version,
        start=region_form(piece.range.start),
        end=region_form(piece.range.end),
        leader_store_id=error.leader_store_id,
    )


def named(error: RegionError, store_id: int, keyspace: KeyspaceKeys) -> list[Region]:
    """The current regions, according to the store."""
    regions = [replace(region, leader_store_id=store_id) for region in error.regions]
    return [inner for region in regions if (inner := keyspace.inner_region(region)) is not None]
