"""Regions that a client knows, by key: where the next request for a key goes.

    region = known.find(key)           None: ask PD, then `add`
    known.learn(region, error)         a store did not serve the region; True: ask again at once

An entry is trusted until a store or a connection says otherwise, never by time. A newer region replaces all older ones
that it overlaps; an older one replaces nothing, so that late answers of PD do no harm.

Pure; its owner holds a lock around every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from sortedcontainers import SortedDict

from tistream.keyrange import KeyRange
from tistream.tikv.core import wire
from tistream.tikv.core.pd_messages import Region

#: the region is where it was, and serves later
_STAYS = frozenset(
    {
        *("server_is_busy", "stale_command", "max_timestamp_not_synced", "read_index_not_ready"),
        *("proposal_in_merging_mode", "data_is_not_ready", "region_not_initialized", "disk_full"),
        *("recovery_in_progress", "flashback_in_progress", "flashback_not_prepared", "bucket_version_not_match"),
        *("raft_entry_too_large", "undetermined_result"),
    }
)


@dataclass(frozen=True, slots=True)
class CachedRegion:
    """A region and the keys on the wire that it has."""

    range: KeyRange
    region: Region

    @property
    def epoch(self) -> tuple[int, int]:
        return self.region.version, self.region.conf_ver


class RegionMap:
    """`range_of` gives the keys on the wire of a region."""

    def __init__(self, range_of: Callable[[Region], KeyRange | None]) -> None:
        self._range_of = range_of
        self._by_start: SortedDict = SortedDict()  # start -> Known

    def __len__(self) -> int:
        return len(self._by_start)

    def find(self, key: bytes) -> CachedRegion | None:
        """The region of a key."""
        at = self._by_start.bisect_right(key) - 1
        if at < 0:
            return None
        cached: CachedRegion = self._by_start.peekitem(at)[1]
        return cached if key in cached.range else None

    def add(self, regions: Iterable[Region]) -> None:
        """Regions as PD or a store names them; those without a leader cannot be asked and are left out."""
        for region in regions:
            if region.leader_store_id and (part := self._range_of(region)) is not None:
                self._put(CachedRegion(part, region))

    def drop(self, region: Region) -> None:
        """Forget a region, unless it is known better by now."""
        part = self._range_of(region)
        cached = None if part is None else self._by_start.get(part.start)
        if cached is not None and cached.region == region:
            del self._by_start[cached.range.start]

    def learn(self, asked: Region, error: wire.RegionError) -> bool:
        """A store's reason not to serve `asked`. Whether another place is known now, to be asked at once."""
        kind = error.WhichOneof("kind")
        if kind in _STAYS:
            return False
        self.drop(asked)
        if kind == "not_leader":
            leader = error.not_leader.leader
            if leader.store_id and leader.store_id != asked.leader_store_id:
                self.add([replace(asked, leader_store_id=leader.store_id, leader_peer_id=leader.id)])
                return True
        if kind == "epoch_not_match":
            regions = [_region(meta, asked) for meta in error.epoch_not_match.current_regions]
            newer = [region for region in regions if region is not None and _is_newer(region, asked)]
            self.add(newer)
            return bool(newer)
        return False

    def _put(self, new: CachedRegion) -> None:
        older = list(self._overlapping(new.range))
        if any(known.epoch > new.epoch for known in older):
            return
        for known in older:
            del self._by_start[known.range.start]
        self._by_start[new.range.start] = new

    def _overlapping(self, part: KeyRange) -> Iterable[CachedRegion]:
        first = max(self._by_start.bisect_right(part.start) - 1, 0)
        for start in self._by_start.islice(first):
            cached: CachedRegion = self._by_start[start]
            if part.end and start >= part.end:
                return
            if cached.range.intersect(part) is not None:
                yield cached


def _is_newer(region: Region, asked: Region) -> bool:
    """Not of before `asked`: the store that answered may be behind."""
    return region.id != asked.id or (region.version, region.conf_ver) > (asked.version, asked.conf_ver)


def _region(meta: wire.MetaRegion, region: Region) -> Region | None:
    """A region as a store lists it, without a leader: it is led where the one it comes from was, or by any peer."""
    peers = {peer.store_id: peer.id for peer in meta.peers}
    if not meta.id or not peers:
        return None
    store_id = region.leader_store_id if region.leader_store_id in peers else next(iter(peers))
    return Region(
        id=meta.id,
        conf_ver=meta.region_epoch.conf_ver,
        version=meta.region_epoch.version,
        start=meta.start_key,
        end=meta.end_key,
        leader_store_id=store_id,
        leader_peer_id=peers[store_id],
    )
