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
    found = RegionMap(SPACE.range_of)
    found.add(regions)
    return found


def leader_of(known: RegionMap, key: bytes) -> tuple[int, int] | None:
    found = known.find(key)
    return None if found is None else (found.region.id, found.region.leader_store_id)


def a_meta(number: int, version: int, start: bytes, end: bytes, *stores: int) -> wire.MetaRegion:
    peers = [wire.Peer(id=number * 10 + store, store_id=store) for store in stores]
    epoch = wire.RegionEpoch(conf_ver=1, version=version)
    return wire.MetaRegion(id=number, start_key=start, end_key=end, region_epoch=epoch, peers=peers)


def test_a_leader_that_is_named_is_asked_at_once() -> None:
    known = a_map(ASKED)
    named = wire.RegionError(not_leader=wire.NotLeader(region_id=5, leader=wire.Peer(id=52, store_id=2)))
    assert known.learn(ASKED, named)
    assert leader_of(known, b"c") == (5, 2)
    assert not known.learn(replace(ASKED, leader_store_id=2, leader_peer_id=52), named), "it named itself"
    assert known.find(b"c") is None


def test_the_current_regions_replace_the_one_that_was_asked() -> None:
    known = a_map(ASKED)
    now = [a_meta(5, 4, b"d", b"f", 3, 1), a_meta(6, 4, b"b", b"d", 2, 3)]
    assert known.learn(ASKED, wire.RegionError(epoch_not_match=wire.EpochNotMatch(current_regions=now)))
    assert (leader_of(known, b"e"), leader_of(known, b"c")) == ((5, 1), (6, 2))


def test_a_store_that_is_behind_teaches_nothing() -> None:
    known = a_map(ASKED)
    before = [a_meta(5, 2, b"a", b"f", 1)]
    assert not known.learn(ASKED, wire.RegionError(epoch_not_match=wire.EpochNotMatch(current_regions=before)))
    assert known.find(b"c") is None


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
    known = a_map(ASKED)
    assert not known.learn(ASKED, {**ENDS, **STAYS}[name])
    assert (known.find(b"c") is not None) is (name in STAYS)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5), st.integers(1, 3)), max_size=12))
def test_entries_never_overlap_and_older_ones_replace_nothing(listed: list[tuple[int, int, int]]) -> None:
    known = RegionMap(SPACE.range_of)
    for number, (version, start, size) in enumerate(listed):
        region = Region(
            id=number,
            conf_ver=1,
            version=version,
            start=bytes([start]),
            end=bytes([start + size]),
            leader_store_id=1,
        )
        before = [known.find(bytes([key])) for key in range(start, start + size)]
        known.add([region])
        newest = max((b.region.version for b in before if b is not None), default=0)
        at = known.find(bytes([start]))
        assert (at is not None and at.region.id == number) is (version >= newest)
    found = {k.region.id: k.range for key in range(9) if (k := known.find(bytes([key]))) is not None}
    ranges = sorted(found.values())
    assert all(KeyRange.intersect(a, b) is None for a, b in pairwise(ranges))
