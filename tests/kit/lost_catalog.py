"""A catalog that is exported, goes on, and is lost; and the restore of its export."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.kit.catalog_cases import elected
from tests.kit.manual_clock import ManualClock
from tistream.catalog.database.engine import Catalog
from tistream.exports.exporter import Exporter
from tistream.exports.pieces import Sealing
from tistream.exports.restore import Restored, restore
from tistream.objectstore.generations import FIRST, GenerationWatch
from tistream.objectstore.memory import MemoryStore


@dataclass
class Lost:
    """A catalog that is lost, and an empty one for the restore."""

    catalog: Catalog
    empty: Catalog
    store: MemoryStore = field(default_factory=MemoryStore)
    clock: ManualClock = field(default_factory=ManualClock)
    said: list[str] = field(default_factory=list)

    def export(self) -> None:
        watch = GenerationWatch(self.store, FIRST, self.clock)
        Exporter(self.catalog, self.store, watch).step(elected(self.catalog))

    def restore(self) -> Restored:
        """Into the empty one, on which services may start then."""
        made = restore(self.empty, self.store, self.clock, sealing=Sealing(), by="x", say=self.said.append)
        self.empty.migrate()
        return made

    def objects(self, prefix: str) -> dict[str, bytes]:
        return {info.key: self.store.get(info.key) for info in self.store.list(prefix)}
