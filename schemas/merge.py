"""Merges jobs with the meta range: the job says when and why, the meta range says what the tables are (pure).

While a job runs, the definitions that its transactions wrote are *drafts*, which are not used for decoding. When the
job is done, or has taken effect (see `schemas.switch`), they are settled:

    completed(job, drafts)                    definitions that the job lacks are taken from its drafts
    reconciled(job, change, drafts, state)    tables that the job does not mention are taken from its drafts; those in
                                              both are compared
    adopted(drafts, state)                    without a job that counts, the meta range counts
    ahead(step, state)                        what a step makes public before its job is done, which TiDB's reads as of
                                              a timestamp use

A table without a draft is unchanged in the meta range: the state in force. Two definitions agree when they decode rows
alike and have the same names and ids; comments, timestamps and non-public parts do not matter. Where they differ the
job counts, as it does for other consumers of jobs, and a `Disagreement` names table, job and timestamp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from schemas import ddl, fields, tidb_json
from schemas.actions import EVENTS, Action, action_name
from schemas.ddl import Change, Job, SchemaState
from schemas.ids import SYSTEM
from schemas.meta import Definition, MetaCommit
from schemas.model import STATE_PUBLIC, Database, Table
from schemas.partitions import named_ids
from schemas.snapshot import is_system_database
from schemas.tidb_json import Json
from tistream.errors import DecodeError


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """A job and the meta range differ about a database or a table."""

    job_id: int
    action: str
    commit_ts: int
    database: str
    table: str = ""
    table_id: int = 0
    differs: tuple[str, ...]  #: in which facts

    @classmethod
    def about_table(cls, job: Job, said: Table | None, held: Table | None, before: Table | None) -> Disagreement:
        named = said or held or before
        differs = ["existence"]
        if said is not None and held is not None:
            mine, theirs = _facts(said), _facts(held)
            differs = [fact for fact in mine if fact in theirs and mine[fact] != theirs[fact]]
        return cls(
            job_id=job.id,
            action=action_name(job.type),
            commit_ts=job.commit_ts,
            database=named.db if named else "",
            table=named.name if named else "",
            table_id=named.id if named else 0,
            differs=tuple(differs),
        )

    @classmethod
    def about_database(cls, job: Job, said: Database | None, held: Database | None) -> Disagreement:
        named = said or held
        return cls(
            job_id=job.id,
            action=action_name(job.type),
            commit_ts=job.commit_ts,
            database=named.name if named else job.schema_name,
            differs=("definition" if said and held else "existence",),
        )


#: the newest definitions that a job has written so far, in the order in which they were first written
Drafts = tuple[Definition, ...]


def newly_named(definitions: Iterable[Definition], state: SchemaState) -> dict[int, int]:
    """Physical ids that definitions name -> their table, or SYSTEM for tables of databases that are not known."""
    ids: dict[int, int] = {}
    for d in definitions:
        if d.table_id and d.info is not None:
            known = d.db_id in state.databases
            ids.update(dict.fromkeys(_named_by(d, known), d.table_id if known else SYSTEM))
    return ids


def _named_by(definition: Definition, known: bool) -> set[int]:
    """An unreadable definition of one of TiDB's own tables, which are never decoded, names the table only."""
    try:
        return named_ids(_json(definition))
    except (KeyError, TypeError, ValueError, AttributeError, DecodeError) as error:
        if not known:
            return {definition.table_id}
        raise definition.unreadable("cannot be read") from error


def with_definitions(drafts: Drafts, newer: Iterable[Definition]) -> Drafts:
    """The drafts after another step of the job."""
    drafts_by_id = {(d.db_id, d.table_id): d for d in drafts}
    drafts_by_id.update({(d.db_id, d.table_id): d for d in newer})
    return tuple(drafts_by_id.values())


def completed(job: Job, drafts: Drafts) -> Job:
    """The job with definitions from its drafts where it carries none."""
    tables = {d.table_id: _json(d) for d in drafts if d.table_id and d.info is not None}
    databases = [_json(d) for d in drafts if not d.table_id and d.info is not None]
    if not job.db_info and len(databases) == 1:
        job = replace(job, db_info=databases[0])
    match job.type:
        case Action.CREATE_TABLES | Action.RECOVER_SCHEMA if not job.table_infos:
            return replace(job, table_infos=tuple(tables[i] for i in sorted(tables)))
        case Action.RENAME_TABLES if not job.table_infos:
            return replace(job, table_infos=tuple(tables[i] for i in _renamed_ids(job) if i in tables))
        case Action.EXCHANGE_PARTITION if not job.table_info:
            tables = {i: info for i, info in tables.items() if info.get("partition")}
    if job.table_info or not tables:
        return job
    if len(tables) == 1:
        return replace(job, table_info=next(iter(tables.values())))
    return replace(job, table_info=tables.get(job.table_id))


