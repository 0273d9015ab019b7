"""Plans which tables get a new base, and which bases are retired (pure).

A read as of a timestamp fetches the base and its tail: the segments above the base that may hold rows of the table. A
new base is worth its cost when the tail has grown to `tail_ratio` of the base: then the bytes written are bounded by
the growth of the log, and the bytes read by the size of the table. Small tails are left alone. A tail counts all
segments that a read fetches, including those of an idle table that hold its neighbours' rows.

A table whose base is older than `due_ts` gets a new one whatever its tail: otherwise retention could not delete the log
above the old one.

Tables whose tails share segments are grouped, so that these are read once. Largest tails first, up to `budget_bytes` of
stored input; at least one group.

Bases within the window are kept, and of each table the newest at or below its start, so every timestamp of the window
has one. Older ones are retired, and those that a newer seed supersedes. The newest base of a table is always kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tistream.catalog.rows.bases import BaseRow
from tistream.catalog.rows.segments import SegmentRow
from tistream.ids import Tenant
from tistream.model.arrays import Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class BasePlanSettings:
    """When a base is worth its cost."""

    tail_ratio: float = 1.0  #: tail / base, in stored bytes
    tail_bytes_min: int = 4 << 20  #: smaller tails are left alone
    group_bytes: int = 64 << 20  #: stored input of one worker, unless one table has more
    budget_bytes: int = 8 << 30  #: stored input of one job


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseTable:
    """A physical table and the predecessor of its next base."""

    table_id: int
    after_ts: int  #: of the predecessor: the log above it is merged
    rows: tuple[SegmentRow, ...]  #: of the predecessor

    @property
    def stored_bytes(self) -> int:
        return sum(row.length for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseGroup:
    """Tables whose bases one worker builds, and the segments that it reads."""

    tables: tuple[BaseTable, ...]
    segments: tuple[SegmentRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BasePlanRow:
    """The complete input of one worker."""

    tenant: Tenant
    job: int
    range_id: int  #: from 0, within the job
    ts: int
    tables: tuple[BaseTable, ...]
    segments: tuple[SegmentRow, ...]


def plan_bases(
    tables: Sequence[BaseTable], segments: Sequence[SegmentRow], ts: int, settings: BasePlanSettings, *, due_ts: int = 0
) -> list[BaseGroup]:
    """The groups. `segments` are all that may hold changes in (lowest `after_ts`, `ts`]."""
    log = _Log(segments, ts)
    tails = {table.table_id: log.tail(table) for table in tables if table.after_ts < ts}
    worthy = [
        table
        for table in tables
        if table.table_id in tails
        and (table.after_ts < due_ts or _is_worth(table, tails[table.table_id], log, settings))
    ]
    groups = list(_grouped(sorted(worthy, key=lambda t: t.table_id), tails, log, settings.group_bytes))
    groups.sort(key=lambda group: -group[0])
    return [
        BaseGroup(tables=tuple(members), segments=tuple(segments[n] for n in np.flatnonzero(held).tolist()))
        for members, held in _within(groups, settings.budget_bytes)
    ]


def apart(row: BasePlanRow, first_id: int) -> list[BasePlanRow]:
    """A plan row per table, with the segments that may hold it; range ids start at `first_id`."""
    log = _Log(row.segments, row.ts)
    return [
        BasePlanRow(
            tenant=row.tenant,
            job=row.job,
            range_id=first_id + n,
            ts=row.ts,
            tables=(table,),
            segments=tuple(row.segments[at] for at in np.flatnonzero(log.tail(table)).tolist()),
        )
        for n, table in enumerate(row.tables)
    ]


def outlived(bases: Sequence[BaseRow], overtaken: Collection[BaseRow], window_start_ts: int) -> list[BaseRow]:
    """The bases that go. `bases` are the tenant's."""
    gone: list[BaseRow] = []
    of_table: dict[int, list[BaseRow]] = {}
    for base in bases:
        of_table.setdefault(base.table_id, []).append(base)
    for mine in of_table.values():
        mine.sort(key=lambda base: base.ts)
        useful = [base for base in mine if base not in overtaken]
        below = [base for base in useful if base.ts <= window_start_ts]
        kept = {base.ts for base in [*useful[len(below) :], *below[-1:], mine[-1]]}
        gone += [base for base in mine if base.ts not in kept]
    return gone


class _Log:
    """The segments as columns."""

    def __init__(self, segments: Sequence[SegmentRow], ts: int) -> None:
        def column(name: str) -> npt.NDArray[np.int64]:
            return np.array([getattr(segment, name) for segment in segments], np.int64)

        self._lo, self._hi, self._last = column("table_lo"), column("table_hi"), column("hi_ts")
        self._held = column("lo_ts") <= ts
        self._bytes = column("length")

    def tail(self, table: BaseTable) -> Mask:
        """The segments that a read of the table at the plan's timestamp fetches."""
        mine = (self._lo <= table.table_id) & (table.table_id <= self._hi)
        mask: Mask = self._held & mine & (self._last > table.after_ts)
        return mask

    def stored_bytes(self, mask: Mask) -> int:
        return int(self._bytes[mask].sum())


def _is_worth(table: BaseTable, tail: Mask, log: _Log, settings: BasePlanSettings) -> bool:
    if not tail.any():
        return False
    return log.stored_bytes(tail) >= max(settings.tail_bytes_min, settings.tail_ratio * table.stored_bytes)


def _grouped(
    tables: Sequence[BaseTable], tails: dict[int, Mask], log: _Log, group_bytes: int
) -> Iterator[tuple[int, list[BaseTable], Mask]]:
    """(stored input, tables, their segments)"""
    members: list[BaseTable] = []
    held, in_bases = np.zeros(0, np.bool_), 0
    for table in tables:
        tail = tails[table.table_id]
        both = held | tail if members else tail
        if members and log.stored_bytes(both) + in_bases + table.stored_bytes > group_bytes:
            yield log.stored_bytes(held) + in_bases, members, held
            members, both, in_bases = [], tail, 0
        members.append(table)
        held = both
        in_bases += table.stored_bytes
    if members:
        yield log.stored_bytes(held) + in_bases, members, held


def _within(
    groups: Sequence[tuple[int, list[BaseTable], Mask]], budget_bytes: int
) -> Iterator[tuple[list[BaseTable], Mask]]:
    spent = 0
    for size, members, held in groups:
        spent += size
        if spent > budget_bytes and spent > size:
            return
        yield members, held
