"""A schema history as if only some tables existed: what a reader sees who may read only these.

A table exists for such a reader while its name lies within the limit. So a version under another name is no version, a
name outside is not found like one that never was, and no suggestion holds one. DDL is that of the tables within:

    RENAME out of the limit          DROP TABLE of the old name
    RENAME into the limit            CREATE TABLE of the new name
    CREATE TABLE ... LIKE another    CREATE TABLE with the columns
    EXCHANGE PARTITION across it     an ALTER TABLE of the table within, without the other name
    a text for several new tables    CREATE TABLE with the columns

Other statements are as they were written: one can name other tables itself, such as a foreign key or the SELECT of a
view. Databases are shown when the limit may mean a table in them.

`whole_of` is the history without the limit, for what a read needs and does not show: how rows of a table within were
written while it had another name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from schemas import queries
from schemas.actions import Action
from schemas.ddl import Change
from schemas.diff import SchemaDiff
from schemas.diff import diff as differences
from schemas.events import created, dropped, of_table
from schemas.history import History
from schemas.model import Database, DdlEvent, Table
from schemas.names import folded, no_database
from schemas.snapshot import SchemaSnapshot
from schemas.timeline import VersionIntervals, ids_during
from tistream.errors import invariant

_NAME = re.compile(r"`(?:[^`]|``)+`")
_LIKE = re.compile(
    rf"CREATE\b[^`(]*\bTABLE\b[^`(]*(?:{_NAME.pattern}\.)?{_NAME.pattern}\s*\(?\s*LIKE\s+(?P<names>(?:{_NAME.pattern}\.)?{_NAME.pattern})",
    re.IGNORECASE,
)
_RENAMES = (Action.RENAME_TABLE, Action.RENAME_TABLES)
_ELSEWHERE = "/* EXCHANGE PARTITION with a table that this key may not read */"


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """Which names lie within a limit."""

    table: Callable[[str, str], bool]  #: database, table
    database: Callable[[str], bool]


class LimitedHistory(History):
    """See the module. It shares everything with the history it is made of, which may advance, but take no DDL: advance
    this one with it."""

    def __init__(self, whole: History, within: Within) -> None:
        self.__dict__.update(whole.__dict__)
        self._within = within

    @cached_property
    def whole(self) -> History:
        """The history without the limit."""
        history = object.__new__(History)
        history.__dict__.update({name: value for name, value in self.__dict__.items() if name not in _OWN})
        return history

    @cached_property
    def ids(self) -> frozenset[int]:
        """The physical ids that tables within ever had."""
        return frozenset(super().physical_ids_named(self._within.table))

    def advance(self, ts: int) -> None:
        super().advance(ts)
        self.whole.advance(ts)

    def _has(self, table: Table | None) -> bool:
        return table is not None and self._within.table(table.db, table.name)

    def public(self) -> LimitedHistory:
        return LimitedHistory(self.whole.public(), self._within)

    # ---- tables and databases

    def table_at(self, physical_id: int, ts: int) -> Table | None:
        table = super().table_at(physical_id, ts)
        return table if self._has(table) else None

    def version_intervals(self, physical_id: int) -> VersionIntervals:
        intervals = super().version_intervals(physical_id)
        return replace(intervals, versions=tuple(table if self._has(table) else None for table in intervals.versions))

    def databases(self, ts: int) -> list[Database]:
        return [database for database in super().databases(ts) if self._within.database(database.name)]

    def database(self, name: str, ts: int) -> Database:
        if not self._within.database(name):
            raise no_database(name, [database.name for database in self.databases(ts)], ts=ts)
        return super().database(name, ts)

    def tables(self, db: str, ts: int) -> list[Table]:
        return [table for table in super().tables(db, ts) if self._has(table)]

    def named(self, db: str, table: str, ts: int) -> Table | None:
        tables = super().named(db, table, ts)
        return tables if self._has(tables) else None

    def existed(self, db: str, table: str | None, after_ts: int, upto_ts: int) -> bool:
        within = self._within.database(db) if table is None else self._within.table(db, table)
        return within and super().existed(db, table, after_ts, upto_ts)

    def changed_versions(self, after_ts: int, upto_ts: int) -> Iterator[Table]:
        return filter(self._has, super().changed_versions(after_ts, upto_ts))

    def _not_shown(self, db: str, table: str, ts: int) -> Table | None:
        return super()._not_shown(db, table, ts) if self._within.table(db, table) else None

    def _spelled(self, db: str, ts: int) -> list[str]:
        return [name for name in super()._spelled(db, ts) if self._within.table(db, name)]

    def physical_ids(self, db: str, table: str | None, after_ts: int, upto_ts: int) -> set[int]:
        if table is not None:
            return super().physical_ids(db, table, after_ts, upto_ts) if self._within.table(db, table) else set()
        self._check(after_ts)
        self._check(upto_ts)
        changed = self._view.timelines.names_in(folded(db))
        names = {name for name in self._names_in(folded(db)) if self._within.table(db, name)}
        unchanged = self._start.physical_ids_of(folded(db), names - changed.keys())
        return unchanged | ids_during((t for name, t in changed.items() if name in names), after_ts, upto_ts)

    def physical_ids_named(self, wanted: Callable[[str, str], bool]) -> set[int]:
        return super().physical_ids_named(lambda db, name: wanted(db, name) and self._within.table(db, name))

    def snapshot(self, ts: int) -> SchemaSnapshot:
        whole = super().snapshot(ts)
        return replace(
            whole,
            databases=MappingProxyType({d.id: d for d in whole.databases.values() if self._within.database(d.name)}),
            tables=MappingProxyType({i: table for i, table in whole.tables.items() if self._has(table)}),
        )

    # ---- changes

    def events(self, after_ts: int, upto_ts: int) -> list[DdlEvent]:
        return self._of_reader(super().events(after_ts, upto_ts))

    def causes(self, ts: int) -> list[DdlEvent]:
        return self._of_reader(super().causes(ts))

    def _of_reader(self, events: Iterable[DdlEvent]) -> list[DdlEvent]:
        mapped = map(self._event, events)
        return [replace(event, job_query=event.query) for event in mapped if event is not None]

    def changes(self, after_ts: int) -> Sequence[Change]:
        invariant(False, "the changes of jobs are not shown to a reader with a limit")
        return []

    def diff(self, ts_a: int, ts_b: int) -> SchemaDiff:
        self._check(ts_a)
        self._check(ts_b)
        return differences(self.snapshot(ts_a), self.snapshot(ts_b))

    def _event(self, event: DdlEvent) -> DdlEvent | None:
        """The event as the reader sees it; None when it is not about what lies within."""
        of_several = event.type == Action.CREATE_TABLES and event.query == event.job_query
        if not event.table:
            return event if self._within.database(event.db) else None
        if event.exchanged is not None:
            return self._exchange(event)
        now = self._within.table(event.db, event.table)
        if event.type not in _RENAMES or not event.old_table:
            shows_others = of_several or self._is_like_another(event)
            return None if not now else self._created(event) if shows_others else event
        before, now = (self._within.table(*names) for names in _renamed(event))
        if now and before:
            return event
        return self._created(event) if now else self._dropped(event) if before else None

    def _is_like_another(self, event: DdlEvent) -> bool:
        """Whether it is a CREATE TABLE ... LIKE a table that is not within."""
        match = _LIKE.match(event.statement) if event.type == Action.CREATE_TABLE else None
        if match is None:
            return False
        *database, table = _names(match["names"])
        return not self._within.table(database[0] if database else event.db, table)

    def _exchange(self, event: DdlEvent) -> DdlEvent | None:
        partitioned, plain = event.version, event.exchanged
        if self._has(partitioned) and self._has(plain):
            return event
        table = partitioned if self._has(partitioned) else plain if self._has(plain) else None
        if table is None:
            return None
        query = f"ALTER TABLE {queries.quoted(table.db, table.name)} {_ELSEWHERE}"
        return of_table(event, table, event.type, query)

    def _created(self, event: DdlEvent) -> DdlEvent | None:
        table = event.version
        if table is None or table.kind != "table" or not self._has(table):
            return None
        return created(event, table, super().database(table.db, event.commit_ts))

    def _dropped(self, event: DdlEvent) -> DdlEvent | None:
        table = self._view.timelines.named(folded(event.old_db), folded(event.old_table)).at(event.commit_ts - 1)
        return None if table is None or not self._has(table) else dropped(event, table)


_OWN = ("_within", "whole", "ids")


def _names(text: str) -> list[str]:
    """The names in backquotes."""
    return [name[1:-1].replace("``", "`") for name in _NAME.findall(text)]


def _renamed(event: DdlEvent) -> tuple[tuple[str, str], tuple[str, str]]:
    """The names before and after a RENAME. Those of its statement: where a later clause renames the table again, the
    event has the last name, and the statement the passing one."""
    old_db, old_table, db, table = _names(event.query)
    return (old_db, old_table), (db, table)


def whole_of(history: History) -> History:
    """The history without the limit of a reader."""
    return history.whole if isinstance(history, LimitedHistory) else history


def ids_of_limit(history: History) -> frozenset[int] | None:
    """The physical ids that tables within the limit of a reader ever had; None without a limit."""
    return history.ids if isinstance(history, LimitedHistory) else None