def _renamed_ids(job: Job) -> list[int]:
    if isinstance(job.args, Mapping):
        return [int(entry.get("table_id") or 0) for entry in job.args.get("rename_table_infos") or ()]
    return [int(table_id) for table_id in job.args[3]] if isinstance(job.args, list) and len(job.args) >= 6 else []


def reconciled(job: Job, change: Change, drafts: Drafts, state: SchemaState) -> tuple[Change, list[Disagreement]]:
    """(`change` with what only the meta range has, the disagreements)."""
    meta = _View.of(drafts, state)
    tables = {**dict.fromkeys(change.drop_tables), **{t.id: t for t in change.put_tables}}
    databases = {**dict.fromkeys(change.drop_databases), **{db.id: db for db in change.put_databases}}
    disagreements: list[Disagreement] = []
    for db_id, db in sorted(databases.items()):
        if (held_db := meta.databases.get(db_id)) != db:
            disagreements.append(Disagreement.about_database(job, db, held_db))
    for table_id, said in sorted(tables.items()):
        held, before = meta.table(table_id), state.table(table_id)
        if said is None and before is not None and before.db_id in change.drop_databases:
            continue  # went with its database
        if not _alike(said, held):
            disagreements.append(Disagreement.about_table(job, said, held, before))
    return _with_rest(change, meta, state, set(tables), _alike), disagreements


def settled(
    job: Job, drafts: Drafts, state: SchemaState, schema_version: int
) -> tuple[Change | None, list[Disagreement]]:
    """(the change of an ended job or None, the disagreements with its drafts). Raises as `ddl.apply`."""
    if ddl.skip_reason(job, state):
        change = adopted(drafts, state, job.commit_ts, schema_version, job_id=job.id)
        if job.type == Action.FLASHBACK_CLUSTER and job.state == ddl.STATE_DONE:
            change = change or Change(job_id=job.id, commit_ts=job.commit_ts, schema_version=schema_version)
            change = replace(change, created_ts=job.created_ts, unlogged="FLASHBACK CLUSTER")
        return change, []
    return reconciled(job, ddl.apply(completed(job, drafts), state), drafts, state)


def adopted(
    drafts: Drafts, state: SchemaState, commit_ts: int, schema_version: int, *, job_id: int = 0
) -> Change | None:
    """The change from the state to the meta range without a finished job; None when they are equal."""
    if not drafts:
        return None
    nothing = Change(job_id=job_id, commit_ts=commit_ts, schema_version=schema_version)
    change = _with_rest(nothing, _View.of(drafts, state), state, set(), _alike)
    return None if change == nothing else change


def finished(drafts: Drafts, state: SchemaState, job: Job, schema_version: int) -> Change | None:
    """The remaining change of a job that took effect before it was done, or None: PARTITION BY and REMOVE PARTITIONING
    give the table a new id at the end. Its update_ts stays that of the event."""
    change = adopted(drafts, state, job.commit_ts, schema_version, job_id=job.id)
    if change is None:
        return None
    puts = [(t, state.named(t.db, t.name)) for t in change.put_tables]
    return replace(change, put_tables=tuple(replace(t, update_ts=(old or t).update_ts) for t, old in puts))


def ahead(step: MetaCommit, state: SchemaState, schema_version: int) -> Change | None:
    """The change from `state` to what a step of a running job made public, for reads as of a timestamp; None for none.
    Its events say which statement made a version."""
    job = next(job for job in step.jobs if job.id == step.owner)
    nothing = Change(job_id=job.id, commit_ts=step.commit_ts, schema_version=schema_version)
    change = _with_rest(nothing, _View.of(step.definitions, state, blocks=True), state, set(), _shown_alike)
    if change == nothing:
        return None
    events = tuple(ddl.event_of(job, table) for table in change.put_tables)
    return replace(change, created_ts=job.created_ts, events=events, early=True)


def was_missed(job: Job, drafts: Drafts, state: SchemaState, start_ts: int) -> bool:
    """Whether an unknown job in the upstream's job history is to be applied now: some versions create tables in one
    transaction without a job row. DecodeError for any other missed job."""
    reason = ddl.skip_reason(replace(job, state=ddl.STATE_DONE), state)
    if job.type not in EVENTS or reason not in ("", ddl.ALREADY_KNOWN):
        return False
    creates = job.type in (Action.CREATE_TABLE, Action.CREATE_TABLES)
    if creates and not reason and drafts and all(d.start_ts == job.start_ts for d in drafts):
        return True
    if job.created_ts > start_ts:  # else its row may be older than what is known
        raise DecodeError(
            "a DDL job has finished, but its done row is missing",
            job_id=job.id,
            action=action_name(job.type),
            table_id=job.table_id,
            commit_ts=job.commit_ts,
        )
    return False


