"""The regions that a client knows: what replaces what, and what a region error teaches."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tistream.keyrange import KeyRange
from tistream.tikv.core import wire
from tistream.tikv.core.api_versions import Api
from tistream.tikv.core.pd_messages import Region
from tistream.tikv.core.raw_messages import RawSpace
from tistream.tikv.core.region_map import RegionMap

SPACE = RawSpace(Api.V1)
ASKED = Region(id=5, conf_ver=1, version=3, start=b"b", end=b"f", leader_store_id=1, leader_peer_id=51)


def a_map(*regions: Region) -> RegionMap:
    regions_map = RegionMap(SPACE.range_of)
    regions_map.add(regions)
    return regions_map


def leader_of(region_map: RegionMap, key: bytes) -> tuple[int, int] | None:
    entry = region_map.find(key)
    return None if entry is None else (entry.region.id, entry.region.leader_store_id)


def a_meta(number: int, version: int, start: bytes, end: bytes, *stores: int) -> wire.MetaRegion:
    peers = [wire.Peer(id=number * 10 + store, store_id=store) for store in stores]
    epoch = wire.RegionEpoch(conf_ver=1, version=version)
    return wire.MetaRegion(id=number, start_key=start, end_key=end, region_epoch=epoch, peers=peers)


def test_a_leader_that_is_named_is_asked_at_once() -> None:
    region_map = a_map(ASKED)
    named = wire.RegionError(not_leader=wire.NotLeader(region_id=5, leader=wire.Peer(id=52, store_id=2)))
    assert region_map.learn(ASKED, named)
    assert leader_of(region_map, b"c") == (5, 2)
    assert not region_map.learn(replace(ASKED, leader_store_id=2, leader_peer_id=52), named), "it named itself"
    assert region_map.find(b"c") is None


def test_the_current_regions_replace_the_one_that_was_asked() -> None:
    region_map = a_map(ASKED)
    now = [a_meta(5, 4, b"d", b"f", 3, 1), a_meta(6, 4, b"b", b"d", 2, 3)]
    assert region_map.learn(ASKED, wire.RegionError(epoch_not_match=wire.EpochNotMatch(current_regions=now)))
    assert (leader_of(region_map, b"e"), leader_of(region_map, b"c")) == ((5, 1), (6, 2))


def test_a_store_that_is_behind_teaches_nothing() -> None:
    region_map = a_map(ASKED)
    before = [a_meta(5, 2, b"a", b"f", 1)]
    assert not region_map.learn(ASKED, wire.RegionError(epoch_not_match=wire.EpochNotMatch(current_regions=before)))
    assert region_map.find(b"c") is None


ENDS = {
    "no leader": wire.RegionError(not_leader=wire.NotLeader(region_id=5)),
    "no regions": wire.RegionError(epoch_not_match=wire.EpochNotMatch()),
    "no region": wire.RegionError(region_not_found=wire.RegionNotFound()),
    "another key": wire.RegionError(key_not_in_region=wire.KeyNotInRegion()),
    "another store": wire.RegionError(store_not_match=wire.StoreNotMatch()),
    "unknown": wire.RegionError(message=b"of a later version"),
}
STAYS = {
    "busy": wire.RegionError(server_is_busy=wire.ServerIsBusy()),
    "not synced": wire.RegionError(max_timestamp_not_synced=wire.Unread()),
    "disk full": wire.RegionError(disk_full=wire.Unread()),
    "undetermined": wire.RegionError(undetermined_result=wire.Unread()),
}


@pytest.mark.parametrize("name", [*ENDS, *STAYS])
def test_which_errors_end_an_entry(name: str) -> None:
    region_map = a_map(ASKED)
    assert not region_map.learn(ASKED, {**ENDS, **STAYS}[name])
    assert (region_map.find(b"c") is not None) is (name in STAYS)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5), st.integers(1, 3)), max_size=12))
def test_entries_never_overlap_and_older_ones_replace_nothing(listed: list[tuple[int, int, int]]) -> None:
    region_map = RegionMap(SPACE.range_of)
    for number, (version, start, size) in enumerate(listed):
        region = Region(
            id=number,
            conf_ver=1,
            version=version,
            start=bytes([start]),
            end=bytes([start + size]),
            leader_store_id=1,
        )
        before = [region_map.find(bytes([key])) for key in range(start, start + size)]
        region_map.add([region])
        newest = max((b.region.version for b in before if b is not None), default=0)
        at = region_map.find(bytes([start]))
        assert (at is not None and at.region.id == number) is (version >= newest)
    entries = {k.region.id: k.range for key in range(9) if (k := region_map.find(bytes([key]))) is not None}
    ranges = sorted(entries.values())
    assert all(KeyRange.intersect(a, b) is None for a, b in pairwise(ranges))
