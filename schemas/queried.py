"""The questions that a schema history answers, at any timestamp from its start up to where it is known.

`schemas.history.History` takes the changes; see there for what holds of the answers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from schemas.ddl import Change
from schemas.diff import SchemaDiff, diff
from schemas.followed import Followed
from schemas.ids import SYSTEM, IdStatus, NamedIds
from schemas.model import Database, DdlEvent, Table
from schemas.names import folded, no_database, no_table, not_followed
from schemas.snapshot import SchemaSnapshot
from schemas.start import Entry, Start
from schemas.timeline import VersionIntervals, ids_during
from schemas.view import View
from tistream.errors import InvalidInput, TsExpired, TsOutOfRange

_SNAPSHOTS_KEPT = 8


class Queried:
    """The queries of a history, over its start and the changes since."""

    _start: Start
    _resolved_ts: int
    _followed: Followed
    _changes: list[Change]
    _view: View
    _named: NamedIds
    _named_since: dict[int, int]  # by physical id, of those named by a change
    _older: frozenset[int]
    _snapshots: dict[int, SchemaSnapshot]  # by number of changes

    @property
    def start_ts(self) -> int:
        """Nothing is known below this timestamp."""
        return self._start.ts

    @property
    def resolved_ts(self) -> int:
        """Every job with a commit timestamp at or below has been applied."""
        return self._resolved_ts

    def table_at(self, physical_id: int, ts: int) -> Table | None:
        """The version that this physical id has at `ts`; for a row committed at c ask at c - 1."""
        self._check(ts)
        return self._followed.shown(self._view.timelines.physical(physical_id).at(ts))

    def status_at(self, physical_id: int, ts: int) -> IdStatus:
        """The status of a physical id at `ts`."""
        self._check(ts)
        timeline = self._view.timelines.physical(physical_id)
        if not timeline.starts or ts < timeline.starts[0]:
            return self.status_before(physical_id)
        return IdStatus.RETIRED if timeline.at(ts) is None else IdStatus.LIVE

    def status_before(self, physical_id: int) -> IdStatus:
        """The status of an id before a table reads it for the first time."""
        return self._named.status(physical_id)

    def is_followed(self, physical_id: int) -> bool:
        """Whether rows of this id reach the log."""
        return self._followed.has(physical_id)

    def was_named_at(self, physical_id: int, ts: int) -> bool:
        """Whether a DDL of partitions under way at `ts` named this id, and may have copied rows to it by then."""
        if self._named.table_of.get(physical_id, SYSTEM) == SYSTEM:
            return False
        return self._named_since.get(physical_id, self._start.ts) <= ts

    def is_older(self, physical_id: int) -> bool:
        """Whether the id came to be read by a DDL that did not allocate it, such as a RECOVER TABLE of a table that was
        dropped before the history begins: its rows may be older than the log."""
        return physical_id in self._older

    def unlogged(self, upto_ts: int) -> Change | None:
        """The newest change at or below `upto_ts` whose rows the change feed does not carry."""
        return next((c for c in reversed(self._changes) if c.unlogged and c.created_ts <= upto_ts), None)

    def version_intervals(self, physical_id: int) -> VersionIntervals:
        """All versions of a physical id, for looking up many rows at once; empty for an unknown id."""
        timeline = self._view.timelines.physical(physical_id)
        versions = tuple(map(self._followed.shown, timeline.values))
        return VersionIntervals(starts=np.array(timeline.starts, dtype=np.uint64), versions=versions)

    def databases(self, ts: int) -> list[Database]:
        self._check(ts)
        return list(self._view.databases_at(ts).values())

    def database(self, name: str, ts: int) -> Database:
        """The database of this name, in any case. NotFound with a suggestion."""
        self._check(ts)
        if (database := self._view.database(name).at(ts)) is None:
            raise no_database(name, [db.name for db in self.databases(ts)], ts=ts)
        return database

    def tables(self, db: str, ts: int) -> list[Table]:
        """Tables, views and sequences of a database at `ts`, by name. NotFound when there is no such database."""
        self.database(db, ts)
        versions = (self.named(db, name, ts) for name in self._names_in(folded(db)))
        return sorted((table for table in versions if table is not None), key=lambda table: folded(table.name))

    def _names_in(self, db: str) -> set[str]:
        """The lower-case names that tables of the database ever had."""
        return set(self._view.timelines.names_in(db)).union(map(folded, self._start.names_in(db)))

    def named(self, db: str, table: str, ts: int) -> Table | None:
        """The table of this name at `ts`, in any case."""
        self._check(ts)
        return self._followed.shown(self._view.timelines.named(folded(db), folded(table)).at(ts))

    def existed(self, db: str, table: str | None, after_ts: int, upto_ts: int) -> bool:
        """Whether there was such a database (or such a table in it, a view or sequence too) at any time in [after_ts,
        upto_ts], in any case of letters."""
        self._check(after_ts)
        self._check(upto_ts)
        if table is None:
            return any(self._view.database(db).during(after_ts, upto_ts))
        timeline = self._view.timelines.named(folded(db), folded(table))
        return any(map(self._followed.shows, timeline.during(after_ts, upto_ts)))

    def changed_versions(self, after_ts: int, upto_ts: int) -> Iterator[Table]:
        """The versions in force at any time in [after_ts, upto_ts] of tables that ever changed."""
        timelines = list(self._view.timelines.tables.values())
        versions = (table for timeline in timelines for table in timeline.during(after_ts, upto_ts))
        return filter(self._followed.shows, versions)

    def find(self, db: str, table: str, ts: int) -> Table:
        """The table of this name at `ts`, in any case. NotFound with a suggestion."""
        self.database(db, ts)
        if (version := self.named(db, table, ts)) is None:
            if (there := self._not_shown(db, table, ts)) is not None:
                raise not_followed(there.db, there.name, ts=ts)
            raise no_table(db, table, self._spelled(folded(db), ts), ts=ts)
        return version

    def _not_shown(self, db: str, table: str, ts: int) -> Table | None:
        """The table of this name, which the tenant does not follow."""
        there = self._view.timelines.named(folded(db), folded(table)).at(ts)
        return None if there is None or self._followed.shows(there) else there

    def find_base_table(self, db: str, table: str, ts: int) -> Table:
        """As `find`. InvalidInput for a view or a sequence."""
        base = self.find(db, table, ts)
        if base.kind != "table":
            raise InvalidInput(f"{base.db}.{base.name} is a {base.kind}: it has no rows of its own.", kind=base.kind)
        return base

    def _spelled(self, db: str, ts: int) -> list[str]:
        """Names of the tables of a database at `ts`; tables that never changed are not parsed."""
        timelines = self._view.timelines.names_in(db)
        shown = self._followed.shown
        alive = [table.name for timeline in timelines.values() if (table := shown(timeline.at(ts))) is not None]
        unchanged = (e.name for e in self._start.entries_in(db) if folded(e.name) not in timelines and self._lists(e))
        return sorted([*alive, *unchanged], key=folded)

    def _lists(self, entry: Entry) -> bool:
        return any(map(self._followed.has, entry.partition_ids or (entry.id,)))

    def physical_ids(self, db: str, table: str | None, after_ts: int, upto_ts: int) -> set[int]:
        """The physical ids of this name (or of all tables of the database) at any time in (after_ts, upto_ts]: those
        that a reader of these changes must read. Empty when the name did not exist then."""
        self._check(after_ts)
        self._check(upto_ts)
        db = folded(db)
        if table is not None:
            return self._reaching(ids_during([self._view.timelines.named(db, folded(table))], after_ts, upto_ts))
        timelines = self._view.timelines.names_in(db)
        at_start = (self._start.named(db, name) for name in timelines)
        changed = {physical_id for t in at_start if t is not None for physical_id in t.physical_ids}
        unchanged = self._start.physical_ids_in(db) - changed
        return self._reaching(unchanged | ids_during(timelines.values(), after_ts, upto_ts))

    def _reaching(self, physical_ids: set[int]) -> set[int]:
        """Those that are followed."""
        return set(filter(self._followed.has, physical_ids)) if self._followed.left_out else physical_ids

    def physical_ids_named(self, wanted: Callable[[str, str], bool]) -> set[int]:
        """The physical ids that tables with a wanted name (database, table, both in lower case) had at any time."""
        ids: set[int] = set()
        for db in self._view.database_names():
            changed = self._view.timelines.names_in(db)
            unchanged = {n for n in map(folded, self._start.names_in(db)) if n not in changed and wanted(db, n)}
            ids |= self._start.physical_ids_of(db, unchanged)
            ids |= ids_during((t for n, t in changed.items() if wanted(db, n)), self.start_ts, self.resolved_ts)
        return self._reaching(ids)

    def snapshot(self, ts: int) -> SchemaSnapshot:
        """The whole schema at `ts`. Snapshots between the same two jobs share everything but `ts`."""
        self._check(ts)
        count = bisect_right(self._changes, ts, key=_commit_ts)
        snapshot = self._snapshots.get(count)
        if snapshot is None:
            snapshot = self._snapshot_at(ts, self._changes[count - 1].schema_version if count else None)
            if len(self._snapshots) >= _SNAPSHOTS_KEPT:
                self._snapshots.clear()
            self._snapshots[count] = snapshot
        return replace(snapshot, ts=ts)

    def _snapshot_at(self, ts: int, schema_version: int | None) -> SchemaSnapshot:
        ids = {*self._start.ids(), *self._view.timelines.tables}
        return SchemaSnapshot(
            ts=ts,
            databases=MappingProxyType({db.id: db for db in self.databases(ts)}),
            tables=MappingProxyType(self._shown_at(ids, ts)),
            schema_version=self._start.schema_version if schema_version is None else schema_version,
        )

    def _shown_at(self, table_ids: Iterable[int], ts: int) -> dict[int, Table]:
        return {
            i: table
            for i, table in self._view.timelines.tables_at(table_ids, ts).items()
            if self._followed.shows(table)
        }

    def events(self, after_ts: int, upto_ts: int) -> list[DdlEvent]:
        """The DDL events committed in (after_ts, upto_ts], in commit order."""
        self._check(after_ts)
        self._check(upto_ts)
        return [event for change in self._changes_in(after_ts, upto_ts) if not change.early for event in change.events]

    def causes(self, ts: int) -> list[DdlEvent]:
        """The DDL that made the versions that begin at `ts`. One that is public before its event is as it was then."""
        return [event for change in self._changes_in(ts - 1, ts) for event in change.events]

    def changes(self, after_ts: int) -> Sequence[Change]:
        """The changes of jobs above `after_ts`, in commit order."""
        return self._changes_in(after_ts, self._resolved_ts)

    def requested_at(self, commit_ts: int) -> int:
        """The earliest request time of the jobs that took effect at `commit_ts`; 0 when not known."""
        return min((change.created_ts for change in self._changes_in(commit_ts - 1, commit_ts)), default=0)

    def diff(self, ts_a: int, ts_b: int) -> SchemaDiff:
        """What changed from `ts_a` to `ts_b`; only tables that a job between them touched are compared."""
        self._check(ts_a)
        self._check(ts_b)
        between = self._changes_in(min(ts_a, ts_b), max(ts_a, ts_b))
        touched = {i for c in between for i in (*c.drop_tables, *(t.id for t in c.put_tables))}
        before, after = (
            SchemaSnapshot(ts=ts, databases={d.id: d for d in self.databases(ts)}, tables=self._shown_at(touched, ts))
            for ts in (ts_a, ts_b)
        )
        return diff(before, after)

    def _changes_in(self, after_ts: int, upto_ts: int) -> list[Change]:
        first = bisect_right(self._changes, after_ts, key=_commit_ts)
        return self._changes[first : bisect_right(self._changes, upto_ts, key=_commit_ts)]

    def _check(self, ts: int) -> None:
        if ts < self._start.ts:
            raise TsExpired("the schema history starts later", ts=ts, earliest_ts=self._start.ts)
        if ts > self._resolved_ts:
            raise TsOutOfRange("the schema is not known at this timestamp yet", ts=ts, resolved_ts=self._resolved_ts)


def _commit_ts(change: Change) -> int:
    return change.commit_ts
