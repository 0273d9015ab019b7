"""The schema of the modelled cluster, and the DDL jobs that change it.

`UpstreamSchema` holds databases and TableInfo objects as TiDB keeps them. `propose` makes up a job that fits the
schema; its row in `mysql.tidb_ddl_job` is written queued, running and done, and the commit of the done row is the
moment at which the schema changes: `Ddl.apply` is called then, and only then do tables look different. The meta range
gets the new definitions with the done row. Some jobs write them with the running row already, as a RENAME does, or hide
there what they drop: readers see the result from then on, and `Ddl.apply` is called then.

With `partition_ddl` the schema has partitioned tables of every kind, and jobs that change physical ids walk through
TiDB's schema states (`partition_jobs`): each step is a separate schema version, and sessions use two adjacent
ones at once. Without, such a job changes the schema in one step, as it did on older servers.

Relations: ids (databases, tables, partitions, jobs, columns) are never used twice; a partition of the first tables
holds the handles [HANDLES * i, HANDLES * (i + 1)); the last table that is left is never dropped; tables of `Ddl.tables`
may not be written to by a transaction that spans the change.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from schemas.meta import database_key, table_key
from simulator.partition_jobs import DONE, ROLLED_BACK, RUNNING, Entry, JobPlan, JobStep, PartitionJobs
from simulator.partitions import HANDLES, Json, Scheme, definition, partition_info, readable
from simulator.profiles import FIRST_TABLE_ID, PARTITION_JOBS
from simulator.rows import BIGINT, DOUBLE, INT, LONGBLOB, MEDIUMTEXT, VARCHAR, Column, Value, row_v1, row_v2
from tistream.codec.memcomparable import encode_bytes
from tistream.codec.table_key import DDL_JOB_TABLE_ID

SCHEMA_VERSION_KEY = b"m" + encode_bytes(b"SchemaVersionKey") + ord("s").to_bytes(8, "big")
MYSQL_ID, FIRST_DB_ID = 1, 90
QUEUED = 8
_WRITE_ONLY, _PUBLIC = 2, 5


def definitions(snapshot: Json) -> dict[bytes, bytes]:
    """The meta range of a schema that a tenant pushes: databases, tables, and its version."""
    values = {database_key(db["id"]): json.dumps(db).encode() for db in snapshot["dbs"]}
    values |= {table_key(t["db_id"], t["info"]["id"]): json.dumps(t["info"]).encode() for t in snapshot["tables"]}
    return values | {SCHEMA_VERSION_KEY: b"%d" % snapshot["schema_version"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ddl:
    """A job that is about to run."""

    job_id: int
    type: int
    query: str
    tables: frozenset[int]  #: logical ids of the tables whose rows must not straddle it
    body: Json  #: schema_id, table_id, schema_name, table_name, DBInfo, TableInfo
    meta: Mapping[bytes, Json | None]  #: writes to the meta range with the done row; None deletes
    apply: Callable[[], None]
    early: Mapping[bytes, Json | None] = field(default_factory=dict)  #: with the running row: readers see its result
    plan: JobPlan | None = None  #: its steps, where it has any; then `meta`, `early` and `apply` are not used

    def definitions(self, *, state: int, start_ts: int) -> dict[bytes, bytes | None]:
        """The entries a step writes to the meta range."""
        written = self.early if state == RUNNING else self.meta if state == DONE else {}
        dated = {key: info and {**info, "update_timestamp": start_ts} for key, info in written.items()}
        return {key: json.dumps(info).encode() if info else None for key, info in dated.items()}

    def job(self, *, state: int, schema_version: int, start_ts: int, schema_state: int | None = None) -> Json:
        """The job as its row has it."""
        done = state in (DONE, ROLLED_BACK)
        info = copy.deepcopy(self.body["TableInfo"]) if done else None
        if info is not None:
            info["update_timestamp"] = start_ts
        return {
            "id": self.job_id,
            "type": self.type,
            "schema_id": self.body["schema_id"],
            "table_id": self.body["table_id"],
            "schema_name": self.body["schema_name"].lower(),
            "table_name": self.body["table_name"].lower(),
            "state": state,
            "raw_args": None,
            "schema_state": schema_state if schema_state is not None else _PUBLIC if done else 0,
            "query": self.query,
            "binlog": {
                "SchemaVersion": schema_version if done else 0,
                "DBInfo": self.body["DBInfo"] if done else None,
                "TableInfo": info,
                "FinishedTS": 0,
                "MultipleTableInfos": None,
            },
            "version": 2,
            "start_ts": start_ts,
        }

    def row(
        self, *, state: int, schema_version: int, start_ts: int, old_format: bool, schema_state: int | None = None
    ) -> bytes:
        """The job's row in the job table."""
        job = self.job(state=state, schema_version=schema_version, start_ts=start_ts, schema_state=schema_state)
        values: tuple[Value, ...] = (
            0,
            str(self.body["schema_id"]),
            str(self.body["table_id"]),
            json.dumps(job).encode(),
            self.type,
            int(state == RUNNING),
        )
        pairs: list[tuple[Column, Value]] = list(zip(JOB_TABLE["cols"][1:], values, strict=True))
        return row_v1(pairs) if old_format else row_v2(pairs)