def _with_rest(
    change: Change,
    meta: _View,
    state: SchemaState,
    mentioned: set[int],
    alike: Callable[[Table | None, Table | None], bool],
) -> Change:
    """`change` and every drafted table and database that it does not mention and that is not `alike` in the state."""
    named = {*change.drop_databases, *(db.id for db in change.put_databases)}
    databases = {i: db for i, db in meta.drafted_databases.items() if i not in named and state.databases.get(i) != db}
    held = {i: t for i, t in meta.drafted.items() if i not in mentioned and not alike(t, state.table(i))}
    gone = tuple(i for i, db in databases.items() if db is None and i in state.databases)
    left = {i for db_id in gone for i in state.tables_of(db_id)} - mentioned - {i for i, t in held.items() if t}
    return replace(
        change,
        drop_databases=change.drop_databases + gone,
        put_databases=change.put_databases + tuple(db for db in databases.values() if db is not None),
        drop_tables=change.drop_tables + tuple(sorted(left | {i for i, t in held.items() if t is None})),
        put_tables=change.put_tables + tuple(t for t in held.values() if t is not None),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """The meta range at a commit: the drafts over the state in force."""

    state: SchemaState
    databases: Mapping[int, Database]
    drafted_databases: Mapping[int, Database | None]
    drafted: Mapping[int, Table | None]

    @classmethod
    def of(cls, drafts: Drafts, state: SchemaState, *, blocks: bool = False) -> _View:
        """Databases that are neither known nor drafted are TiDB's own, and so are their tables. A draft that is not
        public does not count, or with `blocks` means that nothing is there."""
        drafted_databases: dict[int, Database | None] = {}
        for d in drafts:
            if d.table_id:
                continue
            db = None if d.info is None else tidb_json.database(_json(d))
            is_public = db is not None and db.state == STATE_PUBLIC
            if db is None or ((is_public or blocks) and not is_system_database(db.name)):
                drafted_databases[d.db_id] = db if is_public else None
        databases = {**state.databases}
        for db_id, db in drafted_databases.items():
            databases.pop(db_id, None)
            if db is not None:
                databases[db_id] = db
        drafted: dict[int, Table | None] = {}
        for d in sorted((d for d in drafts if d.table_id), key=lambda d: d.info is not None):
            # deletions first: a table that moves is deleted in one database and put in the other
            if d.info is None:
                if d.db_id in state.databases:
                    drafted[d.table_id] = None
            elif d.db_id in databases:
                if (info := _json(d)).get("state") == STATE_PUBLIC:
                    drafted[d.table_id] = tidb_json.table(info, db_id=d.db_id, db=databases[d.db_id].name)
                elif blocks:
                    drafted[d.table_id] = None
        return cls(state=state, databases=databases, drafted_databases=drafted_databases, drafted=drafted)

    def table(self, table_id: int) -> Table | None:
        return self.drafted[table_id] if table_id in self.drafted else self.state.table(table_id)


def _json(definition: Definition) -> Json:
    try:
        parsed: Json = fields.parsed(definition.info)
    except ValueError as error:
        raise definition.unreadable("is not JSON") from error
    return parsed


def _alike(a: Table | None, b: Table | None) -> bool:
    return a is b or (a is not None and b is not None and _facts(a) == _facts(b))


def _shown_alike(a: Table | None, b: Table | None) -> bool:
    """Whether they have the same public parts, comments too."""
    return a is b or (a is not None and b is not None and _public_parts(a) == _public_parts(b))


def _public_parts(table: Table) -> Table:
    return replace(
        table,
        update_ts=0,
        columns=tuple(c for c in table.columns if c.state == STATE_PUBLIC),
        indexes=tuple(i for i in table.indexes if i.state == STATE_PUBLIC),
    )


def _facts(table: Table) -> dict[str, Any]:
    """The properties used by decoding, splitting and naming."""
    facts: dict[str, Any] = {"id": table.id, "database": table.db_id, "name": table.name, "kind": table.kind}
    if table.kind != "table":
        return facts
    return facts | {
        "mode": table.mode,
        "partitions": table.partition_ids,
        "handle": (table.pk_is_handle, table.is_common_handle, table.common_handle_version),
        "columns": [replace(c, comment="") for c in table.visible_columns],
        "indexes": [i for i in table.indexes if i.state == STATE_PUBLIC],
    }
