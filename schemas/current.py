"""The newest state of a schema history, to which the next DDL job is applied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from schemas.ddl import Change
from schemas.model import Database, Table
from schemas.names import folded
from schemas.start import Start
from schemas.timeline import Timelines


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    databases: Mapping[int, Database]
    timelines: Timelines
    start: Start
    changes: Sequence[Change]

    def table(self, table_id: int) -> Table | None:
        return self.timelines.table(table_id).last

    def tables_of(self, db_id: int) -> list[int]:
        timelines = self.timelines.tables
        touched = [i for i, line in timelines.items() if line.last is not None and line.last.db_id == db_id]
        return sorted([*touched, *(i for i in self.start.ids_in(db_id) if i not in timelines)])

    def named(self, db: str, name: str) -> Table | None:
        return self.timelines.named(folded(db), folded(name)).last

    def dropped_with(self, db_id: int) -> Sequence[Table] | None:
        change = next((c for c in reversed(self.changes) if db_id in c.drop_databases), None)
        if change is None:
            return None
        return list(self.timelines.tables_at(change.drop_tables, change.commit_ts - 1).values())
