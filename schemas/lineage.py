"""The ancestors of columns that a MODIFY COLUMN gave a new id (pure).

Changing a column's type in a way that needs new bytes makes TiDB add a column with a new id, rewrite every row and then
swap the new column in. The change feed does not carry the rewritten rows: a row not written since still holds only the
old column. Its value is then that of the old column, converted step by step along the lineage.

Nothing records that one column replaced another; consecutive versions of a table show it:

- a new column with the name of a dropped one replaced it: one statement cannot drop and add the same name;
- in a MODIFY COLUMN, the one new column replaced the one dropped column, whatever its name;
- in an ALTER of several parts without a CHANGE, new and dropped columns with different names are unrelated.

Anything else is not known: `Ancestor.column` is None.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from schemas.actions import Action
from schemas.history import History
from schemas.model import STATE_PUBLIC, Column, DdlEvent, Table
from schemas.names import folded

_CHANGE = re.compile(r"\bchange\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ancestor:
    """A column before and after a DDL that replaced it: `column`, then `became`."""

    column: Column | None  #: None: some earlier column, not known which
    became: Column
    ddl_ts: int
    query: str


Lineages = Mapping[int, tuple[Ancestor, ...]]  #: column id -> its ancestors, the oldest first; only those that have any


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    start_ts: int
    table: Table
    events: Sequence[DdlEvent]


def versions_of(history: History, physical_id: int, upto_ts: int) -> list[Version]:
    """The versions of a physical id up to a timestamp, by time."""
    intervals = history.version_intervals(physical_id)
    return [
        Version(
            start_ts=int(start),
            table=version,
            events=() if n == 0 else [e for e in history.causes(int(start)) if e.table_id == version.id],
        )
        for n, (start, version) in enumerate(zip(intervals.starts.tolist(), intervals.versions, strict=True))
        if version is not None and start <= upto_ts
    ]


def column_lineages(versions: Sequence[Version]) -> dict[int, tuple[Ancestor, ...]]:
    """The lineages of the newest version's public columns. `versions` are those of one physical id, by time."""
    lines: dict[int, tuple[Ancestor, ...]] = {}
    for before, after in itertools.pairwise(versions):
        ancestors = _replaced(before.table, after)
        for new_id, ancestor in ancestors.items():
            older = lines.get(ancestor.column.id, ()) if ancestor.column is not None else ()
            lines[new_id] = (*older, ancestor)
    public = {c.id for c in _public(versions[-1].table)} if versions else set()
    return {id_: line for id_, line in lines.items() if id_ in public}


def _replaced(before: Table, after: Version) -> dict[int, Ancestor]:
    """New column id -> its ancestor."""
    known = {c.id for c in _public(before)}
    kept = {c.id for c in _public(after.table)}
    new = [c for c in _public(after.table) if c.id not in known]
    gone = {folded(c.name): c for c in _public(before) if c.id not in kept}
    query = "; ".join(event.job_query or event.query for event in after.events)
    ancestors: dict[int, Ancestor] = {}
    for column in new:
        old = gone.pop(folded(column.name), None)
        if old is not None:
            ancestors[column.id] = Ancestor(column=old, became=column, ddl_ts=after.start_ts, query=query)
    others = [c for c in new if c.id not in ancestors]
    if not others or not gone:
        return ancestors
    types = {event.type for event in after.events}
    if types == {Action.MODIFY_COLUMN} and len(others) == len(gone) == 1:
        old = next(iter(gone.values()))
        ancestors[others[0].id] = Ancestor(column=old, became=others[0], ddl_ts=after.start_ts, query=query)
    elif types != {Action.MULTI_SCHEMA_CHANGE} or _CHANGE.search(query):
        ancestors |= {c.id: Ancestor(column=None, became=c, ddl_ts=after.start_ts, query=query) for c in others}
    return ancestors


def table_ids(history: History, table: Table) -> tuple[int, ...]:
    """The ids that the table had up to now, newest first. TRUNCATE TABLE and changes of partitioning give a table a
    new id and keep its columns with their ids; a table that was dropped and created again is another one."""
    return tuple(dict.fromkeys(each.id for each, _ in _generations(history, table)))


def table_lineages(history: History, table: Table, ts: int) -> Lineages:
    """The lineages of the public columns that the table has at `ts`, through all ids that it had up to then."""
    versions: list[Version] = []
    upto = ts
    for _, born in _generations(history, table):
        if not born:
            break
        oldest = min(born, key=lambda id_: born[id_])
        versions = [*versions_of(history, oldest, upto), *versions]
        upto = born[oldest] - 1
    return column_lineages(versions)


def _generations(history: History, table: Table) -> Iterator[tuple[Table, dict[int, int]]]:
    """(the table, its physical ids with the timestamps of their births) for each set of physical ids that it had,
    newest first."""
    while True:
        born = {id_: int(s[0]) for id_ in table.physical_ids if len(s := history.version_intervals(id_).starts)}
        yield table, born
        at = min(born.values(), default=0)
        if at <= history.start_ts:
            return
        first = history.table_at(next(id_ for id_ in born if born[id_] == at), at)
        there = history.physical_ids(first.db, first.name, at - 1, at - 1) if first is not None else ()
        before = history.table_at(min(there), at - 1) if there else None
        if first is None or before is None or _ids_of(before) != _ids_of(first):
            return
        table = before


def _ids_of(table: Table) -> list[tuple[int, str]]:
    return [(c.id, c.name) for c in _public(table)]


def _public(table: Table) -> list[Column]:
    return [c for c in table.columns if c.state == STATE_PUBLIC]
