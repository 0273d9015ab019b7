"""Reads a DDL job, decides whether it counts, and computes what it does to the schema.

Jobs come from rows of the DDL job table. A job counts once its state is `done`; that row commits together with the new
table definition, so its commit_ts is when the new schema begins. A DDL that gives a table other physical ids takes
effect earlier: `commit_ts` of the job is then its switch (see `schemas.switch`).

    apply(job, state) -> Change      pure: what to put, what to drop, which events to deliver

Relations:

- names come from the definitions inside the job or from the schema in force, never from `schema_name` and
  `table_name` of the job, which are lower case;
- a job over several tables gives one event per table, numbered by `sub`;
- a job that changes physical ids (truncate, partition DDL) drops the old table and puts the new one in one change;
- a job that cannot be understood raises DecodeError: continuing would decode later rows with the wrong schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from schemas import queries, tidb_json
from schemas.actions import EARLY, EVENTS, IGNORED, Action, action_name
from schemas.model import Database, DdlEvent, Table
from schemas.names import folded
from schemas.show_create import Dialect, define
from schemas.snapshot import is_system_database
from schemas.tidb_json import Json
from tistream.errors import DecodeError

ALREADY_KNOWN = "table already known"
STATE_ROLLING_BACK = 2
STATE_DONE = 4
STATE_SYNCED = 6  #: done, and out of the job table
STATE_QUEUEING = 8
STATES_ENDED = frozenset({3, STATE_DONE, 5, STATE_SYNCED})  #: 3 and 5: rolled back, cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A DDL job from its row; `start_ts` and `commit_ts` are the row's."""

    id: int
    type: int
    state: int
    schema_id: int
    table_id: int
    created_ts: int = 0  #: when the user requested it
    schema_name: str  #: lower case; used only to recognise system databases
    table_name: str = ""  #: lower case; the name of a view in events
    query: str
    sql_mode: int = 0
    charset: str = ""  #: of the session
    start_ts: int
    commit_ts: int
    finished_ts: int = 0  #: commit_ts of the row that ends the job; 0 = none yet
    schema_version: int
    db_info: Json | None
    table_info: Json | None
    table_infos: tuple[Json, ...]  #: of jobs over several tables
    args: Any  #: raw_args: an object (job version 2) or an array (version 1)

    @property
    def order(self) -> tuple[int, int]:
        """Jobs are applied in this order."""
        return (self.commit_ts, self.schema_version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The effect of one job. Drops come before puts, as an id may move from one table to another."""

    job_id: int
    commit_ts: int
    schema_version: int
    drop_databases: tuple[int, ...] = ()
    drop_tables: tuple[int, ...] = ()
    put_databases: tuple[Database, ...] = ()
    put_tables: tuple[Table, ...] = ()
    events: tuple[DdlEvent, ...] = ()
    created_ts: int = 0  #: when the user requested it, below everything that the job wrote; 0 = not known
    names: tuple[tuple[int, int], ...] = ()  #: (physical id, table id) first named here; table 0 = TiDB's own
    older: tuple[int, ...] = ()  #: physical ids first read here that the job did not allocate: their rows may be older
    unlogged: str = ""  #: what changed rows of all tables past the change feed, from `created_ts` to here
    early: bool = False  #: public definitions of a job that is not done yet: for reads as of a timestamp only


class SchemaState(Protocol):
    """The schema in force just before the job."""

    @property
    def databases(self) -> Mapping[int, Database]: ...

    def table(self, table_id: int) -> Table | None: ...

    def tables_of(self, db_id: int) -> Sequence[int]:
        """Ids of the tables of a database, ascending."""
        ...

    def named(self, db: str, name: str) -> Table | None:
        """The table of this name, in any case."""
        ...

    def dropped_with(self, db_id: int) -> Sequence[Table] | None:
        """The tables dropped with this database last time; None when that drop is not known."""
        ...


def parse_job(data: Json, *, start_ts: int, commit_ts: int) -> Job:
    """A job from its JSON. DecodeError when it is not one."""
    try:
        binlog = data.get("binlog") or {}
        state = int(data.get("state") or 0)
        return Job(
            id=int(data["id"]),
            type=int(data["type"]),
            state=state,
            schema_id=int(data.get("schema_id") or 0),
            table_id=int(data.get("table_id") or 0),
            created_ts=int(data.get("start_ts") or 0),
            schema_name=data.get("schema_name") or "",
            table_name=data.get("table_name") or "",
            query=data.get("query") or "",
            sql_mode=int(data.get("sql_mode") or 0),
            charset=data.get("charset") or "",
            start_ts=start_ts,
            commit_ts=commit_ts,
            finished_ts=commit_ts if state in STATES_ENDED else 0,
            schema_version=int(binlog.get("SchemaVersion") or 0),
            db_info=binlog.get("DBInfo"),
            table_info=binlog.get("TableInfo"),
            table_infos=tuple(binlog.get("MultipleTableInfos") or ()),
            args=data.get("raw_args"),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DecodeError("a DDL job cannot be read", commit_ts=commit_ts, reason=repr(error)) from error


def skip_reason(job: Job, state: SchemaState) -> str:
    """Why the job is skipped; empty when it is not. TiCDC skips the same jobs."""
    if job.state != STATE_DONE:
        return "not finished"
    if job.schema_version == 0:
        return "changed nothing upstream"
    if is_system_database(job.schema_name) and not _moves_ours(job, state):
        return "system database"
    if job.type in IGNORED:
        return "of no consequence for rows"
    created = [info.get("id") for info in _created(job)]
    if created and all(state.table(int(table_id or 0)) for table_id in created):
        return ALREADY_KNOWN
    return ""


def _moves_ours(job: Job, state: SchemaState) -> bool:
    """Whether a RENAME into a system database moves a known table, or has a clause between known databases."""
    if job.type == Action.RENAME_TABLE:
        return state.table(job.table_id) is not None
    clauses = _rename_args(job) if job.type == Action.RENAME_TABLES else []
    return any(db_id in state.databases for old, _, _, new, _ in clauses for db_id in (old, new))


def _created(job: Job) -> Sequence[Json]:
    if job.type == Action.CREATE_TABLES:
        return job.table_infos
    return [job.table_info] if job.type == Action.CREATE_TABLE and job.table_info else []


def apply(job: Job, state: SchemaState) -> Change:
    """The effect of the job on `state`. Only for jobs without a skip reason. DecodeError for an impossible job."""
    match job.type:
        case Action.CREATE_SCHEMA | Action.MODIFY_SCHEMA_CHARSET:
            return _put_database(job)
        case Action.DROP_SCHEMA:
            return _drop_database(job, state)
        case Action.RECOVER_SCHEMA:
            return _recover_database(job, state)
        case Action.CREATE_TABLES:
            return _create_tables(job, state)
        case Action.RENAME_TABLES:
            return _rename_tables(job, state)
        case Action.EXCHANGE_PARTITION:
            return _exchange_partition(job, state)
        case Action.DROP_TABLE | Action.DROP_VIEW | Action.DROP_SEQUENCE:
            return _drop_table(job, state)
    return _put_table(job, state)


def _change(job: Job, **parts: Any) -> Change:
    return Change(
        job_id=job.id, commit_ts=job.commit_ts, schema_version=job.schema_version, created_ts=job.created_ts, **parts
    )


def event_of(job: Job, table: Table) -> DdlEvent:
    """The event of a job over one table, with the text that the user wrote."""
    return _event(job, table, table.db)


def _event(job: Job, table: Table | None, db: str, *, query: str = "", **more: Any) -> DdlEvent:
    """`table` is the one after the DDL, or the dropped one."""
    return DdlEvent(
        commit_ts=job.commit_ts,
        finished_ts=job.finished_ts,
        start_ts=job.start_ts,
        job_id=job.id,
        schema_version=job.schema_version,
        type=job.type,
        kind=action_name(job.type),
        query=query or job.query,
        job_query=job.query,
        as_written=not query,
        sql_mode=job.sql_mode,
        charset=job.charset,
        db=db,
        table=table.name if table else "",
        db_id=table.db_id if table else job.schema_id,
        table_id=table.id if table else 0,
        version=table,
        **more,
    )


def _database_of(job: Job, state: SchemaState, db_id: int) -> Database:
    database = state.databases.get(db_id)
    if database is None:
        raise DecodeError("a DDL job names an unknown database", job_id=job.id, database_id=db_id)
    return database


def _definition(job: Job) -> Json:
    if not job.table_info:
        raise DecodeError("a finished DDL job carries no table definition", job_id=job.id, action=action_name(job.type))
    return job.table_info


def _defined_database(job: Job) -> Database:
    if not job.db_info:
        raise DecodeError("a finished DDL job carries no database definition", job_id=job.id)
    return tidb_json.database(job.db_info)


def _put_database(job: Job) -> Change:
    db = _defined_database(job)
    return _change(job, put_databases=(db,), events=(_event(job, None, db.name),))


def _drop_database(job: Job, state: SchemaState) -> Change:
    db = state.databases.get(job.schema_id) or _defined_database(job)
    tables = tuple(state.tables_of(db.id))
    event = _event(job, None, db.name, query=queries.drop("DATABASE", db.name))
    return _change(job, drop_databases=(db.id,), drop_tables=tables, events=(event,))


def _recover_database(job: Job, state: SchemaState) -> Change:
    """The database is restored with the tables dropped with it, under their old ids."""
    db = _defined_database(job)
    recover = (job.args.get("recover_info") or {}) if isinstance(job.args, Mapping) else {}
    listed = [entry["TableInfo"] for entry in recover.get("RecoverTableInfos") or ()] or job.table_infos
    if listed:
        tables = [tidb_json.table(info, db_id=db.id, db=db.name) for info in listed]
    else:
        dropped = state.dropped_with(db.id)
        tables = [replace(t, db_id=db.id, db=db.name) for t in dropped or ()]  # none at all: it was empty
    return _change(job, put_databases=(db,), put_tables=tuple(tables))


def _put_table(job: Job, state: SchemaState) -> Change:
    """Any job over one table that leaves a definition; also for action types that are newer than this code."""
    if not job.table_info and job.type not in EVENTS:
        return _change(job)
    info = _definition(job)
    old = state.table(job.table_id)
    if tidb_json.is_dropped(info):
        return _change(job, drop_tables=(old.id,) if old else ())
    if job.type == Action.RENAME_TABLE and old and is_system_database(job.schema_name):
        return _change(job, drop_tables=(old.id,), events=(_vanished(job, old),))
    db = _database_of(job, state, job.schema_id)
    new = tidb_json.table(info, db_id=db.id, db=db.name)
    drops = {old.id} if old and old.id != new.id else set()
    if job.type == Action.CREATE_VIEW:  # CREATE OR REPLACE gives the view a new id
        before = state.named(new.db, new.name)
        drops |= {before.id} - {new.id} if before else set()
    events: tuple[DdlEvent, ...]
    if job.type == Action.RENAME_TABLE and old is None and is_system_database(_came_from(job)):
        events = (_appeared(job, new, db),)
    elif job.type == Action.RENAME_TABLE:
        events = (_renamed(job, new, *_old_name(job, state)),)
    elif job.type == Action.CREATE_VIEW:
        events = (
            replace(_event(job, new, new.db), table=_view_name(job, new), view_select=tidb_json.view_select(info)),
        )
    elif job.type == Action.TRUNCATE_TABLE:
        events = (_event(job, new, new.db, query=queries.truncate(new.db, new.name)),)
    else:
        known = job.type in EVENTS and not _took_effect_before(job, old, new)
        events = (_event(job, new, new.db),) if known else ()
    return _change(job, drop_tables=tuple(sorted(drops)), put_tables=(new,), events=events)


def _view_name(job: Job, view: Table) -> str:
    """The name of a view in events: TiCDC takes the job's, which is in lower case."""
    return job.table_name or folded(view.name)


def _took_effect_before(job: Job, old: Table | None, new: Table) -> bool:
    """Whether a partition DDL took effect before the history began. It gives no event then: a consumer that starts
    there would drop rows written since."""
    return job.type in EARLY and old is not None and set(old.physical_ids) == set(new.physical_ids)


def _renamed(job: Job, new: Table, old_db: str, old_table: str) -> DdlEvent:
    query = queries.rename(old_db, old_table, new.db, new.name)
    return _event(job, new, new.db, query=query, old_db=old_db, old_table=old_table)


def _came_from(job: Job) -> str:
    """The old database in a RENAME of one table; empty when the job does not name it."""
    match job.args:
        case {"old_schema_name": name} | [_, _, name, *_]:
            return tidb_json.original_name(name)
    return ""


def _appeared(job: Job, new: Table, db: Database, sub: int = 0) -> DdlEvent:
    """A table renamed out of a system database is delivered as a new one. Its existing rows are not in the log."""
    created = replace(job, type=int(Action.CREATE_TABLE))
    return _event(created, new, db.name, query=define(db, new, Dialect.TIDB).create_table, sub=sub)


def _vanished(job: Job, old: Table, sub: int = 0) -> DdlEvent:
    """A table renamed into a system database is delivered as dropped."""
    dropped = replace(job, type=int(Action.DROP_TABLE))
    return _event(dropped, old, old.db, query=queries.drop("TABLE", old.db, old.name), sub=sub)


def _old_name(job: Job, state: SchemaState) -> tuple[str, str]:
    old = state.table(job.table_id)
    if old is None:
        raise DecodeError("an unknown table was renamed", job_id=job.id, table_id=job.table_id)
    return old.db, old.name


def _drop_table(job: Job, state: SchemaState) -> Change:
    """Drops an unknown table, too, so that it cannot be read afterwards."""
    old = state.table(job.table_id)
    if old is None:
        db = _database_of(job, state, job.schema_id)
        old = tidb_json.table(_definition(job), db_id=db.id, db=db.name)
    if job.type == Action.DROP_VIEW:
        name = _view_name(job, old)
        event = replace(_event(job, old, old.db, query=queries.drop("VIEW", old.db, name)), table=name)
    else:
        event = _event(job, old, old.db, query=queries.drop("TABLE", old.db, old.name))
    return _change(job, drop_tables=(old.id,), events=(event,) if job.type in EVENTS else ())


def _create_tables(job: Job, state: SchemaState) -> Change:
    """One text for all tables, split when it has as many statements as there are tables."""
    db = _database_of(job, state, job.schema_id)
    texts = queries.split_statements(job.query, job.sql_mode)
    matched = len(texts) == len(job.table_infos)
    puts, events = [], []
    for sub, info in enumerate(job.table_infos):
        new = tidb_json.table(info, db_id=db.id, db=db.name)
        if state.table(new.id):
            continue
        puts.append(new)
        event = _event(job, new, db.name, sub=sub)
        events.append(replace(event, query=texts[sub]) if matched else event)
    return _change(job, put_tables=tuple(puts), events=tuple(events))


def _rename_tables(job: Job, state: SchemaState) -> Change:
    """Every entry carries the final definition of its table, so a swap over a third name takes one change. A clause
    does not name its new database; an unknown one is a system database, as in the meta range."""
    renames = _rename_args(job)
    if len(renames) != len(job.table_infos):
        raise DecodeError("a RENAME of several tables lacks the old names", job_id=job.id)
    puts: dict[int, Table] = {}
    drops: list[int] = []
    events = []
    for sub, (info, renamed) in enumerate(zip(job.table_infos, renames, strict=True)):
        old_db_id, old_db_name, old_name, new_db_id, new_name = renamed
        if new_db_id not in state.databases:
            if old_db_id in state.databases:
                old = _moved(job, state, int(info["id"]), old_db_id, old_name)
                drops.append(old.id)
                events.append(_vanished(job, old, sub))
            continue
        db = _database_of(job, state, new_db_id)
        new = tidb_json.table(info, db_id=db.id, db=db.name)
        if new.id in drops:
            raise DecodeError("a table was renamed into a system database and back", job_id=job.id, table_id=new.id)
        puts.pop(new.id, None)
        puts[new.id] = new
        if old_db_id not in state.databases and is_system_database(old_db_name):
            events.append(_appeared(job, new, db, sub))
            continue
        old_db = _database_of(job, state, old_db_id)
        query = queries.rename(old_db.name, old_name, db.name, new_name) + ";"
        events.append(_event(job, new, db.name, query=query, sub=sub, old_db=old_db.name, old_table=old_name))
    kept = tuple(table for table in puts.values() if table.id not in drops)
    return _change(job, drop_tables=tuple(drops), put_tables=kept, events=tuple(events))


def _moved(job: Job, state: SchemaState, table_id: int, db_id: int, name: str) -> Table:
    """The table that a clause moves out of a known database, under its name before this clause."""
    known = state.table(table_id)
    if known is None:
        raise DecodeError("an unknown table was renamed", job_id=job.id, table_id=table_id)
    return replace(known, db_id=db_id, db=state.databases[db_id].name, name=name)


def _rename_args(job: Job) -> list[tuple[int, str, str, int, str]]:
    """(old database, its name, old name, new database, new name) per clause, from either form of the job's arguments.
    The old database's name is empty where it is not given."""
    name = tidb_json.original_name
    if isinstance(job.args, Mapping):
        return [
            (
                int(entry["old_schema_id"]),
                name(entry.get("old_schema_name")),
                name(entry["old_table_name"]),
                int(entry["new_schema_id"]),
                name(entry["new_table_name"]),
            )
            for entry in job.args.get("rename_table_infos") or ()
        ]
    if isinstance(job.args, list) and len(job.args) >= 6:
        old_dbs, new_dbs, new_names, _ids, old_db_names, old_names = job.args[:6]
        db_names = [name(said) for said in old_db_names or ()] or [""] * len(old_dbs)
        clauses = zip(old_dbs, db_names, old_names, new_dbs, new_names, strict=True)
        return [
            (int(old_db), db_name, name(old), int(new_db), name(new)) for old_db, db_name, old, new_db, new in clauses
        ]
    return []


def _exchange_partition(job: Job, state: SchemaState) -> Change:
    """A plain table and a partition swap their physical ids. The job carries the partitioned table's definition; the
    plain table keeps its columns, takes the id that the partition gave up, and counts as updated with it."""
    info = _definition(job)
    plain, before = state.table(job.table_id), state.table(int(info["id"]))
    if plain is None or before is None:
        raise DecodeError("a partition was exchanged with an unknown table", job_id=job.id)
    partitioned = tidb_json.table(info, db_id=before.db_id, db=before.db)
    given_up = set(before.partition_ids) - set(partitioned.partition_ids)
    if len(given_up) != 1 or plain.id not in partitioned.partition_ids:
        raise DecodeError("an EXCHANGE PARTITION does not swap two ids", job_id=job.id, given_up=sorted(given_up))
    swapped = replace(plain, id=given_up.pop(), update_ts=partitioned.update_ts)
    query = queries.exchange(job.query, (before.db, before.name), (plain.db, plain.name))
    event = replace(_event(job, plain, plain.db, query=query), version=partitioned, exchanged=plain)
    return _change(job, drop_tables=(plain.id,), put_tables=(partitioned, swapped), events=(event,))
