"""The replayed PD's answers at the stage's current line.

Regions follow the plan, stores the recorded answers, timestamps the stage's clock; addresses are the replay's own.
History below the recording's first checkpoint cannot be held: it is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from simulator.loopback.core.pd import PdAnswers, PdRegion, PdStore
from simulator.replay.core.stage import Stage
from simulator.replay.recording import Recording
from tistream.codec.protobuf import BYTES, VARINT, fields, merged
from tistream.keyrange import KeyRange


class ReplayPd(PdAnswers):
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

    def stores(self) -> Sequence[PdStore]:
        recorded = self._recording.stores[0][1]
        for line, answer in self._recording.stores:
            if line < self._stage.line:
                recorded = answer
        found = [merged(store, {1: VARINT, 3: VARINT, 5: BYTES}) for _, store in fields(recorded, {2: BYTES})]
        return [
            PdStore(
                store_id=said[1],
                address=self._store_addresses[said[1]],
                state=said.get(3, 0),
                version=said.get(5, b""),
            )
            for said in found
        ]

    def regions(self, wanted: KeyRange) -> Iterator[PdRegion]:
        for tile in self._stage.plan.tiles(self._stage.line, wanted.start, wanted.end):
            region = tile.region
            yield PdRegion(
                region_id=region.region_id,
                conf_ver=region.conf_ver,
                version=region.version,
                range=tile.range,
                peers=tuple(region.peers),
                leader=region.peer_on(tile.store_id),
            )

    def tso(self, count: int) -> int:
        return self._stage.tso(count)
