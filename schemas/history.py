"""The schema of one tenant at every timestamp from its snapshot on.

    History(start).follow(steps, W)      then queries at any timestamp in [start.ts, resolved_ts]

A version holds from the commit_ts of the job that made it, or from the switch of a DDL that gives a table other
physical ids (see `schemas.switch`). A row committed at c is decoded with the version in force at c - 1, so callers use
`table_at(physical_id, c - 1)`. Rows of an id that no table reads then are not delivered; `status_at` gives the reason.

Relations:

- each step is taken once, in order; jobs are applied in (commit_ts, schema version) order, each id once. An unknown job
  at or below `resolved_ts` raises UpstreamContractViolated, because earlier answers would have been wrong;
- what a running job writes to the meta range is kept as its drafts until it ends (see `schemas.merge`);
- answers at a timestamp at or below `resolved_ts` never change;
- tables are shared, never copied: two timestamps with the same version give the same object;
- the start is immutable and changes lie over it, so a copy costs what changed, not what exists;
- tables of a saved start are parsed on demand: a query may raise CorruptObject for a damaged block;
- the object is not locked. `copy` is cheap: to share a history, change a copy and publish that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from schemas import ddl, merge, saved, switch
from schemas.base_file import BaseHead, pack_base
from schemas.current import Current
from schemas.ddl import Change, Job
from schemas.diff import SchemaDiff, diff
from schemas.ids import IdStatus, NamedIds
from schemas.merge import Disagreement, Drafts
from schemas.meta import Step
from schemas.model import Database, DdlEvent, Table
from schemas.names import folded, no_database, no_table
from schemas.saved import Chain, Fetch, Increment
from schemas.snapshot import SchemaSnapshot
from schemas.start import SavedTables, Start
from schemas.timeline import Timeline, Timelines, VersionIntervals, ids_during
from tistream.errors import CorruptObject, InvalidInput, TsExpired, TsOutOfRange, UpstreamContractViolated

_SNAPSHOTS_KEPT = 8
_DISAGREEMENTS_KEPT = 8
_NO_DATABASE: Timeline[Database] = Timeline()


class History:
    """See the module. `start` is the schema at S, `job_table` the shape of the DDL job table."""

    def __init__(self, start: SchemaSnapshot, job_table: Table) -> None:
        known = (i for t in start.tables.values() for i in (t.id, t.db_id, *t.partition_ids))
        self._begin(Start.of(start), job_table, NamedIds.at_start(start.named, known))

    def _begin(self, start: Start, job_table: Table, named: NamedIds) -> None:
        self.job_table = job_table
        self._start = start
        self._named_at_start = self._named = named
        self._resolved_ts = start.ts
        self._changes: list[Change] = []
        self._applied: set[int] = set()
        self._drafts: dict[int, Drafts] = {}  # by id of the job that is writing them
        self.disagreements: tuple[Disagreement, ...] = ()  #: the newest; not saved
        self._databases: dict[int, Database] = dict(start.databases)  # in force after the last change
        self._db_timelines: dict[str, Timeline[Database]] = {}  # by lower-case name
        self._timelines = Timelines(start)
        self._snapshots: dict[int, SchemaSnapshot] = {}  # by number of changes
        self._put_databases(start.ts, start.databases.values())

    # ---- updates

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

    def follow(self, steps: Sequence[Step], upto_ts: int) -> list[DdlEvent]:
        """Apply all steps in (resolved_ts, upto_ts] and advance to there; returns the events. While the end of a job
        that switched is awaited, the history advances only to its switch, and later steps must be passed again. Raises
        as `take`."""
        events: list[DdlEvent] = []
        for n, step in enumerate(steps):
            job = switch.switching_job(step, self.current)
            later = () if job is None else steps[n + 1 :]
            if job is not None and upto_ts < switch.held_until(step) and switch.end_of(job, step, later) is None:
                self.advance(step.commit_ts - 1)
                return events
            events += self.take(step, later)
        self.advance(upto_ts)
        return events

    def take(self, step: Step, later: Iterable[Step] = ()) -> list[DdlEvent]:
        """Apply what one transaction committed; returns the events of jobs that it finished or that take effect with
        it. `later` steps show how such a job ends; without its end the step's definitions count. DecodeError for an
        impossible job, UpstreamContractViolated for a late one: the history is unusable after either."""
        if step.commit_ts <= self._start.ts:
            return []
        if step.definitions:
            self._drafts[step.owner] = merge.with_definitions(self._drafts.get(step.owner, ()), step.definitions)
        job = switch.switching_job(step, self.current)
        events = [] if job is None else self._switch(job, step, later)
        events += [event for job in step.jobs for event in self._settle(job)]
        self._record(merge.adopted(self._drafts.pop(0, ()), self.current, step.commit_ts, self._schema_version))
        self._name(step)
        return events

    def _switch(self, job: Job, step: Step, later: Iterable[Step]) -> list[DdlEvent]:
        """Apply a job that takes effect before it is done; returns its events."""
        drafts = self._drafts.get(job.id, ())
        if job.id in self._applied:  # a second switch has no event
            return self._record(merge.finished(drafts, self.current, job, self._schema_version))
        done, end = job, switch.end_of(job, step, later)
        if end is not None:
            if end.job.state != ddl.STATE_DONE:
                return []  # rolled back; TiDB never does that after a switch
            done, drafts = end.job, merge.with_definitions(drafts, end.definitions)
        done = replace(
            done,
            state=ddl.STATE_DONE,
            start_ts=step.start_ts,
            commit_ts=step.commit_ts,
            schema_version=done.schema_version or max(self._schema_version, 1),
        )
        return self._record(self._settled(done, drafts))

    def _settle(self, job: Job) -> list[DdlEvent]:
        """Apply an ended job and its drafts; returns its events."""
        if job.state not in ddl.STATES_ENDED:
            return []
        drafts = self._drafts.pop(job.id, ())
        if job.id in self._applied:
            if job.state == ddl.STATE_SYNCED and drafts:  # it took effect, but its done row is missing
                merge.was_missed(job, (), self.current, self._start.ts)
            return self._record(merge.finished(drafts, self.current, job, self._schema_version))
        if job.state == ddl.STATE_SYNCED and merge.was_missed(job, drafts, self.current, self._start.ts):
            job = replace(job, state=ddl.STATE_DONE)
        return self._record(self._settled(job, drafts))

    def _settled(self, job: Job, drafts: Drafts) -> Change | None:
        change, doubts = merge.settled(job, drafts, self.current, self._schema_version)
        self.disagreements = (*self.disagreements, *doubts)[-_DISAGREEMENTS_KEPT:]
        return change

    def _name(self, step: Step) -> None:
        """Record the physical ids that a step names and no table reads."""
        found = merge.newly_named(step.definitions, self.current)
        known, physical = self._named.table_of, self._timelines.physical
        names = [(i, of) for i, of in sorted(found.items()) if i not in known and not physical(i)]
        if names:
            asked = min((job.created_ts for job in step.jobs), default=0)
            version = self._schema_version
            self._record(
                Change(job_id=0, commit_ts=step.commit_ts, schema_version=version, created_ts=asked, names=tuple(names))
            )

    def apply(self, job: Job) -> list[DdlEvent]:
        """Apply a finished job without drafts; [] for one that is already applied or changes nothing."""
        if job.id in self._applied or job.commit_ts <= self._start.ts or ddl.skip_reason(job, self.current):
            return []
        return self._record(ddl.apply(job, self.current))

    def _record(self, change: Change | None) -> list[DdlEvent]:
        if change is None:
            return []
        facts = {"job_id": change.job_id, "commit_ts": change.commit_ts}
        if change.commit_ts <= self._resolved_ts:
            late = "a DDL job was committed below the schema watermark"
            raise UpstreamContractViolated(late, **facts, resolved_ts=self._resolved_ts)
        last = self._changes[-1] if self._changes else None
        if last and (change.commit_ts, change.schema_version) < (last.commit_ts, last.schema_version):
            raise UpstreamContractViolated("a DDL job came out of order", **facts)
        self._take(change)
        return list(change.events)

    @property
    def _schema_version(self) -> int:
        """The newest schema version of a change."""
        return self._changes[-1].schema_version if self._changes else self._start.schema_version

    @property
    def current(self) -> Current:
        """The schema after the last change, for `ddl.apply`."""
        return Current(databases=self._databases, timelines=self._timelines, start=self._start, changes=self._changes)

    def _take(self, change: Change) -> None:
        ts = change.commit_ts
        for table_id in (*change.drop_tables, *(t.id for t in change.put_tables)):
            if (old := self._timelines.table(table_id).last) is not None:
                self._timelines.set(ts, old, None)
        for db_id in change.drop_databases:
            if db := self._databases.pop(db_id, None):
                self._db_timelines[folded(db.name)] = self._db_timelines[folded(db.name)].extended(ts, None)
        self._put_databases(ts, change.put_databases)
        for table in change.put_tables:
            self._timelines.set(ts, table, table)
        self._named = self._named.with_names(change.names)
        self._changes.append(change)
        self._applied.add(change.job_id)

    def _put_databases(self, ts: int, databases: Iterable[Database]) -> None:
        for db in databases:
            self._databases[db.id] = db
            self._db_timelines[folded(db.name)] = self._db_timelines.get(folded(db.name), _NO_DATABASE).extended(ts, db)

    def copy(self) -> History:
        """An independent history with the same contents; the start and all tables are shared."""
        new = object.__new__(History)
        new.__dict__.update(self.__dict__)
        for name in ("_changes", "_applied", "_drafts", "_databases", "_db_timelines", "_timelines", "_snapshots"):
            setattr(new, name, getattr(self, name).copy())
        return new

    # ---- queries

    def table_at(self, physical_id: int, ts: int) -> Table | None:
        """The version that this physical id has at `ts`; for a row committed at c ask at c - 1."""
        self._check(ts)
        return self._timelines.physical(physical_id).at(ts)

    def status_at(self, physical_id: int, ts: int) -> IdStatus:
        """The status of a physical id at `ts`."""
        self._check(ts)
        timeline = self._timelines.physical(physical_id)
        if not timeline.starts or ts < timeline.starts[0]:
            return self.status_before(physical_id)
        return IdStatus.RETIRED if timeline.at(ts) is None else IdStatus.LIVE

    def status_before(self, physical_id: int) -> IdStatus:
        """The status of an id before a table reads it for the first time."""
        return self._named.status(physical_id)

    def was_filled_at_start(self, physical_id: int) -> bool:
        """Whether a DDL of partitions under way at the start named this id, and may have copied rows to it by then."""
        return physical_id in self._named_at_start.table_of

    def version_intervals(self, physical_id: int) -> VersionIntervals:
        """All versions of a physical id, for looking up many rows at once; empty for an unknown id."""
        timeline = self._timelines.physical(physical_id)
        return VersionIntervals(starts=np.array(timeline.starts, dtype=np.uint64), versions=timeline.values)

    def databases(self, ts: int) -> list[Database]:
        self._check(ts)
        found = [db for timeline in list(self._db_timelines.values()) if (db := timeline.at(ts)) is not None]
        return sorted(found, key=lambda db: folded(db.name))

    def database(self, name: str, ts: int) -> Database:
        """The database of this name, in any case. NotFound with a suggestion."""
        self._check(ts)
        if (found := self._db_timelines.get(folded(name), _NO_DATABASE).at(ts)) is None:
            raise no_database(name, [db.name for db in self.databases(ts)], ts=ts)
        return found

    def tables(self, db: str, ts: int) -> list[Table]:
        """Tables, views and sequences of a database at `ts`, by name. NotFound when there is no such database."""
        self.database(db, ts)
        found = (self._timelines.named(folded(db), name).at(ts) for name in self._names_in(folded(db)))
        return sorted((table for table in found if table is not None), key=lambda table: folded(table.name))

    def _names_in(self, db: str) -> set[str]:
        """The lower-case names that tables of the database ever had."""
        return set(self._timelines.names_in(db)).union(map(folded, self._start.names_in(db)))

    def named(self, db: str, table: str, ts: int) -> Table | None:
        """The table of this name at `ts`, in any case."""
        self._check(ts)
        return self._timelines.named(folded(db), folded(table)).at(ts)

    def find(self, db: str, table: str, ts: int) -> Table:
        """The table of this name at `ts`, in any case. NotFound with a suggestion."""
        self.database(db, ts)
        if (found := self.named(db, table, ts)) is None:
            raise no_table(db, table, self._spelled(folded(db), ts), ts=ts)
        return found

    def find_base_table(self, db: str, table: str, ts: int) -> Table:
        """As `find`. InvalidInput for a view or a sequence."""
        base = self.find(db, table, ts)
        if base.kind != "table":
            raise InvalidInput(f"{base.db}.{base.name} is a {base.kind}: it has no rows of its own.", kind=base.kind)
        return base

    def _spelled(self, db: str, ts: int) -> list[str]:
        """Names of the tables of a database at `ts`; tables that never changed are not parsed."""
        timelines = self._timelines.names_in(db)
        alive = [table.name for timeline in timelines.values() if (table := timeline.at(ts)) is not None]
        unchanged = (name for name in self._start.names_in(db) if folded(name) not in timelines)
        return sorted([*alive, *unchanged], key=folded)

    def physical_ids(self, db: str, table: str | None, after_ts: int, upto_ts: int) -> set[int]:
        """The physical ids of this name (or of all tables of the database) at any time in (after_ts, upto_ts]: those
        that a reader of these changes must read. Empty when the name did not exist then."""
        self._check(after_ts)
        self._check(upto_ts)
        db = folded(db)
        if table is not None:
            return ids_during([self._timelines.named(db, folded(table))], after_ts, upto_ts)
        timelines = self._timelines.names_in(db)
        at_start = (self._start.named(db, name) for name in timelines)
        changed = {physical_id for t in at_start if t is not None for physical_id in t.physical_ids}
        return (self._start.physical_ids_in(db) - changed) | ids_during(timelines.values(), after_ts, upto_ts)

    def physical_ids_named(self, wanted: Callable[[str, str], bool]) -> set[int]:
        """The physical ids that tables with a wanted name (database, table, both in lower case) had at any time."""
        found: set[int] = set()
        for db in list(self._db_timelines):
            changed = self._timelines.names_in(db)
            unchanged = {n for n in map(folded, self._start.names_in(db)) if n not in changed and wanted(db, n)}
            found |= self._start.physical_ids_of(db, unchanged)
            found |= ids_during((t for n, t in changed.items() if wanted(db, n)), self.start_ts, self.resolved_ts)
        return found

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
        return replace(found, ts=ts)

    def _snapshot_at(self, ts: int, schema_version: int | None) -> SchemaSnapshot:
        ids = {*self._start.ids(), *self._timelines.tables}
        return SchemaSnapshot(
            ts=ts,
            databases=MappingProxyType({db.id: db for db in self.databases(ts)}),
            tables=MappingProxyType(self._timelines.tables_at(ids, ts)),
            schema_version=self._start.schema_version if schema_version is None else schema_version,
        )

    def events(self, after_ts: int, upto_ts: int) -> list[DdlEvent]:
        """The DDL events committed in (after_ts, upto_ts], in commit order."""
        self._check(after_ts)
        self._check(upto_ts)
        return [event for change in self._changes_in(after_ts, upto_ts) for event in change.events]

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
            SchemaSnapshot(
                ts=ts, databases={d.id: d for d in self.databases(ts)}, tables=self._timelines.tables_at(touched, ts)
            )
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

    # ---- storage

    def pruned(self, below_ts: int) -> History:
        """A history that starts at `below_ts` (or where this one starts, if later) without older versions."""
        ts = max(below_ts, self._start.ts)
        self._check(ts)
        forgotten = self._changes_in(self._start.ts, ts)
        touched = {i for c in forgotten for i in (*c.drop_tables, *(t.id for t in c.put_tables))}
        put = self._timelines.tables_at(touched, ts)
        start = self._start.with_changes(
            ts=ts,
            schema_version=forgotten[-1].schema_version if forgotten else self._start.schema_version,
            databases=MappingProxyType({db.id: db for db in self.databases(ts)}),
            put=put,
            gone=touched - put.keys(),
        )
        changes = self._changes[len(forgotten) :]
        named = self._named_at_start.with_names(name for c in forgotten for name in c.names)
        named = named.raised(i for c in forgotten for t in c.put_tables for i in (t.id, *t.partition_ids))
        return _restored(start, self.job_table, self._resolved_ts, changes, self._drafts, named)

    def changes_since(self, ts: int) -> bool:
        """Whether any job changed something after `ts`."""
        return bool(self._changes) and self._changes[-1].commit_ts > ts

    def dump(self) -> bytes:
        """The bytes of a base: the whole history (see `schemas.saved`). Blocks that did not change are not parsed."""
        begins = BaseHead(
            ts=self._start.ts,
            schema_version=self._start.schema_version,
            databases=self._start.databases,
            named=self._named_at_start,
            job_table=self.job_table,
        )
        return pack_base(
            begins,
            self._start.entries(),
            self._start.blocks(),
            resolved_ts=self._resolved_ts,
            drafts=self._drafts,
            changes=self._changes,
        )

    def dump_increment(self, chain: Chain, after_ts: int) -> bytes:
        """The bytes of an increment: the changes after `after_ts`, which must not lie below the start."""
        self._check(after_ts)
        changes = self._changes_in(after_ts, self._resolved_ts)
        return saved.pack_increment(chain, after_ts, self._resolved_ts, changes, self._drafts)

    @classmethod
    def load(cls, data: bytes) -> History:
        """The history that `dump` wrote. CorruptObject when the bytes are none."""
        tables, history = _opened(saved.open_object("", fetch := _part_of(data)), fetch)
        if tables.end != len(data):
            raise CorruptObject("a schema history has the wrong length", bytes=len(data), expected=tables.end)
        return history

    @classmethod
    def open(cls, opening: saved.Opening, fetch: Fetch) -> History:
        """The history of a base, whose tables are fetched when they are asked for."""
        return _opened(opening, fetch)[1]

    def extend(self, increment: Increment) -> None:
        """Apply an increment saved after this history. CorruptObject when there is a gap."""
        if increment.after_ts != self._resolved_ts:
            raise CorruptObject(
                "a saved schema history has a gap",
                object_key=increment.name,
                after_ts=increment.after_ts,
                resolved_ts=self._resolved_ts,
            )
        for change in increment.changes:
            self._take(change)
        self._drafts = dict(increment.drafts)
        self.advance(increment.resolved_ts)


def _part_of(data: bytes) -> Fetch:
    return lambda offset, length: data[offset : offset + length]


def _opened(opening: saved.Opening, fetch: Fetch) -> tuple[SavedTables, History]:
    head = opening.head
    tables = SavedTables(opening, fetch)
    try:
        start = Start(
            ts=int(head["start"]["ts"]),
            schema_version=int(head["start"]["schema_version"]),
            databases=MappingProxyType({d["id"]: saved.database_of(d) for d in head["start"]["databases"]}),
            own={},
            saved=tables,
        )
        named = NamedIds(table_of=dict(head["start"]["named"]), highest=int(head["start"]["highest_id"]))
        job_table, resolved_ts = saved.table_of(head["job_table"]), int(head["resolved_ts"])
        return tables, _restored(start, job_table, resolved_ts, opening.changes, opening.drafts, named)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CorruptObject("a schema history cannot be read", object_key=opening.name, reason=repr(error)) from error


def _restored(
    start: Start,
    job_table: Table,
    resolved_ts: int,
    changes: Iterable[Change],
    drafts: Mapping[int, Drafts],
    named: NamedIds,
) -> History:
    history = object.__new__(History)
    history._begin(start, job_table, named)
    history._drafts = dict(drafts)
    for change in changes:
        history._take(change)
    history.advance(resolved_ts)
    return history


def _commit_ts(change: Change) -> int:
    return change.commit_ts
