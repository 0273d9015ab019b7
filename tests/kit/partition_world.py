"""A small TiDB with partitioned tables, and a replica that follows its DDL."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from metaserver.initial_ranges import lay_out
from pusher import seed_scan
from pusher.core.batcher import Batcher
from schemas.history import History
from schemas.snapshot import parse_pushed
from simulator.core.cluster import Cluster
from simulator.ddl import Ddl, database
from simulator.jobs import SchemaVersion
from simulator.partition_jobs import JobPlan
from simulator.partitions import Action, Json, physical_id, readable
from simulator.profiles import PARTITIONS, WorkloadProfile, new_cluster
from simulator.push.model_source import ModelSource
from simulator.workload import Workload
from tests.kit.api_world import ApiWorld, api_world
from tests.kit.core_run import Prepared, Trouble, prepare, run_tasks
from tistream import ts as tso
from tistream.codec.batch_file import decode_batch_file, encode_batch_file
from tistream.codec.seed_file import SEED
from tistream.codec.table_key import DDL_JOB_TABLE_ID, RecordKey, is_record, parse_key, record_range
from tistream.ids import Tenant
from tistream.objectstore.layout import BatchKey

START_TS = tso.compose(1_750_000_000_000)
TENANT = Tenant(1, 1)
#: pipelined transactions can leave a task undecided until it asks for a new subscription, which nobody answers here
PROFILE = replace(
    PARTITIONS,
    stores=2,
    transactions=tuple((kind, 0 if kind == "pipelined" else weight) for kind, weight in PARTITIONS.transactions),
    actions=tuple(
        {"begin": 20, "advance": 60, "ddl": 50, "roll_back_unseen": 1, "split": 1, "merge": 1, "move_leader": 1}.items()
    ),
)
#: names and columns change rather than partitions
OTHER_DDL = replace(PROFILE, partition_jobs=0.1)
_ACTIONS_A_TICK = 40
_STARTS_WITHIN = 0.4
_JUMPS, _JUMP_MS_MAX = 0.1, 1500  # so that the steps of a job lie from milliseconds to many seconds apart
_DATA_TASKS = 3

Name = tuple[str, str]  #: database, table
Rows = dict[int, str]  #: handle -> the column `note`, different in every row that a session wrote


class PartitionWorld:
    """The upstream's history and what the sorters committed of it."""

    def __init__(self, seed: int, actions: int = 700, profile: WorkloadProfile = PROFILE) -> None:
        self.rand = random.Random(f"partitions {seed}")
        self.cluster = new_cluster(profile, floor_ts=START_TS)
        self.workload = Workload(seed, self.cluster, profile)
        self.start_ts = START_TS
        if self.rand.random() < _STARTS_WITHIN:
            self._go_into_a_job()
        self.snapshot = json.dumps(self._snapshot()).encode()
        pushers = [_Pusher(self.cluster, store + 1, self.start_ts) for store in range(profile.stores)]
        for number in range(actions):
            self._act()
            if number % _ACTIONS_A_TICK == 0:
                self._tick(pushers)
        self.workload.drain()
        self.end_ts = self._tick(pushers)
        for _ in range(2):
            self._tick(pushers)
        self._commit([deque(pusher.files) for pusher in pushers])

    def _act(self) -> None:
        if self.rand.random() < _JUMPS:
            pause_ms = self.rand.randint(1, _JUMP_MS_MAX)
            self.workload.advance_to(self.workload.last_ts + tso.compose(pause_ms))
        self.workload.step()

    def _go_into_a_job(self) -> None:
        """The tenant's log begins while a job is between two of its steps, or has copied some of the rows."""
        after, copied = self.rand.randint(20, 120), self.rand.random() < 0.5
        while after > 0 or not self._is_between_steps() or copied:
            before = self.workload.counts["rows copied"]
            self._act()
            after -= 1
            copied &= after > 0 or self.workload.counts["rows copied"] == before
        self.start_ts = self.workload.tick()
        self.cluster.tick(self.start_ts)

    def _is_between_steps(self) -> bool:
        newest = self.versions[-1]
        return newest.job is not None and newest.job.plan is not None and not newest.last

    def _snapshot(self) -> Json:
        """The schema that the tenant pushes."""
        pushed, version = self.workload.schema_snapshot(), self.workload.version_at(self.start_ts)
        system = [entry for entry in pushed["tables"] if entry["info"]["id"] == DDL_JOB_TABLE_ID]
        return {
            "ts": self.start_ts,
            "schema_version": self.versions.index(version) + 1,
            "dbs": [database(1, "mysql"), *(database(db_id, name) for db_id, name in version.databases.items())],
            "tables": [*system, *({"db_id": db_id, "info": info} for db_id, info in version.tables.values())],
        }

    def _tick(self, pushers: list[_Pusher]) -> int:
        for pusher in pushers:
            pusher.poll()
        ts = self.workload.tick()
        self.cluster.tick(ts)
        for pusher in pushers:
            pusher.tick(ts)
        return ts

    def _commit(self, streams: list[deque[Prepared]]) -> None:
        pushed = parse_pushed(json.loads(self.snapshot))
        laid_out = lay_out(History(pushed.snapshot, pushed.job_table), _DATA_TASKS)
        tasks = {n: task.range for n, task in enumerate(laid_out)}
        ran = run_tasks(self._arrivals(streams), tasks, self.start_ts, self.rand, Trouble(lag=0.8, again=0.0))
        assert all(task.durable_ts >= self.end_ts for task in ran.values()), "a task does not reach the end"
        rows = pa.concat_tables([task.rows() for task in ran.values()])
        rows = rows.filter(pc.less_equal(rows["commit_ts"], pa.scalar(self.end_ts, pa.uint64())))
        by = [(name, "ascending") for name in ("commit_ts", "start_ts", "key")]
        rows = rows.take(pc.sort_indices(rows, sort_keys=by))
        self.rows = rows.filter(is_record(rows["key"])).combine_chunks()
        self.meta = rows.filter(pc.starts_with(rows["key"], "m")).combine_chunks()

    def _arrivals(self, streams: list[deque[Prepared]]) -> Iterator[Prepared]:
        while left := [stream for stream in streams if stream]:
            yield self.rand.choice(left).popleft()

    # -- TiDB's own tables -----------------------------------------------------------------------------------------

    @property
    def versions(self) -> list[SchemaVersion]:
        """Those that readers see, oldest first."""
        return self.workload.schema_versions

    def tables_at(self, ts: int, *, by_event: bool = False) -> dict[Name, Rows]:
        """What SELECT shows of every table as of `ts`; `by_event`: with the names that the events up to there leave."""
        version = self._told_at(ts) if by_event else self.workload.version_at(ts)
        return {
            version.name_of(entry): {
                handle: note for physical_id in readable(entry[1]) for handle, note in self._rows_of(physical_id, ts)
            }
            for entry in version.tables.values()
        }

    def _told_at(self, ts: int) -> SchemaVersion:
        """The newest version whose event lies at or before `ts`: that of a job without steps comes when it is done."""
        complete = (v for v in reversed(self.versions) if v.last or v.job is None or v.job.plan is not None)
        return next(version for version in complete if version.commit_ts <= ts)

    def _rows_of(self, physical_id: int, ts: int) -> Iterator[tuple[int, str]]:
        for key, value in self.cluster.snapshot(record_range(physical_id), ts):
            assert isinstance(value, bytes), "nothing is open any more"
            yield _handle(key), self.workload.notes[value]

    @cached_property
    def shown(self) -> set[tuple[bytes, int]]:
        """(key, commit_ts) of the changes of some table: they lie on an id that readers of the newest schema version
        read. All others are copies of a reorganisation, or come from sessions of a version that is over."""
        rows = (row for row in self.workload.committed if row.commit_ts > self.start_ts and row.key.startswith(b"t"))
        return {(row.key, row.commit_ts) for row in rows if self.workload.shows(row)}

    def version_before(self, job: Ddl) -> SchemaVersion:
        """The one that the job found."""
        first = next(n for n, version in enumerate(self.versions) if version.job is job)
        return self.versions[first - 1]

    def switch_of(self, job: Ddl) -> SchemaVersion:
        """The version at which the event of the job comes: its first step that reads other ids, or its last."""
        before = self.version_before(job)
        versions = [version for version in self.versions if version.job is job]
        if job.plan is None:
            return versions[-1]
        return next((version for version in versions if version.readable != before.readable), versions[-1])

    def jobs_to_come(self) -> list[Ddl]:
        """Those that the tenant's log tells of, in order: they are done, and readers see it after the start."""
        done = [version.job for version in self.versions if version.last and version.job is not None]
        return [job for job in done if self.switch_of(job).commit_ts > self.start_ts]

    def check(self, ts: int, tables: Mapping[Name, Rows], *, whole: bool = False, by_event: bool = False) -> None:
        """AssertionError unless these are tables as of `ts`, or all of them."""
        shown = {name: rows for name, rows in self.tables_at(ts, by_event=by_event).items() if whole or name in tables}
        if tables == shown:
            return
        said = [f"as of {ts} (log from {self.start_ts}):"]
        for name in sorted({*tables, *shown}):
            ours, theirs = tables.get(name), shown.get(name)
            if ours is None or theirs is None:
                said.append(f"{name} is there {'upstream only' if ours is None else 'here only'}")
            elif ours != theirs:
                lacks, extra = sorted(theirs.keys() - ours.keys()), sorted(ours.keys() - theirs.keys())
                other = sorted(handle for handle in ours.keys() & theirs.keys() if ours[handle] != theirs[handle])
                said.append(f"{name} lacks {lacks}, has {extra} more, and other values in {other}")
        raise AssertionError("\n".join([*said, self.story(ts)]))

    def story(self, ts: int) -> str:
        """What happened to the schema about `ts`."""
        near = sorted(self.versions, key=lambda version: abs(version.commit_ts - ts))[:8]
        said = [
            f"{v.commit_ts} job {v.job.job_id} {v.job.query}"
            for v in sorted(near, key=lambda version: version.commit_ts)
            if v.job is not None
        ]
        return "\n".join(said)

    def tables_of(self, job: Ddl, ts: int) -> list[Name]:
        """The names as of `ts` of the tables that a job may change."""
        of_job = {*job.tables, job.body["table_id"]}
        if job.plan is not None:
            ids = {*readable(job.plan.table[1]), *(job.plan.exchanged or ())}
            of_job = {i for i, (_, info) in self.version_before(job).tables.items() if ids & set(readable(info))}
            of_job |= {after for after, old in job.plan.renumbered.items() if old in of_job}
        version = self.workload.version_at(ts)
        return [version.name_of(entry) for i, entry in version.tables.items() if i in of_job]

    def columns_at(self, ts: int, *, by_event: bool = False) -> dict[Name, list[str]]:
        """The columns of every table as of `ts`. `by_event`: as in `tables_at`."""
        version = self._told_at(ts) if by_event else self.workload.version_at(ts)
        return {version.name_of(entry): [c["name"]["O"] for c in entry[1]["cols"]] for entry in version.tables.values()}

    @cached_property
    def moments(self) -> list[int]:
        """Every commit_ts, of changes and of schema versions, above the start."""
        timestamps = {row.commit_ts for row in self.workload.committed} | {v.commit_ts for v in self.versions}
        return sorted(ts for ts in timestamps if ts > self.start_ts)

    # -- the service -----------------------------------------------------------------------------------------------

    @contextmanager
    def serve(self, folder: Path, *, seeded: bool = True) -> Iterator[ApiWorld]:
        """An API server whose log has a seed of what was there before, or none, and nothing else yet."""
        with api_world(folder, rows=self.rows) as api:
            api.log.meta, api.log.schema = self.meta, self.snapshot
            api.log.activate()
            if seeded:
                api.log.seed(self.seed_rows())
            yield api

    def seed_rows(self) -> pa.Table:
        """The rows at the start, schema SEED, of the ids that a seed's scan reads."""
        rows = []
        for table_id in seed_scan.seeded_ids(parse_pushed(json.loads(self.snapshot)).snapshot):
            for key, value in self.cluster.snapshot(record_range(table_id), self.start_ts):
                version = [v for v in self.cluster.versions(key) if v.commit_ts <= self.start_ts][-1]
                rows.append({"key": key, "start_ts": version.start_ts, "commit_ts": version.commit_ts, "value": value})
        return pa.Table.from_pylist(rows, SEED)


