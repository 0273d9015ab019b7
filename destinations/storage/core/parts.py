"""The changes of a stretch by the folder that they belong to, each in commit order.

What a later try of a stretch must know is how folders were chosen, and what became of each part. A part has the name
that it had in the earlier try, and the digest of its files. A later try writes them again under their numbers if it
makes the same bytes of the same part. If it does not, because filters, options or this program have changed in between,
the part gets new numbers: no file ever has other bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import orjson

from destinations.storage.core.names import dates
from reading.core.changes import TableChanges
from reading.core.split import pick
from schemas.history import History
from schemas.model import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What decides on the folder of a change, apart from its table version."""

    date_separator: str
    partitions: bool  #: a folder for each partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The changes of one table version that go to one folder."""

    changes: TableChanges  #: in the order of the folder
    partition: int  #: physical id; 0 = not in the folder's name
    date: str
    version_ts: int  #: from which the table version holds; 0 where the history begins with it

    @property
    def table(self) -> Table:
        return self.changes.table

    @property
    def first_ts(self) -> int:
        """The lowest commit_ts."""
        return int(self.changes.commit_ts[0])


def parts_of(history: History, changes: Sequence[TableChanges], layout: Layout) -> list[Part]:
    """All changes, in an order that depends on nothing but them."""
    parts = [part for each in changes if len(each) for part in _parts_of_table(history, each, layout)]
    return sorted(parts, key=lambda part: (part.table.id, part.first_ts, part.partition, part.date))


def _parts_of_table(history: History, changes: TableChanges, layout: Layout) -> Iterator[Part]:
    version_ts = _version_ts(history, changes)
    order = np.argsort(changes.order, kind="stable")
    if (order[1:] > order[:-1]).all():
        order = np.arange(len(order))
    else:
        changes = pick(changes, order)
    days = dates(changes.commit_ts, layout.date_separator)
    by_partition = layout.partitions and bool(changes.table.partition_ids)
    for partition in np.unique(changes.physical_id) if by_partition else (0,):
        kept = changes.physical_id == partition if by_partition else np.ones(len(changes), np.bool_)
        for day in np.unique(days[kept]) if days is not None else ("",):
            mine = kept if days is None else kept & (days == day)
            part = changes if mine.all() else pick(changes, np.flatnonzero(mine))
            yield Part(changes=part, partition=int(partition), date=str(day), version_ts=version_ts)


def _version_ts(history: History, changes: TableChanges) -> int:
    intervals = history.version_intervals(int(changes.physical_id[0]))
    starts = int(intervals.starts[int(intervals.index(changes.commit_ts[:1])[0])])
    return starts if starts > history.start_ts else 0


def cut(offsets: npt.NDArray[np.uint64], limit: int) -> list[int]:
    """How many lines each file has, so that none is larger than `limit` unless it has one line. `offsets`: of the
    lines, and their end."""
    counts, first, lines = [], 0, len(offsets) - 1
    while first < lines:
        end = int(np.searchsorted(offsets, offsets[first] + np.uint64(limit), side="right")) - 1
        counts.append(max(1, end - first))
        first += counts[-1]
    return counts


_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFiles:
    """Where the changes of a part go."""

    part: str  #: see `name_of`
    version: int  #: of the table, in the folder's name
    numbers: tuple[int, ...] = ()  #: of its files
    counts: tuple[int, ...] = ()  #: changes in each file
    digest: str = ""  #: of the bytes of its files, see `digest_of`


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The places of the parts of a stretch, in their order."""

    layout: Layout
    places: Sequence[PartFiles]

    def text(self) -> str:
        layout = [self.layout.date_separator, self.layout.partitions]
        places = [[p.part, p.version, p.digest, p.numbers, p.counts] for p in self.places]
        return orjson.dumps({"layout": layout, "places": places}).decode()


def parsed(text: str | bytes) -> Record:
    """The record that this is the text of."""
    values = orjson.loads(text)
    separator, partitions = values["layout"]
    places = [
        PartFiles(part=part, version=version, digest=digest, numbers=tuple(numbers), counts=tuple(counts))
        for part, version, digest, numbers, counts in values["places"]
    ]
    return Record(layout=Layout(date_separator=separator, partitions=partitions), places=places)


def name_of(part: Part) -> str:
    """Of all parts of a stretch, only this one has it."""
    return _hashed([f"{part.table.id} {part.first_ts} {part.partition} {part.date}".encode()])


def digest_of(folder: str, files: Iterable[bytes | memoryview]) -> str:
    """Equal for the same files in the same folder of a destination."""
    return _hashed([folder.encode(), *files])


def _hashed(parts: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.blake2b(digest_size=_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
