"""The played back PD's answers at the stage's current line.

Regions follow the plan, stores the recorded answers, timestamps the stage's clock; addresses are those of the playback.
History below the recording's first checkpoint cannot be held: it is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from simulator.loopback.core.feed_wire import region_form
from simulator.loopback.core.pd import PdAnswers
from simulator.playback.core.stage import Stage
from simulator.playback.recording import Recording
from tistream.codec.protobuf import parse
from tistream.keyrange import KeyRange
from tistream.tikv.core import wire


class PlaybackPd(PdAnswers):
    """The answers. Its owner holds the stage's lock around every call."""

    def __init__(self, recording: Recording, stage: Stage, address: str, store_addresses: Mapping[int, str]) -> None:
        super().__init__(address)
        self._recording, self._stage, self._store_addresses = recording, stage, store_addresses

    @property
    def cluster_id(self) -> int:
        return self._recording.cluster_id

    @property
    def kept_from_ts(self) -> int:
        return self._recording.start_ts

    def stores(self) -> Sequence[wire.MetaStore]:
        recorded = self._recording.stores[0][1]
        for line, answer in self._recording.stores:
            if line < self._stage.line:
                recorded = answer
        return [
            wire.MetaStore(id=s.id, address=self._store_addresses[s.id], state=s.state, version=s.version)
            for s in parse(wire.GetAllStoresResponse, recorded).stores
        ]

    def regions(self, wanted: KeyRange) -> Iterator[wire.PdRegion]:
        for tile in self._stage.plan.tiles(self._stage.line, wanted.start, wanted.end):
            region = tile.region
            meta = wire.MetaRegion(
                id=region.region_id,
                start_key=region_form(tile.range.start),
                end_key=region_form(tile.range.end),
                region_epoch=wire.RegionEpoch(conf_ver=region.conf_ver, version=region.version),
                peers=region.peers,
            )
            yield wire.PdRegion(region=meta, leader=region.peer_on(tile.store_id))

    def tso(self, count: int) -> int:
        return self._stage.tso(count)