class _Pusher:
    """The files of one store, ready for routing."""

    def __init__(self, cluster: Cluster, store_id: int, checkpoint_ts: int) -> None:
        self._checkpoint_ts = checkpoint_ts
        self._source = ModelSource(cluster, store_id)
        self._batcher = Batcher()
        self.files: list[Prepared] = []

    def poll(self) -> None:
        for event in self._source.poll(0, lambda _: self._checkpoint_ts):
            for file in self._batcher.handle(event):
                key = BatchKey(tenant=TENANT, store_id=self._source.store_id, incarnation=1, seq=file.seq)
                data = encode_batch_file(key, cut_ts=file.cut_ts, rows=file.rows, regions=file.regions, write_id="w")
                self.files += prepare([decode_batch_file(key, data)])

    def tick(self, ts: int) -> None:
        self._source.tick(ts)
        self.poll()


def _handle(key: bytes) -> int:
    parsed = parse_key(key)
    assert isinstance(parsed, RecordKey)
    assert isinstance(parsed.handle, int)
    return parsed.handle


class Replica:
    """Starts with the tables at the start of the tenant's log. AssertionError for a change that does not fit."""

    def __init__(self, world: PartitionWorld) -> None:
        self._world = world
        self.rows: dict[Name, Rows] = world.tables_at(world.start_ts)
        self._jobs = deque(world.jobs_to_come())
        self.last_ts = 0

    def apply(self, event: dict[str, Any]) -> None:
        """Take the next event."""
        commit_ts = int(event["commit_ts"])
        assert commit_ts >= self.last_ts, f"{event} comes behind {self.last_ts}"
        self.last_ts = commit_ts
        if event["type"] == "ddl":
            self._ddl(event)
            return
        name = event["database"], event["table"]
        assert name in self.rows, f"{event} is of a table that is not there"
        table, columns = self.rows[name], event["columns"] or event["old"]
        handle = int(columns["id"])
        match event["type"]:
            case "insert":
                assert handle not in table, f"{event} is of a row that is there: {table[handle]}"
            case "update":
                assert table.get(handle) == event["old"]["note"], f"{event}, but the row is {table.get(handle)}"
            case "delete" if event["old"]["note"] is not None:
                assert table.get(handle) == event["old"]["note"], f"{event}, but the row is {table.get(handle)}"
        if event["type"] == "delete":
            table.pop(handle, None)
        else:
            table[handle] = columns["note"]

    def _ddl(self, event: dict[str, Any]) -> None:
        assert self._jobs, f"{event} is of no job"
        job = self._jobs.popleft()
        before, name = self._world.version_before(job), (event["database"], event["table"])
        assert event["table"] == job.body["table_name"], f"{event} is not of {job.query}"
        if job.plan is not None:
            self._partitions(job.plan, before)
            return
        match job.type:
            case 2:
                self.rows = {each: rows for each, rows in self.rows.items() if each[0] != event["database"]}
            case 3:
                self.rows[name] = {}
            case 4:
                del self.rows[name]
            case 14:
                self.rows[name] = self.rows.pop(before.name_of(before.tables[job.body["table_id"]]))

    def _partitions(self, plan: JobPlan, before: SchemaVersion) -> None:
        named = self.rows[before.name_of(plan.table)]
        if plan.type is Action.TRUNCATE_TABLE:
            named.clear()
        elif plan.exchanged is not None:
            partition, _ = plan.exchanged
            entry = next(e for e in before.tables.values() if partition in readable(e[1]))
            rows = self.rows[before.name_of(entry)]
            moved = {h: rows.pop(h) for h in list(rows) if physical_id(entry[1], h) == partition}
            rows.update(named)
            self.rows[before.name_of(plan.table)] = moved
        else:
            for handle in [h for h in named if physical_id(plan.table[1], h) in plan.emptied]:
                del named[handle]
