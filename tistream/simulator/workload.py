"""A random workload that drives the model of a cluster, with the truth about what it committed.

    workload = Workload(seed, new_cluster(profile, floor_ts=S), profile)
    workload.schema_snapshot()       what the tenant pushes before its first change
    workload.step()                  one thing happens upstream; a sentence about it
    workload.tick()                  a fresh timestamp, to be given to `Cluster.tick` at once
    workload.committed               what a complete and exact copy of the feed contains
    workload.drain()                 nothing is left undecided

Deterministic: the same seed on an equal cluster, driven by the same calls, does the same and says the same. The
workload owns the timestamp oracle of the cluster. It knows nothing of subscribers, files or watermarks.

What a step may do: see `transactions` (2PC, 1PC, async commit, pessimistic, pipelined, huge and interactive ones, lossy
reorganisations, rollbacks of all kinds, locks that are written again), `topology` (splits, merges, leader moves, dying
stores) and `ddl` (jobs of the common kinds, a few steps each). While a job runs, no transaction writes to its tables:
a row is therefore always in the format that the schema just before its commit has.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping

from tistream.change import Op
from tistream.codec.table_key import DDL_JOB_TABLE_ID, record_key
from tistream.simulator.cluster import Cluster
from tistream.simulator.ddl import (
    DONE,
    QUEUED,
    RUNNING,
    SCHEMA_VERSION_KEY,
    Ddl,
    Json,
    UpstreamSchema,
    definitions,
)
from tistream.simulator.mvcc import Version
from tistream.simulator.profiles import Profile
from tistream.simulator.topology import Topology
from tistream.simulator.transactions import CommittedRow, State, Transactions, Tso, Txn

_TRIES = 30  # of an action that turns out to be possible


class Workload:
    """See the module. `cluster` is new; the workload is the only one that changes it. `whole_meta`: the meta range
    holds the first schema, too, and the schema's version, for readers of a snapshot."""

    def __init__(self, seed: int, cluster: Cluster, profile: Profile, *, whole_meta: bool = False) -> None:
        rand = random.Random(seed)
        self._rand = rand
        self._steps = 0
        self._tso = Tso(cluster, rand)
        self._schema = UpstreamSchema(profile.tables)
        self._first_schema = self._schema.snapshot(cluster.floor_ts)
        self._txns = Transactions(cluster, profile, rand, self._schema, self._tso)
        self._topology = Topology(cluster, rand, stores=profile.stores)
        self._jobs = _Jobs(self._txns, self._schema, rand, says_version=whole_meta)
        if whole_meta:
            for key, value in definitions(self._first_schema).items():
                cluster.load(key, Version(cluster.floor_ts - 1, cluster.floor_ts, Op.PUT, value, None))
        self._names, self._weights = zip(*profile.actions, strict=True)
        topology = self._topology
        self._actions: dict[str, Callable[[], str]] = {
            "begin": lambda: self._txns.begin(self._steps),
            "advance": lambda: self._txns.advance(self._steps, self._jobs.blocked),
            "rewrite_lock": self._txns.rewrite_lock,
            "roll_back_unseen": self._txns.roll_back_unseen,
            "roll_back_committed": self._txns.roll_back_committed,
            "split": lambda: topology.split([key for key, _ in self._txns.places()]),
            "merge": topology.merge,
            "move_leader": topology.move_leader,
            "kill_store": topology.kill_store,
            "start_store": topology.start_store,
            "ddl": self._jobs.step,
        }

    def step(self) -> str:
        """One random thing happens; a sentence about it."""
        self._steps += 1
        for _ in range(_TRIES):
            name = self._rand.choices(self._names, self._weights)[0]
            if sentence := self._actions[name]():
                self._txns.counts[f"action {name}"] += 1
                return sentence
        return self._txns.roll_back_unseen()

    @property
    def committed(self) -> list[CommittedRow]:
        """Everything that was committed so far and that a subscriber must get, in (commit_ts, start_ts, key) order. The
        list is the workload's own."""
        return self._txns.committed

    @property
    def unsent(self) -> list[CommittedRow]:
        """What was committed and no subscriber may get: lossy reorganisations of columns."""
        return self._txns.unsent

    @property
    def counts(self) -> Mapping[str, int]:
        """How often each kind of thing has happened."""
        return Counter(self._txns.counts)

    def schema_snapshot(self) -> Json:
        """The schema at the cluster's floor, as a tenant pushes it."""
        return self._first_schema

    def tick(self) -> int:
        """A fresh timestamp; what is committed from now on lies above. Give it to `Cluster.tick` before a step."""
        return self._tso.tick()

    @property
    def last_ts(self) -> int:
        """The largest timestamp that the oracle has given."""
        return self._tso.last

    def advance_to(self, ts: int) -> None:
        """Time passes: the oracle gives nothing at or below `ts` any more."""
        self._tso.last = max(self._tso.last, ts)

    def drain(self) -> None:
        """Decide every open transaction and finish the DDL job under way."""
        while self._txns.open:
            txn = self._txns.open[0]
            if txn.state is State.WRITING:
                txn.wants = 0
            self._txns.move(txn, self._jobs.blocked)
        while self._jobs.busy:
            self._jobs.step()


class _Jobs:
    """The DDL job under way: queued, running, its last step prewritten, done, removed."""

    def __init__(self, txns: Transactions, schema: UpstreamSchema, rand: random.Random, *, says_version: bool) -> None:
        self._says_version = says_version
        self._txns = txns
        self._schema = schema
        self._rand = rand
        self._job: Ddl | None = None
        self._phase = 0
        self._finishing: Txn | None = None
        self._old_format = False
        self.blocked: frozenset[int] = frozenset()  #: tables that nobody may write to

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
        self._phase += 1
        if self._phase == 1:
            if self._txns.holds(job.tables):
                self._phase = 0
                return ""
            self._write(job, RUNNING)
            return self._said(job, "runs")
        if self._phase == 2:
            self._finishing = self._prewrite(job, DONE)
            return self._said(job, "prewrites its end")
        if self._finishing is not None:
            self._txns.schema_ts = self._txns.commit_all(self._finishing)
            self._finishing = None
            job.apply()
            self.blocked = frozenset()
            self._txns.counts[f"ddl {job.type}"] += 1
            return self._said(job, f"is done at {self._txns.schema_ts}")
        self._txns.commit_all(self._txns.prewrite_all(lambda _: {record_key(DDL_JOB_TABLE_ID, job.job_id): None}))
        self._job, self._phase = None, 0
        return self._said(job, "leaves the queue")

    def _write(self, job: Ddl, state: int) -> None:
        self._txns.commit_all(self._prewrite(job, state))

    def _prewrite(self, job: Ddl, state: int) -> Txn:
        key, version = record_key(DDL_JOB_TABLE_ID, job.job_id), self._schema.version + 1

        def values_at(ts: int) -> dict[bytes, bytes | None]:
            row = job.row(state=state, schema_version=version, start_ts=ts, old_format=self._old_format)
            changed = job.definitions(state=state, start_ts=ts)
            said = {SCHEMA_VERSION_KEY: b"%d" % version} if changed and self._says_version else {}
            return {key: row, **said, **changed}

        return self._txns.prewrite_all(values_at)

    def _said(self, job: Ddl, what: str) -> str:
        return f"DDL job {job.job_id} {what}: {job.query}"
