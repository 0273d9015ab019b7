"""The schema of one tenant at every timestamp from its snapshot on.

    History(start).apply(job) ... .advance(W)      then every question at a timestamp in [start.ts, resolved_ts]

A version holds from the commit timestamp of the job that made it. A row committed at c is decoded with the version in
force at c - 1, so callers ask `table_at(physical_id, c - 1)`. A physical id becomes known at the DDL's own commit:
rows that a partition DDL copied earlier find nothing, and must not be delivered.

Relations:

- jobs are applied in (commit_ts, schema version) order, each id once; one at or below `resolved_ts` that is not known
  raises BrokenPromise, because answers already given would have been wrong;
- answers at a timestamp at or below `resolved_ts` never change;
- tables are shared, never copied: two timestamps with the same version give the same object;
- the object is not locked. `copy` is cheap; whoever shares a history changes a copy and publishes that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType

import numpy as np

from schemas import ddl, saved
from schemas.ddl import Change, Job
from schemas.diff import SchemaDiff, diff
from schemas.model import Database, DdlEvent, Table
from schemas.names import no_database, no_table
from schemas.snapshot import SchemaSnapshot
from schemas.timeline import Timeline, VersionIntervals
from tistream.errors import BrokenPromise, TsExpired, TsOutOfRange

_SNAPSHOTS_KEPT = 8
_NOTHING: Timeline[Table] = Timeline()
_NO_DATABASE: Timeline[Database] = Timeline()


class IdStatus(StrEnum):
    """What a physical id is at a timestamp."""

    LIVE = "live"
    RETIRED = "retired"  #: belonged to a table once: dropped, truncated or exchanged away
    NOT_YET = "not_yet"  #: will be known later: rows that a partition DDL copies before it finishes
    UNKNOWN = "unknown"  #: never seen: system tables, or retired before the retained history


class History:
    """See the module. `start` is the schema at S, `job_table` the shape of the DDL job table."""

    def __init__(self, start: SchemaSnapshot, job_table: Table) -> None:
        self.job_table = job_table
        self._start = start
        self._resolved_ts = start.ts
        self._changes: list[Change] = []
        self._applied: set[int] = set()
        self._databases: dict[int, Database] = dict(start.databases)  # in force after the last change
        self._tables: dict[int, Table] = dict(start.tables)
        self._db_lines: dict[str, Timeline[Database]] = {}  # by lower-case name
        self._id_lines: dict[int, Timeline[Table]] = {}  # by physical id
        self._name_lines: dict[str, dict[str, Timeline[Table]]] = {}  # by lower-case names
        self._snapshots: dict[int, SchemaSnapshot] = {}  # by number of changes
        self._index(start.ts, self._databases.values(), self._tables.values())

    # ---- growing

    @property
    def start_ts(self) -> int:
        """Nothing is known below this timestamp."""
        return self._start.ts

    @property
    def resolved_ts(self) -> int:
        """Every job with a commit timestamp at or below has been applied."""
        return self._resolved_ts

    def advance(self, ts: int) -> None:
        """Declare the history complete up to `ts`. Never goes back."""
        self._resolved_ts = max(self._resolved_ts, ts)

    def apply(self, job: Job) -> list[DdlEvent]:
        """Take in a finished job; [] for one that is known already or changes nothing. DecodeError for one that makes
        no sense, BrokenPromise for one that comes too late."""
        if job.id in self._applied or job.commit_ts <= self._start.ts or ddl.skip_reason(job, self.current):
            return []
        if job.commit_ts <= self._resolved_ts:
            raise BrokenPromise(
                "a DDL job was committed below the schema watermark",
                job_id=job.id,
                commit_ts=job.commit_ts,
                resolved_ts=self._resolved_ts,
            )
        if self._changes and job.order < (self._changes[-1].commit_ts, self._changes[-1].schema_version):
            raise BrokenPromise("a DDL job came out of order", job_id=job.id, commit_ts=job.commit_ts)
        change = ddl.apply(job, self.current)
        self._take(change)
        return list(change.events)

    @property
    def current(self) -> _Current:
        """The schema after the last change, as `ddl.apply` wants it."""
        return _Current(self)

    def _take(self, change: Change) -> None:
        gone = [self._tables.pop(i) for i in change.drop_tables if i in self._tables]
        replaced = [self._tables[t.id] for t in change.put_tables if t.id in self._tables]
        for table in (*gone, *replaced):
            for physical_id in table.physical_ids:
                self._id_lines[physical_id] = self._id_lines[physical_id].extended(change.commit_ts, None)
            self._set_name(change.commit_ts, table.db, table.name, None)
        for db_id in change.drop_databases:
            if db := self._databases.pop(db_id, None):
                self._db_lines[db.name.lower()] = self._db_lines[db.name.lower()].extended(change.commit_ts, None)
        self._databases.update((db.id, db) for db in change.put_databases)
        self._tables.update((table.id, table) for table in change.put_tables)
        self._index(change.commit_ts, change.put_databases, change.put_tables)
        self._changes.append(change)
        self._applied.add(change.job_id)

    def _index(self, ts: int, databases: Iterable[Database], tables: Iterable[Table]) -> None:
        for db in databases:
            self._db_lines[db.name.lower()] = self._db_lines.get(db.name.lower(), _NO_DATABASE).extended(ts, db)
        for table in tables:
            self._set_name(ts, table.db, table.name, table)
            for physical_id in table.physical_ids:
                self._id_lines[physical_id] = self._id_lines.get(physical_id, _NOTHING).extended(ts, table)

    def _set_name(self, ts: int, db: str, name: str, value: Table | None) -> None:
        lines = self._name_lines.setdefault(db.lower(), {})
        lines[name.lower()] = lines.get(name.lower(), _NOTHING).extended(ts, value)

    def copy(self) -> History:
        """An independent history with the same contents; tables are shared."""
        new = object.__new__(History)
        new.__dict__.update(self.__dict__)
        for name in ("_changes", "_applied", "_databases", "_tables", "_db_lines", "_id_lines", "_snapshots"):
            setattr(new, name, getattr(self, name).copy())
        new._name_lines = {db: lines.copy() for db, lines in self._name_lines.items()}
        return new

    # ---- asking

    def table_at(self, physical_id: int, ts: int) -> Table | None:
        """The version that this physical id has at `ts`; for a row committed at c ask at c - 1."""
        self._check(ts)
        return self._id_lines.get(physical_id, _NOTHING).at(ts)

    def status_at(self, physical_id: int, ts: int) -> IdStatus:
        """Why `table_at` gives what it gives."""
        self._check(ts)
        line = self._id_lines.get(physical_id, _NOTHING)
        if not line.starts:
            return IdStatus.UNKNOWN
        if ts < line.starts[0]:
            return IdStatus.NOT_YET
        return IdStatus.RETIRED if line.at(ts) is None else IdStatus.LIVE

    def version_intervals(self, physical_id: int) -> VersionIntervals:
        """All versions of a physical id, for looking up many rows at once; empty for an unknown id."""
        line = self._id_lines.get(physical_id, _NOTHING)
        return VersionIntervals(starts=np.array(line.starts, dtype=np.uint64), versions=line.values)

    def databases(self, ts: int) -> list[Database]:
        """The databases at `ts`, by name."""
        self._check(ts)
        found = (line.at(ts) for line in list(self._db_lines.values()))
        return sorted((db for db in found if db is not None), key=lambda db: db.name.lower())

    def database(self, name: str, ts: int) -> Database:
        """The database of this name, in any spelling. NotFound with a suggestion."""
        self._check(ts)
        found = self._db_lines.get(name.lower(), _NO_DATABASE).at(ts)
        if found is None:
            raise no_database(name, [db.name for db in self.databases(ts)], ts=ts)
        return found

    def tables(self, db: str, ts: int) -> list[Table]:
        """Tables, views and sequences of a database at `ts`, by name. NotFound when there is no such database."""
        self.database(db, ts)
        found = (line.at(ts) for line in list(self._name_lines.get(db.lower(), {}).values()))
        return sorted((table for table in found if table is not None), key=lambda table: table.name.lower())

    def find(self, db: str, table: str, ts: int) -> Table:
        """The table of this name at `ts`, in any spelling. NotFound with a suggestion."""
        self.database(db, ts)
        found = self._name_lines.get(db.lower(), {}).get(table.lower(), _NOTHING).at(ts)
        if found is None:
            raise no_table(db, table, [t.name for t in self.tables(db, ts)], ts=ts)
        return found

    def physical_ids(self, db: str, table: str | None, after_ts: int, upto_ts: int) -> set[int]:
        """Every physical id that belonged to this name (or to any table of the database) at some time in the interval:
        what a reader of changes in (after_ts, upto_ts] must look at. Empty when the name did not exist then."""
        self._check(after_ts)
        self._check(upto_ts)
        lines = self._name_lines.get(db.lower(), {})
        wanted = list(lines.values()) if table is None else [lines.get(table.lower(), _NOTHING)]
        versions = (version for line in wanted for version in line.during(after_ts, upto_ts))
        return {physical_id for version in versions if version.kind == "table" for physical_id in version.physical_ids}

    def snapshot(self, ts: int) -> SchemaSnapshot:
        """The whole schema at `ts`. Snapshots between the same two jobs share everything but `ts`."""
        self._check(ts)
        count = bisect_right(self._changes, ts, key=_commit_ts)
        found = self._snapshots.get(count)
        if found is None:
            found = self._snapshot_at(ts, self._changes[count - 1].schema_version if count else None)
            if len(self._snapshots) >= _SNAPSHOTS_KEPT:
                self._snapshots.clear()
            self._snapshots[count] = found
        return SchemaSnapshot(
            ts=ts, databases=found.databases, tables=found.tables, schema_version=found.schema_version
        )

    def _snapshot_at(self, ts: int, schema_version: int | None) -> SchemaSnapshot:
        tables = (line.at(ts) for lines in list(self._name_lines.values()) for line in list(lines.values()))
        return SchemaSnapshot(
            ts=ts,
            databases=MappingProxyType({db.id: db for db in self.databases(ts)}),
            tables=MappingProxyType({table.id: table for table in tables if table is not None}),
            schema_version=self._start.schema_version if schema_version is None else schema_version,
        )

    def events(self, after_ts: int, upto_ts: int) -> list[DdlEvent]:
        """The DDL events committed in (after_ts, upto_ts], in commit order."""
        self._check(after_ts)
        self._check(upto_ts)
        first = bisect_right(self._changes, after_ts, key=_commit_ts)
        last = bisect_right(self._changes, upto_ts, key=_commit_ts)
        return [event for change in self._changes[first:last] for event in change.events]

    def diff(self, ts_a: int, ts_b: int) -> SchemaDiff:
        """What changed from `ts_a` to `ts_b`."""
        return diff(self.snapshot(ts_a), self.snapshot(ts_b))

    def _check(self, ts: int) -> None:
        if ts < self._start.ts:
            raise TsExpired("the schema is not known this far back", ts=ts, earliest_ts=self._start.ts)
        if ts > self._resolved_ts:
            raise TsOutOfRange("the schema is not known this far yet", ts=ts, resolved_ts=self._resolved_ts)

    # ---- keeping

    def pruned(self, below_ts: int) -> History:
        """A history that starts at `below_ts` (or where this one starts, if later) and knows nothing older."""
        start = self.snapshot(max(below_ts, self._start.ts))
        kept = self._changes[bisect_right(self._changes, start.ts, key=_commit_ts) :]
        return _restored(start, self.job_table, self._resolved_ts, kept)

    def dump(self) -> bytes:
        """The bytes of a saved history (see `schemas.saved`)."""
        return saved.dump(
            saved.SavedHistory(
                start=self._start,
                job_table=self.job_table,
                resolved_ts=self._resolved_ts,
                changes=tuple(self._changes),
            )
        )

    @classmethod
    def load(cls, data: bytes) -> History:
        """The history that `dump` wrote. CorruptObject when the bytes are none."""
        found = saved.load(data)
        return _restored(found.start, found.job_table, found.resolved_ts, found.changes)


def _restored(start: SchemaSnapshot, job_table: Table, resolved_ts: int, changes: Iterable[Change]) -> History:
    history = History(start, job_table)
    for change in changes:
        history._take(change)
    history.advance(resolved_ts)
    return history


def _commit_ts(change: Change) -> int:
    return change.commit_ts


class _Current:
    """The end of a history, as the state that a job is applied to."""

    __slots__ = ("_history",)

    def __init__(self, history: History) -> None:
        self._history = history

    @property
    def databases(self) -> Mapping[int, Database]:
        return self._history._databases

    @property
    def tables(self) -> Mapping[int, Table]:
        return self._history._tables

    def dropped_with(self, db_id: int) -> Sequence[Table] | None:
        changes = self._history._changes
        change = next((c for c in reversed(changes) if db_id in c.drop_databases), None)
        if change is None:
            return None
        lines = (line for named in self._history._name_lines.values() for line in named.values())
        before = (line.at(change.commit_ts - 1) for line in lines)
        return [table for table in before if table is not None and table.id in change.drop_tables]
