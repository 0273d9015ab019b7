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
- a tenant may follow some tables only (see `schemas.followed`): the others are kept, and shown by no query;
- the start is immutable and changes lie over it, so a copy costs what changed, not what exists;
- tables of a saved start are parsed on demand: a query may raise CorruptObject for a damaged block;
- the object is not locked. `copy` is cheap: to share a history, change a copy and publish that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from schemas import ddl, merge, saved, switch
from schemas.actions import ALLOCATING
from schemas.base_file import BaseHead, pack_base
from schemas.ddl import Change, Job
from schemas.followed import Followed
from schemas.ids import NamedIds
from schemas.merge import Disagreement, Drafts
from schemas.meta import MetaCommit
from schemas.model import DdlEvent, Table
from schemas.queried import Queried
from schemas.saved import Chain, Fetch, Increment
from schemas.snapshot import SchemaSnapshot
from schemas.start import SavedTables, Start
from schemas.view import Current, View
from tistream.errors import CorruptObject, UpstreamContractViolated
from tistream.keyrange import KeyRange

_DISAGREEMENTS_KEPT = 8
_COPIED = ("_changes", "_applied", "_drafts", "_view", "_public", "_snapshots", "_named_since")


class History(Queried):
    """See the module. `start` is the schema at S, `job_table` the shape of the DDL job table."""

    def __init__(self, start: SchemaSnapshot, job_table: Table) -> None:
        known = (i for t in start.tables.values() for i in (t.id, t.db_id, *t.partition_ids))
        self._begin(Start.of(start), job_table, NamedIds.at_start(start.named, known), Followed(start.left_out))

    def _begin(self, start: Start, job_table: Table, named: NamedIds, followed: Followed) -> None:
        self.job_table = job_table
        self._followed = followed
        self._start = start
        self._named_at_start = self._named = named
        self._named_since: dict[int, int] = {}  # by physical id, of those named by a change
        self._older: frozenset[int] = frozenset()
        self._resolved_ts = start.ts
        self._changes: list[Change] = []
        self._applied: set[int] = set()
        self._drafts: dict[int, Drafts] = {}  # by id of the job that is writing them
        self.disagreements: tuple[Disagreement, ...] = ()  #: the newest; not saved
        self._view = View(start)
        self._public = View(start)  # see `public`
        self._snapshots: dict[int, SchemaSnapshot] = {}  # by number of changes

    # ---- updates

    def advance(self, ts: int) -> None:
        """Declare the history complete up to `ts`. Never goes back."""
        self._resolved_ts = max(self._resolved_ts, ts)

    def follow(self, steps: Sequence[MetaCommit], upto_ts: int) -> list[DdlEvent]:
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

    def take(self, step: MetaCommit, later: Iterable[MetaCommit] = ()) -> list[DdlEvent]:
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
        if step.definitions and step.owner and step.owner not in self._applied:
            self._record(merge.ahead(step, self._current_of(self._public), self._schema_version))
        self._name(step)
        return events

    def _switch(self, job: Job, step: MetaCommit, later: Iterable[MetaCommit]) -> list[DdlEvent]:
        """Apply a job that takes effect before it is done; returns its events."""
        drafts = self._drafts.get(job.id, ())
        if job.id in self._applied:  # a second switch has no event
            return self._record(merge.finished(drafts, self.current, job, self._schema_version), job)
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
        return self._record(self._settled(done, drafts), done)

    def _settle(self, job: Job) -> list[DdlEvent]:
        """Apply an ended job and its drafts; returns its events."""
        if job.state not in ddl.STATES_ENDED:
            return []
        drafts = self._drafts.pop(job.id, ())
        if job.id in self._applied:
            if job.state == ddl.STATE_SYNCED and drafts:  # it took effect, but its done row is missing
                merge.was_missed(job, (), self.current, self._start.ts)
            return self._record(merge.finished(drafts, self.current, job, self._schema_version), job)
        if job.state == ddl.STATE_SYNCED and merge.was_missed(job, drafts, self.current, self._start.ts):
            job = replace(job, state=ddl.STATE_DONE)
        return self._record(self._settled(job, drafts), job)

    def _settled(self, job: Job, drafts: Drafts) -> Change | None:
        change, doubts = merge.settled(job, drafts, self.current, self._schema_version)
        self.disagreements = (*self.disagreements, *doubts)[-_DISAGREEMENTS_KEPT:]
        return change

    def _name(self, step: MetaCommit) -> None:
        """Record the physical ids that a step names and no table reads."""
        named = merge.newly_named(step.definitions, self.current)
        known, physical = self._named.table_of, self._view.timelines.physical
        names = [(i, of) for i, of in sorted(named.items()) if i not in known and not physical(i)]
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
        return self._record(ddl.apply(job, self.current), job)

    def _record(self, change: Change | None, job: Job | None = None) -> list[DdlEvent]:
        """Take a change, of this job if it is one's; returns the events that are delivered."""
        if change is None:
            return []
        if not change.early:
            change = self._followed.delivered(change, self.current)
        if job is None or job.type not in ALLOCATING:
            change = replace(change, older=self._not_known(change))
        facts = {"job_id": change.job_id, "commit_ts": change.commit_ts}
        if change.commit_ts <= self._resolved_ts:
            late = "a DDL job was committed below the schema watermark"
            raise UpstreamContractViolated(late, **facts, resolved_ts=self._resolved_ts)
        last = self._changes[-1] if self._changes else None
        if last and (change.commit_ts, change.schema_version) < (last.commit_ts, last.schema_version):
            raise UpstreamContractViolated("a DDL job came out of order", **facts)
        self._take(change)
        return list(change.events)

    def _not_known(self, change: Change) -> tuple[int, ...]:
        """The physical ids that no table read before the change."""
        read = {i for table in change.put_tables for i in table.physical_ids}
        return tuple(sorted(i for i in read if not self._view.timelines.physical(i)))

    @property
    def _schema_version(self) -> int:
        """The newest schema version of a change."""
        return self._changes[-1].schema_version if self._changes else self._start.schema_version

    @property
    def current(self) -> Current:
        """The schema after the last change, for `ddl.apply`."""
        return self._current_of(self._view)

    def _current_of(self, view: View) -> Current:
        return Current(view=view, start=self._start, changes=self._changes)

    def _take(self, change: Change) -> None:
        self._public.take(change)
        if not change.early:
            self._view.take(change)
            self._applied.add(change.job_id)
        self._named = self._named.with_names(change.names)
        self._named_since |= {physical_id: change.commit_ts for physical_id, _ in change.names}
        self._older |= set(change.older)
        self._changes.append(change)

    def public(self) -> History:
        """The same history for reads as of a timestamp: at each, the newest definitions that are public there, whether
        or not their job is done. It shares everything with this one: ask, and do not change it."""
        history = object.__new__(History)
        history.__dict__.update(self.__dict__)
        history._view, history._snapshots = self._public, {}
        return history

    def copy(self) -> History:
        """An independent history with the same contents; the start and all tables are shared."""
        new = object.__new__(History)
        new.__dict__.update(self.__dict__)
        for name in _COPIED:
            setattr(new, name, getattr(self, name).copy())
        return new

    # ---- storage

    def pruned(self, below_ts: int) -> History:
        """A history that starts at `below_ts` (or where this one starts, if later) without older versions."""
        ts = max(below_ts, self._start.ts)
        self._check(ts)
        forgotten = self._changes_in(self._start.ts, ts)
        touched = {i for c in forgotten for i in (*c.drop_tables, *(t.id for t in c.put_tables))}
        put = self._view.timelines.tables_at(touched, ts)
        start = self._start.with_changes(
            ts=ts,
            schema_version=forgotten[-1].schema_version if forgotten else self._start.schema_version,
            databases=MappingProxyType(self._view.databases_at(ts)),
            put=put,
            gone=touched - put.keys(),
        )
        changes = [*self._still_early(touched, start), *self._changes[len(forgotten) :]]
        named = self._named_at_start.with_names(name for c in forgotten for name in c.names)
        named = named.raised(i for c in forgotten for t in c.put_tables for i in (t.id, *t.partition_ids))
        return _restored(start, self.job_table, self._resolved_ts, changes, self._drafts, named, self._followed)

    def _still_early(self, table_ids: Iterable[int], start: Start) -> list[Change]:
        """As one change what is public at a later start of jobs that are done above it; [] for nothing."""
        ts = start.ts
        done, public = (view.timelines.tables_at(table_ids, ts) for view in (self._view, self._public))
        dbs_done, dbs_public = (view.databases_at(ts) for view in (self._view, self._public))
        nothing = Change(job_id=0, commit_ts=ts, schema_version=start.schema_version, early=True)
        change = replace(
            nothing,
            drop_databases=tuple(sorted(dbs_done.keys() - dbs_public.keys())),
            put_databases=tuple(db for i, db in dbs_public.items() if dbs_done.get(i) is not db),
            drop_tables=tuple(sorted(done.keys() - public.keys())),
            put_tables=tuple(table for i, table in sorted(public.items()) if done.get(i) is not table),
        )
        return [] if change == nothing else [change]

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
            left_out=self._followed.left_out,
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
        parts = (KeyRange(bytes.fromhex(a), bytes.fromhex(b)) for a, b in head["start"].get("left_out") or ())
        job_table, resolved_ts = saved.table_of(head["job_table"]), int(head["resolved_ts"])
        restored = _restored(start, job_table, resolved_ts, opening.changes, opening.drafts, named, Followed(parts))
        return tables, restored
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CorruptObject("a schema history cannot be read", object_key=opening.name, reason=repr(error)) from error


def _restored(
    start: Start,
    job_table: Table,
    resolved_ts: int,
    changes: Iterable[Change],
    drafts: Mapping[int, Drafts],
    named: NamedIds,
    followed: Followed,
) -> History:
    history = object.__new__(History)
    history._begin(start, job_table, named, followed)
    history._drafts = dict(drafts)
    for change in changes:
        history._take(change)
    history.advance(resolved_ts)
    return history
