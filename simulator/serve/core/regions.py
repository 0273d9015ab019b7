"""The model's regions as PD and the stores name them: every store has a peer of every region, none ever moves.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.core.cluster import Region
from simulator.loopback.core.pd import PdRegion
from tistream.codec.protobuf import uint

CONF_VER = 1
_PEERS_OF_A_REGION = 1000  # peer ids are told apart by it


def peer(region_id: int, store_id: int) -> bytes:
    """The body of a metapb.Peer."""
    return uint(1, region_id * _PEERS_OF_A_REGION + store_id) + uint(2, store_id)


def listed(region: Region, stores: Sequence[int]) -> PdRegion:
    """The region for PD's lists."""
    return PdRegion(
        region_id=region.region_id,
        conf_ver=CONF_VER,
        version=region.version,
        range=region.range,
        peers=tuple(peer(region.region_id, store_id) for store_id in stores),
        leader=peer(region.region_id, region.store_id),
    )
