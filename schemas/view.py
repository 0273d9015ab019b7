"""What the changes of a schema history made of its start, by time: databases, and what each id and name refers to.

A history has two views of the same changes. In that of its *events* a DDL counts from its event on, which change
feeds follow. In the *public* one it counts from its first public definition on, which TiDB uses for reads as of a
timestamp, and which is earlier for a DDL that ends some schema versions after it took effect (see docs/schemas.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from schemas.ddl import Change
from schemas.model import Database, Table
from schemas.names import folded
from schemas.start import Start
from schemas.timeline import Timeline, Timelines

_NO_DATABASE: Timeline[Database] = Timeline()


class View:
    """Changes are taken in commit order. `copy` is independent; the start and all tables are shared."""

    def __init__(self, start: Start) -> None:
        self.databases: dict[int, Database] = {}  #: in force after the last change
        self.timelines = Timelines(start)
        self._named: dict[str, Timeline[Database]] = {}  # databases by lower-case name
        self._put(start.ts, start.databases.values())

    def take(self, change: Change) -> None:
        ts = change.commit_ts
        for table_id in (*change.drop_tables, *(t.id for t in change.put_tables)):
            if (old := self.timelines.table(table_id).last) is not None:
                self.timelines.set(ts, old, None)
        for db_id in change.drop_databases:
            if db := self.databases.pop(db_id, None):
                self._named[folded(db.name)] = self._named[folded(db.name)].extended(ts, None)
        self._put(ts, change.put_databases)
        for table in change.put_tables:
            self.timelines.set(ts, table, table)

    def _put(self, ts: int, databases: Iterable[Database]) -> None:
        for db in databases:
            self.databases[db.id] = db
            self._named[folded(db.name)] = self.database(db.name).extended(ts, db)

    def database(self, name: str) -> Timeline[Database]:
        """The timeline of a name, in any case."""
        return self._named.get(folded(name), _NO_DATABASE)

    def database_names(self) -> list[str]:
        """The lower-case names that databases ever had."""
        return list(self._named)

    def databases_at(self, ts: int) -> dict[int, Database]:
        """By id, in the order of their names."""
        versions = (timeline.at(ts) for _, timeline in sorted(self._named.copy().items()))
        return {db.id: db for db in versions if db is not None}

    def copy(self) -> View:
        new = object.__new__(View)
        new.databases, new.timelines, new._named = self.databases.copy(), self.timelines.copy(), self._named.copy()
        return new


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    view: View
    start: Start
    changes: Sequence[Change]

    @property
    def databases(self) -> Mapping[int, Database]:
        return self.view.databases

    def table(self, table_id: int) -> Table | None:
        return self.view.timelines.table(table_id).last

    def tables_of(self, db_id: int) -> list[int]:
        timelines = self.view.timelines.tables
        touched = [i for i, line in timelines.items() if line.last is not None and line.last.db_id == db_id]
        return sorted([*touched, *(i for i in self.start.ids_in(db_id) if i not in timelines)])

    def named(self, db: str, name: str) -> Table | None:
        return self.view.timelines.named(folded(db), folded(name)).last

    def dropped_with(self, db_id: int) -> Sequence[Table] | None:
        drops = (c for c in reversed(self.changes) if db_id in c.drop_databases and not c.early)
        if (change := next(drops, None)) is None:
            return None
        return list(self.view.timelines.tables_at(change.drop_tables, change.commit_ts - 1).values())
