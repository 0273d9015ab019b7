"""The end of a schema history, as the state that the next DDL job is applied to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from schemas.model import Database, Table
from schemas.names import folded

if TYPE_CHECKING:
    from schemas.history import History


class Current:
    """See the module. Follows the history that it belongs to."""

    __slots__ = ("_history",)

    def __init__(self, history: History) -> None:
        self._history = history

    @property
    def databases(self) -> Mapping[int, Database]:
        return self._history._databases

    def table(self, table_id: int) -> Table | None:
        return self._history._lines.table(table_id).last

    def tables_of(self, db_id: int) -> list[int]:
        lines = self._history._lines.tables
        touched = [i for i, line in lines.items() if line.last is not None and line.last.db_id == db_id]
        return sorted([*touched, *(i for i in self._history._start.ids_in(db_id) if i not in lines)])

    def named(self, db: str, name: str) -> Table | None:
        return self._history._lines.named(folded(db), folded(name)).last

    def dropped_with(self, db_id: int) -> Sequence[Table] | None:
        changes = self._history._changes
        change = next((c for c in reversed(changes) if db_id in c.drop_databases), None)
        if change is None:
            return None
        return list(self._history._tables_at(change.drop_tables, change.commit_ts - 1).values())