def column(column_id: int, name: str, tp: int, *, offset: int = 0, default: str | None = None, flag: int = 0) -> Json:
    """A ColumnInfo."""
    text = tp in (VARCHAR, MEDIUMTEXT)
    return {
        "id": column_id,
        "name": _name(name),
        "offset": offset,
        "origin_default": default,
        "default": default,
        "type": {
            "Tp": tp,
            "Flag": flag,
            "Flen": {VARCHAR: 4000, INT: 11, BIGINT: 20, DOUBLE: 22}.get(tp, 1 << 24),
            "Decimal": -1 if tp == DOUBLE else 0,
            "Charset": "utf8mb4" if text else "binary",
            "Collate": "utf8mb4_bin" if text else "binary",
            "Elems": None,
        },
        "state": _PUBLIC,
        "version": 2,
    }


def table(table_id: int, name: str, cols: list[Json], partition_ids: list[int] | None = None) -> Json:
    """A TableInfo whose first column is the integer primary key."""
    definitions = [
        {"id": part, "name": _name(f"p{i}"), "less_than": [str(HANDLES * (i + 1))]}
        for i, part in enumerate(partition_ids or ())
    ]
    partition = {"type": 1, "expr": "`id`", "enable": True, "definitions": definitions, "num": len(definitions)}
    return {
        "id": table_id,
        "name": _name(name),
        "charset": "utf8mb4",
        "collate": "utf8mb4_bin",
        "cols": [{**c, "offset": i} for i, c in enumerate(cols)],
        "index_info": None,
        "state": _PUBLIC,
        "pk_is_handle": True,
        "is_common_handle": False,
        "max_col_id": max(int(c["id"]) for c in cols),
        "update_timestamp": 0,
        "partition": partition if definitions else None,
        "version": 5,
    }


def _name(name: str) -> Json:
    return {"O": name, "L": name.lower()}


_PRIMARY = 4099  # primary key, not null, no default
_JOB_COLUMNS = (
    ("job_id", BIGINT, _PRIMARY),
    ("reorg", INT, 0),
    ("schema_ids", MEDIUMTEXT, 0),
    ("table_ids", MEDIUMTEXT, 0),
    ("job_meta", LONGBLOB, 128),
    ("type", INT, 0),
    ("processing", INT, 0),
)
JOB_TABLE = table(
    DDL_JOB_TABLE_ID, "tidb_ddl_job", [column(i + 1, n, tp, flag=f) for i, (n, tp, f) in enumerate(_JOB_COLUMNS)]
)
_ADDABLE = ((INT, "7"), (BIGINT, None), (VARCHAR, "none"), (DOUBLE, None))


