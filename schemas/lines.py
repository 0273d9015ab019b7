"""What stands for each table id, physical id and name of a schema history, from when.

Lines are kept of what changed since the start; the first entry of a line is what the start says.
"""

from __future__ import annotations

from collections.abc import Iterable

from schemas.model import Table
from schemas.names import folded
from schemas.start import Start
from schemas.timeline import Timeline


class Lines:
    """See the module. Names are folded (`schemas.names`)."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self.tables: dict[int, Timeline[Table]] = {}  #: by table id
        self.names: dict[tuple[str, str], Timeline[Table]] = {}
        self._physical: dict[int, Timeline[Table]] = {}

    def copy(self) -> Lines:
        """Independent lines with the same contents; the start and all tables are shared."""
        new = Lines(self._start)
        new.tables, new.names, new._physical = self.tables.copy(), self.names.copy(), self._physical.copy()
        return new

    def set(self, ts: int, table: Table, value: Table | None) -> None:
        """From `ts` on the ids and the name of `table` stand for `value`."""
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

    def tables_at(self, table_ids: Iterable[int], ts: int) -> dict[int, Table]:
        """Those of the tables that are there at `ts`."""
        found = ((table_id, self.table(table_id).at(ts)) for table_id in table_ids)
        return {table_id: table for table_id, table in found if table is not None}

    def _from_start(self, table: Table | None) -> Timeline[Table]:
        return Timeline() if table is None else Timeline((self._start.ts,), (table,))
