"""The model's regions as PD and the stores name them: every store has a peer of every region, none ever moves.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulator.core.cluster import Region
from simulator.loopback.core.feed_wire import region_form
from tistream.tikv.core import wire

_CONF_VER = 1
_PEERS_OF_A_REGION = 1000  # distinguishes peer ids


def peer(region_id: int, store_id: int) -> wire.Peer:
    return wire.Peer(id=region_id * _PEERS_OF_A_REGION + store_id, store_id=store_id)


def meta(region: Region, stores: Sequence[int], boundary: Callable[[bytes], bytes] = region_form) -> wire.MetaRegion:
    """The region with a peer on each of the stores. `boundary`: how a key is written there."""
    return wire.MetaRegion(
        id=region.region_id,
        start_key=boundary(region.range.start),
        end_key=boundary(region.range.end),
        region_epoch=wire.RegionEpoch(conf_ver=_CONF_VER, version=region.version),
        peers=[peer(region.region_id, store_id) for store_id in stores],
    )
