"""The DDL job under way: queued, running, its steps, removed.

A job without steps holds its tables: no transaction writes to them between its running and its done row. A job with
steps (`partition_jobs`) does not: each step is prewritten and committed, then the servers take up the new schema
version one by one, and the next step waits until no session uses the version before and no transaction an older one.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from simulator.core.cluster import Cluster
from simulator.ddl import QUEUED, SCHEMA_VERSION_KEY, Ddl, UpstreamSchema
from simulator.partition_jobs import DONE, ROLLED_BACK, RUNNING, Entry, JobPlan, JobStep
from simulator.partitions import Scheme, located, readable
from simulator.transactions import Transactions, Txn
from tistream.codec.table_key import DDL_JOB_TABLE_ID, RecordKey, parse_key, record_key, record_range

_COPIED = 3  # rows of a batch that a reorganisation copies


@dataclass(frozen=True, kw_only=True)
class SchemaVersion:
    """The schema for readers from `commit_ts` on."""

    commit_ts: int
    databases: Mapping[int, str]
    tables: Mapping[int, Entry]
    job: Ddl | None = None  #: that made it
    last: bool = False  #: it was the job's last step, and the job is done

    @cached_property
    def readable(self) -> frozenset[int]:
        """The physical ids that hold rows of tables."""
        return frozenset(physical for _, info in self.tables.values() for physical in readable(info))

    def name_of(self, entry: Entry) -> tuple[str, str]:
        """(database, table)"""
        return self.databases[entry[0]], entry[1]["name"]["O"]


class Jobs:
    """Takes the next job from the schema when the one before has ended."""

    def __init__(
        self, txns: Transactions, schema: UpstreamSchema, cluster: Cluster, rand: random.Random, *, says_version: bool
    ) -> None:
        self._says_version = says_version
        self._txns = txns
        self._schema = schema
        self._cluster = cluster
        self._rand = rand
        self._job: Ddl | None = None
        self._phase = 0
        self._finishing: Txn | None = None
        self._old_format = False
        self._copying: Iterator[tuple[bytes, bytes]] = iter(())
        self._batch: list[tuple[bytes, bytes]] = []
        self.blocked: frozenset[int] = frozenset()  #: tables without writes
        self.versions: list[SchemaVersion] = []
        self._note_version(cluster.floor_ts, None)

    def version_at(self, ts: int) -> SchemaVersion:
        """The newest at `ts`."""
        return self.versions[bisect_right(self.versions, ts, key=lambda version: version.commit_ts) - 1]

    @property
    def busy(self) -> bool:
        return self._job is not None

    def step(self) -> str:
        """The job moves on, or a new one is queued. "" while transactions hold its tables."""
        job = self._job
        if job is None:
            self._job = job = self._schema.propose(self._rand)
            self.blocked = job.tables
            self._old_format = self._rand.random() < 0.3
            self._write(job, QUEUED)
            return self._said(job, "is queued")
        if job.plan is not None:
            return self._step_on(job, job.plan)
        self._phase += 1
        if self._phase == 1:
            if self._txns.holds(job.tables):
                self._phase = 0
                return ""
            commit_ts = self._write(job, RUNNING)
            if job.early:
                job.apply()
                self._note_version(commit_ts, job)
            return self._said(job, "runs")
        if self._phase == 2:
            self._finishing = self._prewrite(job, DONE)
            return self._said(job, "prewrites its end")
        if self._finishing is not None:
            self._txns.schema_ts = self._txns.commit_all(self._finishing)
            self._finishing = None
            if job.early:
                self._schema.version += 1
            else:
                job.apply()
            self.blocked = frozenset()
            self._txns.counts[f"ddl {job.type}"] += 1
            self._note_version(self._txns.schema_ts, job, last=True)
            return self._said(job, f"is done at {self._txns.schema_ts}")
        return self._leave(job)

    def _leave(self, job: Ddl) -> str:
        self._txns.commit_all(self._txns.prewrite_all(lambda _: {record_key(DDL_JOB_TABLE_ID, job.job_id): None}))
        self._job, self._phase = None, 0
        return self._said(job, "leaves the queue")

    # -- a job with steps ------------------------------------------------------------------------------------------

    def _step_on(self, job: Ddl, plan: JobPlan) -> str:
        """The next thing that the job does. `_phase` counts the steps that are committed."""
        if self._finishing is not None:
            return self._publish(job, plan, plan.steps[self._phase])
        if self._schema.previous is not None:
            self._schema.synced()
            return self._said(job, f"is at version {self._schema.version} on every server")
        if self._txns.lag():
            return ""
        if self._batch:
            if not self._txns.copy_rows(self._batch):
                return ""
            copied, self._batch = len(self._batch), self._next_batch()
            return self._said(job, f"has copied {copied} rows")
        if self._phase == len(plan.steps):
            return self._leave(job)
        step = plan.steps[self._phase]
        self._finishing = self._prewrite(job, step.state, step)
        return self._said(job, f"prewrites {step.schema_state.name}")

    def _publish(self, job: Ddl, plan: JobPlan, step: JobStep) -> str:
        assert self._finishing is not None
        commit_ts = self._txns.commit_all(self._finishing)
        self._finishing = None
        self._phase += 1
        if step.tables:
            self._txns.schema_ts = commit_ts
            self._schema.publish(plan, step)
            self._note_version(commit_ts, job, last=step.state == DONE)
        if step.copies:
            self._copying = self._to_copy(step)
            self._batch = self._next_batch()
        if step.state in (DONE, ROLLED_BACK):
            self._txns.counts[f"ddl {job.type}" + (", rolled back" if step.state == ROLLED_BACK else "")] += 1
        return self._said(job, f"commits {step.schema_state.name} at {commit_ts}")

    def _to_copy(self, step: JobStep) -> Iterator[tuple[bytes, bytes]]:
        """(from, to) of the rows that a reorganisation copies, determined when it reaches them."""
        ((_, info),) = [entry for entry in step.tables.values() if entry is not None]
        part = info["partition"]
        scheme = Scheme(part.get("ddl_type", 0))
        for each in part["dropping_definitions"]:
            keys = [key for key, _ in self._cluster.snapshot(record_range(each["id"]), self._cluster.now_ts)]
            for key in keys:
                if step.copies < 1 and self._rand.random() >= step.copies:
                    continue
                parsed = parse_key(key)
                assert isinstance(parsed, RecordKey)
                assert isinstance(parsed.handle, int)
                at = located(scheme, part["adding_definitions"], parsed.handle)
                assert at is not None
                yield key, record_key(part["adding_definitions"][at]["id"], parsed.handle)

    def _next_batch(self) -> list[tuple[bytes, bytes]]:
        return [pair for _, pair in zip(range(_COPIED), self._copying, strict=False)]

    # -- inside ----------------------------------------------------------------------------------------------------

    def _note_version(self, commit_ts: int, job: Ddl | None, *, last: bool = False) -> None:
        databases, tables = dict(self._schema.databases), dict(self._schema.tables)
        self.versions.append(SchemaVersion(commit_ts=commit_ts, databases=databases, tables=tables, job=job, last=last))

    def _write(self, job: Ddl, state: int) -> int:
        return self._txns.commit_all(self._prewrite(job, state))

    def _prewrite(self, job: Ddl, state: int, step: JobStep | None = None) -> Txn:
        key, version = record_key(DDL_JOB_TABLE_ID, job.job_id), self._schema.version + 1

        def values_at(ts: int) -> dict[bytes, bytes | None]:
            row = job.row(
                state=state,
                schema_version=version,
                start_ts=ts,
                old_format=self._old_format,
                schema_state=None if step is None else int(step.schema_state),
            )
            changed = job.definitions(state=state, start_ts=ts) if step is None else self._schema.written(step, ts)
            said = {SCHEMA_VERSION_KEY: b"%d" % version} if changed and self._says_version else {}
            return {key: row, **said, **changed}

        return self._txns.prewrite_all(values_at)

    def _said(self, job: Ddl, what: str) -> str:
        return f"DDL job {job.job_id} {what}: {job.query}"
