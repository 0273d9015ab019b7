"""What a later try of a stretch must know: how folders were chosen, and each one's version, first number and cuts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from destinations.storage.core.parts import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the changes of a part go."""

    version: int  #: of the table, in the folder's name
    first: int = 0  #: number of its first file; 0 = not decided
    counts: tuple[int, ...] = ()  #: changes in each file


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The places of the parts of a stretch, in their order."""

    layout: Layout
    places: Sequence[Place]

    def text(self) -> str:
        layout = [self.layout.date_separator, self.layout.partitions]
        places = [[place.version, place.first, *place.counts] for place in self.places]
        return orjson.dumps({"layout": layout, "places": places}).decode()


def parsed(text: str | bytes) -> Record:
    """The record that this is the text of."""
    found = orjson.loads(text)
    separator, partitions = found["layout"]
    places = [Place(version=v, first=n, counts=tuple(counts)) for v, n, *counts in found["places"]]
    return Record(layout=Layout(date_separator=separator, partitions=partitions), places=places)
