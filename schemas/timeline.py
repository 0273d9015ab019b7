"""Values by the timestamp from which each holds, looked up by bisection.

None means dropped from then on, as opposed to never defined.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from schemas.model import Table
from schemas.names import folded
from schemas.start import Start

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Timeline(Generic[T]):
    """Immutable; `extended` returns a new one. `starts` ascends strictly."""

    starts: tuple[int, ...] = ()
    values: tuple[T | None, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.starts)

    @property
    def last(self) -> T | None:
        return self.values[-1] if self.values else None

    def at(self, ts: int) -> T | None:
        """The newest value that starts at or before `ts`."""
        i = bisect_right(self.starts, ts) - 1
        return self.values[i] if i >= 0 else None

    def during(self, after_ts: int, upto_ts: int) -> Iterator[T]:
        """The values in force at some time in [after_ts, upto_ts]."""
        first = max(bisect_right(self.starts, after_ts) - 1, 0)
        last = bisect_right(self.starts, upto_ts)
        return (value for value in self.values[first:last] if value is not None)

    def extended(self, ts: int, value: T | None) -> Timeline[T]:
        """With `value` in force from `ts` on. `ts` must not lie before the last start; an equal one replaces it."""
        starts, values = self.starts, self.values
        if starts and starts[-1] == ts:
            starts, values = starts[:-1], values[:-1]
        return Timeline((*starts, ts), (*values, value))


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionIntervals:
    """The versions of one physical id, for lookups of many rows at once."""

    starts: npt.NDArray[np.uint64]  #: (n,) timestamps, ascending
    versions: tuple[Table | None, ...]  #: (n); None = the id was retired then

    def whole_after(self, ts: int) -> bool:
        """Whether every row committed at or after `ts` has a version."""
        return bool(len(self.starts)) and int(self.starts[0]) < ts and None not in self.versions

    def index(self, commit_ts: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Per row the index of its version: the newest with start < commit_ts. -1 where there is none."""
        if not self.versions:
            return np.full(len(commit_ts), -1, dtype=np.int64)
        numbers = np.searchsorted(self.starts, commit_ts, side="left").astype(np.int64) - 1
        alive = np.array([version is not None for version in self.versions])
        return np.where((numbers >= 0) & alive[numbers], numbers, -1)


class Timelines:
    """What each table id, physical id and name of a history refers to, by time. Names are folded (`schemas.names`).

    Only what changed since the start has a timeline; its first entry is the start's.
    """

    def __init__(self, start: Start) -> None:
        self._start = start
        self.tables: dict[int, Timeline[Table]] = {}  #: by table id
        self.names: dict[tuple[str, str], Timeline[Table]] = {}
        self._physical: dict[int, Timeline[Table]] = {}

    def copy(self) -> Timelines:
        """Independent timelines with the same contents; the start and all tables are shared."""
        new = Timelines(self._start)
        new.tables, new.names, new._physical = self.tables.copy(), self.names.copy(), self._physical.copy()
        return new

    def set(self, ts: int, table: Table, value: Table | None) -> None:
        """From `ts` on, the ids and the name of `table` refer to `value`."""
        name = folded(table.db), folded(table.name)
        self.tables[table.id] = self.table(table.id).extended(ts, value)
        self.names[name] = self.named(*name).extended(ts, value)
        for physical_id in table.physical_ids:
            self._physical[physical_id] = self.physical(physical_id).extended(ts, value)

    def table(self, table_id: int) -> Timeline[Table]:
        return self.tables.get(table_id) or self._from_start(self._start.table(table_id))

    def physical(self, physical_id: int) -> Timeline[Table]:
        return self._physical.get(physical_id) or self._from_start(self._start.of_physical(physical_id))

    def named(self, db: str, name: str) -> Timeline[Table]:
        return self.names.get((db, name)) or self._from_start(self._start.named(db, name))

    def names_in(self, db: str) -> dict[str, Timeline[Table]]:
        """The timelines of the changed names of a database."""
        return {name: timeline for (of, name), timeline in list(self.names.items()) if of == db}

    def tables_at(self, table_ids: Iterable[int], ts: int) -> dict[int, Table]:
        """The tables that exist at `ts`, by id."""
        versions = ((table_id, self.table(table_id).at(ts)) for table_id in table_ids)
        return {table_id: table for table_id, table in versions if table is not None}

    def _from_start(self, table: Table | None) -> Timeline[Table]:
        return Timeline() if table is None else Timeline((self._start.ts,), (table,))


def ids_during(timelines: Iterable[Timeline[Table]], after_ts: int, upto_ts: int) -> set[int]:
    """The physical ids of the ordinary tables in force at any time in (after_ts, upto_ts]."""
    versions = (version for timeline in timelines for version in timeline.during(after_ts, upto_ts))
    return {physical_id for version in versions if version.kind == "table" for physical_id in version.physical_ids}