class UpstreamSchema:
    """Databases and tables in force now. `partition_jobs`: of the jobs, with `partition_ddl`. `fits`: see
    `PartitionJobs`."""

    def __init__(
        self,
        tables: int,
        *,
        partition_ddl: bool = False,
        partition_jobs: float = PARTITION_JOBS,
        fits: Callable[[Json, Json, int], bool] | None = None,
    ) -> None:
        self.databases: dict[int, str] = {FIRST_DB_ID: "Shop"}
        self.tables: dict[int, Entry] = {}
        self.previous: dict[int, Entry] | None = None  #: the previous version, which some sessions still use
        self.lineage: dict[int, int] = {}  #: table id -> the id that the table had first, where it has another one now
        self.version = 1
        self._next_id = FIRST_TABLE_ID + 10 * tables
        self._next_job = 1000
        self._partition_jobs_share = partition_jobs
        self._partition_jobs = PartitionJobs(self._id, fits or (lambda *_: False)) if partition_ddl else None
        for i in range(tables):
            table_id = FIRST_TABLE_ID + 10 * i
            parts = [table_id + 1, table_id + 2] if i == tables - 1 > 0 else None
            info = table(table_id, f"Table{i + 1}", _first_columns(), parts)
            if partition_ddl:
                info["partition"] = _first_partition(i, table_id)
            self.tables[table_id] = (FIRST_DB_ID, info)

    def snapshot(self, ts: int) -> Json:
        """The schema as a tenant pushes it before its first change."""
        entries = [{"db_id": db_id, "info": copy.deepcopy(info)} for db_id, info in self.tables.values()]
        names = {MYSQL_ID: "mysql", **self.databases}
        return {
            "ts": ts,
            "schema_version": self.version,
            "dbs": [database(db_id, name) for db_id, name in names.items()],
            "tables": [{"db_id": MYSQL_ID, "info": copy.deepcopy(JOB_TABLE)}, *entries],
        }

    def physical_ids(self) -> set[int]:
        """Those that hold rows of a table now."""
        return {physical for _, info in self.tables.values() for physical in readable(info)}

    def of_lineage(self, first_id: int) -> Entry | None:
        """The table that had this id first, as it is now."""
        return next((e for i, e in self.tables.items() if self.lineage.get(i, i) == first_id), None)

    def publish(self, job: JobPlan, step: JobStep) -> None:
        """A step was committed: the next schema version exists, and sessions of the previous one continue."""
        self.version += bool(step.tables)
        if not step.tables:
            return
        self.previous = dict(self.tables)
        for table_id, entry in step.tables.items():
            if entry is None:
                del self.tables[table_id]
        for table_id, entry in step.tables.items():
            if entry is not None:
                self.tables[table_id] = entry
                before = job.renumbered.get(table_id, table_id)
                self.lineage[table_id] = self.lineage.get(before, before)

    def written(self, step: JobStep, start_ts: int) -> dict[bytes, bytes | None]:
        """The entries a step writes to the meta range."""
        values: dict[bytes, bytes | None] = {}
        for table_id, entry in step.tables.items():
            if entry is None:
                values[table_key(self.tables[table_id][0], table_id)] = None
            else:
                values[table_key(entry[0], table_id)] = json.dumps({**entry[1], "update_timestamp": start_ts}).encode()
        return values

    def synced(self) -> None:
        """All servers have the newest version: none begins anything under the one before."""
        self.previous = None

    def propose(self, rand: random.Random) -> Ddl:
        """A job that can run now."""
        if self._partition_jobs is not None and rand.random() < self._partition_jobs_share:
            self._next_job += 1
            return self._planned(self._partition_jobs.propose(rand, list(self.tables.values())))
        kinds = [self._create_table, self._create_database, self._add_column]
        kinds += [self._drop_column, self._rename, *([] if self._partition_jobs else [self._truncate])] * 2
        if len(self.tables) > 1:
            kinds += [self._drop_table]
        if len(self.databases) > 1 and self._droppable_databases():
            kinds += [self._drop_database]
        if self._partition_jobs is None and any(info["partition"] for _, info in self.tables.values()):
            kinds += [self._add_partition, self._truncate_partition] * 2
        self._next_job += 1
        return rand.choice(kinds)(rand)

    # -- the kinds of job ------------------------------------------------------------------------------------------

    def _create_database(self, rand: random.Random) -> Ddl:
        db_id = self._id()
        name = f"Db{db_id}"

        def apply() -> None:
            self.databases[db_id] = name

        meta = {database_key(db_id): database(db_id, name)}
        return self._database_job(1, db_id, name, f"CREATE DATABASE `{name}`", frozenset(), meta, apply)

    def _drop_database(self, rand: random.Random) -> Ddl:
        db_id = rand.choice(self._droppable_databases())
        name = self.databases[db_id]
        tables = frozenset(i for i, (db, _) in self.tables.items() if db == db_id)

        def apply() -> None:
            del self.databases[db_id]
            for table_id in tables:
                del self.tables[table_id]

        meta = dict.fromkeys([database_key(db_id), *(table_key(db_id, i) for i in sorted(tables))])
        job = self._database_job(2, db_id, name, f"DROP DATABASE `{name}`", tables, meta, apply)
        return self._hidden(job, {database_key(db_id): {**database(db_id, name), "state": _WRITE_ONLY}})

    def _create_table(self, rand: random.Random) -> Ddl:
        db_id, table_id = rand.choice(sorted(self.databases)), self._id()
        parts = [self._id(), self._id()] if rand.random() < 0.4 else None
        info = table(table_id, f"Table{table_id}", _first_columns(), parts)
        if parts and self._partition_jobs is not None:
            ranges = [definition(each, f"p{n}", below=HANDLES * (n + 1)) for n, each in enumerate(parts)]
            info["partition"] = partition_info(Scheme.RANGE, ranges)
        return self._table_job(3, db_id, info, "CREATE TABLE {} (...)")

    def _drop_table(self, rand: random.Random) -> Ddl:
        db_id, old = self._any(rand)
        job = self._table_job(4, db_id, old, "DROP TABLE {}", old_id=old["id"], gone=True)
        return self._hidden(job, {table_key(db_id, old["id"]): {**old, "state": _WRITE_ONLY}})

    def _add_column(self, rand: random.Random) -> Ddl:
        db_id, old = self._any(rand)
        tp, default = rand.choice(_ADDABLE)
        info, added = copy.deepcopy(old), old["max_col_id"] + 1
        info["cols"].append(column(added, f"c{added}", tp, offset=len(old["cols"]), default=default))
        info["max_col_id"] = added
        return self._table_job(5, db_id, info, f"ALTER TABLE {{}} ADD COLUMN c{added}", old_id=old["id"])

    def _drop_column(self, rand: random.Random) -> Ddl:
        db_id, old = self._any(rand)
        if len(old["cols"]) < 4:
            return self._add_column(rand)
        info = copy.deepcopy(old)
        gone = info["cols"].pop(rand.randrange(2, len(info["cols"])))
        info["cols"] = [{**c, "offset": i} for i, c in enumerate(info["cols"])]
        job = self._table_job(6, db_id, info, f"ALTER TABLE {{}} DROP COLUMN {gone['name']['O']}", old_id=old["id"])
        hidden = {**gone, "offset": len(info["cols"]), "state": _WRITE_ONLY}
        return self._hidden(job, {table_key(db_id, old["id"]): {**info, "cols": [*info["cols"], hidden]}})

    def _rename(self, rand: random.Random) -> Ddl:
        _, old = self._any(rand)
        db_id, info = rand.choice(sorted(self.databases)), copy.deepcopy(old)
        info["name"] = _name(f"Renamed{self._next_job}")
        job = self._table_job(14, db_id, info, "RENAME TABLE t TO {}", old_id=old["id"])
        return replace(job, meta={}, early=job.meta)

    def _hidden(self, job: Ddl, early: Mapping[bytes, Json | None]) -> Ddl:
        """The job with a step that hides what it drops, where jobs have steps."""
        return job if self._partition_jobs is None else replace(job, early=early)

    def _planned(self, plan: JobPlan) -> Ddl:
        db_id, named = plan.table
        last = plan.steps[-1].tables
        entries = [e for e in last.values() if e is not None]
        carried = entries[0][1]  # of an exchange the partitioned table
        name = named["name"]["O"]
        body = {
            "schema_id": db_id,
            "table_id": named["id"],
            "schema_name": self.databases[db_id],
            "table_name": name,
            "DBInfo": None,
            "TableInfo": carried,
        }
        query = plan.query.format(f"`{self.databases[db_id]}`.`{name}`")
        return Ddl(
            job_id=self._next_job,
            type=int(plan.type),
            query=query,
            tables=frozenset(),
            body=body,
            meta={},
            apply=lambda: None,
            plan=plan,
        )

    def _truncate(self, rand: random.Random) -> Ddl:
        db_id, old = self._any(rand)
        info = copy.deepcopy(old)
        info["id"] = self._id()
        for each in (info["partition"] or {}).get("definitions", ()):
            each["id"] = self._id()
        return self._table_job(11, db_id, info, "TRUNCATE TABLE {}", old_id=old["id"])

    def _add_partition(self, rand: random.Random) -> Ddl:
        db_id, old = self._any(rand, partitioned=True)
        info = copy.deepcopy(old)
        ids = [d["id"] for d in old["partition"]["definitions"]] + [self._id()]
        info["partition"] = table(old["id"], "", old["cols"], ids)["partition"]
        return self._table_job(19, db_id, info, "ALTER TABLE {} ADD PARTITION (...)", old_id=old["id"])

    def _truncate_partition(self, rand: random.Random) -> Ddl:
        db_id, old = self._any(rand, partitioned=True)
        info = copy.deepcopy(old)
        rand.choice(info["partition"]["definitions"])["id"] = self._id()
        return self._table_job(23, db_id, info, "ALTER TABLE {} TRUNCATE PARTITION p", old_id=old["id"])

    # -- inside ----------------------------------------------------------------------------------------------------

    def _table_job(
        self, kind: int, db_id: int, info: Json, query: str, *, old_id: int | None = None, gone: bool = False
    ) -> Ddl:
        """A job over one table: `info` replaces the table `old_id`; or the table is `gone`."""

        def apply() -> None:
            self.version += 1
            if old_id is not None:
                del self.tables[old_id]
            if not gone:
                self.tables[info["id"]] = (db_id, info)

        name = info["name"]["O"]
        body = {
            "schema_id": db_id,
            "table_id": info["id"] if old_id is None else old_id,
            "schema_name": self.databases[db_id],
            "table_name": name,
            "DBInfo": None,
            "TableInfo": {**info, "state": 0} if gone else info,
        }
        meta: dict[bytes, Json | None] = {}
        if old_id is not None:
            meta[table_key(self.tables[old_id][0], old_id)] = None
        if not gone:
            meta[table_key(db_id, info["id"])] = info
        query = query.format(f"`{self.databases[db_id]}`.`{name}`")
        blocked = frozenset() if old_id is None else frozenset({old_id})
        return Ddl(job_id=self._next_job, type=kind, query=query, tables=blocked, body=body, meta=meta, apply=apply)

    def _database_job(
        self,
        kind: int,
        db_id: int,
        name: str,
        query: str,
        tables: frozenset[int],
        meta: Mapping[bytes, Json | None],
        change: Callable[[], None],
    ) -> Ddl:
        def apply() -> None:
            self.version += 1
            change()

        body = {
            "schema_id": db_id,
            "table_id": 0,
            "schema_name": name,
            "table_name": "",
            "DBInfo": database(db_id, name),
            "TableInfo": None,
        }
        return Ddl(job_id=self._next_job, type=kind, query=query, tables=tables, body=body, meta=meta, apply=apply)

    def _any(self, rand: random.Random, *, partitioned: bool = False) -> tuple[int, Json]:
        return rand.choice([entry for entry in self.tables.values() if entry[1]["partition"] or not partitioned])

    def _droppable_databases(self) -> list[int]:
        """Databases other than the first that do not hold the last table."""
        holding = {db_id for db_id, _ in self.tables.values()}
        return [db_id for db_id in self.databases if db_id != FIRST_DB_ID and holding - {db_id}]

    def _id(self) -> int:
        self._next_id += 1
        return self._next_id


def _first_partition(number: int, table_id: int) -> Json | None:
    """Of the first tables with partition DDL: HASH, RANGE, LIST, KEY, and every third without partitions."""
    ids = [table_id + 1, table_id + 2, table_id + 3]
    match number % 6:
        case 1 | 4:
            scheme = Scheme.HASH if number % 6 == 1 else Scheme.KEY
            return partition_info(scheme, [definition(each, f"p{n}") for n, each in enumerate(ids)])
        case 2:
            ranges = [definition(each, f"p{n}", below=HANDLES * (n + 1)) for n, each in enumerate(ids)]
            return partition_info(Scheme.RANGE, ranges)
        case 3:
            lists = [definition(each, f"p{n}", values=[2 * n, 2 * n + 1]) for n, each in enumerate(ids[:2])]
            return partition_info(Scheme.LIST, lists)
    return None


def _first_columns() -> list[Json]:
    return [column(1, "id", BIGINT, flag=_PRIMARY), column(2, "note", VARCHAR), column(3, "n", INT)]


def database(db_id: int, name: str) -> Json:
    """A DBInfo."""
    return {"id": db_id, "db_name": _name(name), "charset": "utf8mb4", "collate": "utf8mb4_bin", "state": _PUBLIC}
