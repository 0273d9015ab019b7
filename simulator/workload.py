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
a row is therefore always in the format that the schema just before its commit has. Jobs with steps do not stop
transactions, see `jobs`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping

from simulator.core.cluster import Cluster
from simulator.core.mvcc import Version
from simulator.ddl import UpstreamSchema, definitions
from simulator.jobs import Jobs, SchemaVersion
from simulator.partitions import Json, physical_id
from simulator.profiles import WorkloadProfile
from simulator.session_transactions import SessionTransactions
from simulator.topology import Topology
from simulator.transactions import CommittedRow, State, Transactions, Tso
from tistream.codec.table_key import parse_key, record_range
from tistream.model.change import Op

_TRIES = 30  # of an action that turns out to be possible


class Workload:
    """See the module. `cluster` is new; the workload is the only one that changes it. `whole_meta`: the meta range
    holds the first schema, too, and the schema's version, for readers of a snapshot."""

    def __init__(self, seed: int, cluster: Cluster, profile: WorkloadProfile, *, whole_meta: bool = False) -> None:
        rand = random.Random(seed)
        self._rand, self._profile = rand, profile
        self._cluster = cluster
        self._steps = 0
        self._tso = Tso(cluster, rand)
        self._schema = UpstreamSchema(
            profile.tables,
            partition_ddl=profile.partition_ddl,
            partition_jobs=profile.partition_jobs,
            fits=self._fits,
        )
        self._first_schema = self._schema.snapshot(cluster.floor_ts)
        kind = SessionTransactions if profile.partition_ddl else Transactions
        self._txns: Transactions = kind(cluster, profile, rand, self._schema, self._tso)
        self._topology = Topology(cluster, rand, stores=profile.stores)
        self._jobs = Jobs(self._txns, self._schema, cluster, rand, says_version=whole_meta)
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
        """The committed rows that no subscriber may get: lossy reorganisations of columns."""
        return self._txns.unsent

    @property
    def counts(self) -> Mapping[str, int]:
        """How often each kind of thing has happened."""
        return Counter(self._txns.counts)

    @property
    def schema_versions(self) -> list[SchemaVersion]:
        """The schema for readers after each change of it, oldest first. The workload's own list, not a copy."""
        return self._jobs.versions

    def version_at(self, ts: int) -> SchemaVersion:
        """The schema for readers as of `ts`."""
        return self._jobs.version_at(ts)

    def shows(self, row: CommittedRow) -> bool:
        """Whether a row of a table is a change of it: it has an id that readers of the newest schema version at its
        commit read, and does not delete what never was. The others are copies of a reorganisation, come from sessions
        of a version that is over, or are left by transactions that delete their own inserts."""
        if row.op is Op.DELETE and row.old_value is None:
            return False
        if not self._profile.partition_ddl:
            return True  # transactions never span a change of ids
        return parse_key(row.key).table_id in self.version_at(row.commit_ts).readable

    @property
    def notes(self) -> Mapping[bytes, str]:
        """The column `note` of each value that was written to a table, the copies of a reorganisation's rows too."""
        return self._txns.notes

    def schema_snapshot(self) -> Json:
        """The schema at the cluster's floor, as a tenant pushes it."""
        return self._first_schema

    def tick(self) -> int:
        """A fresh timestamp, below everything committed later. Give it to `Cluster.tick` before a step."""
        return self._tso.tick()

    @property
    def last_ts(self) -> int:
        """The largest timestamp that the oracle has given."""
        return self._tso.last

    def advance_to(self, ts: int) -> None:
        """Time passes: the oracle gives nothing at or below `ts` any more."""
        self._tso.last = max(self._tso.last, ts)

    def is_alive(self, start_ts: int) -> bool:
        """Whether a client of the workload still writes this transaction."""
        return self._txns.is_alive(start_ts)

    def add_store(self, store_id: int) -> None:
        """A new store, which leads nothing yet."""
        self._topology.add_store(store_id)

    def drain(self) -> None:
        """Decide every open transaction and finish the DDL job under way."""
        while self._txns.open:
            txn = self._txns.open[0]
            if txn.state is State.WRITING:
                txn.wants = 0
            self._txns.move(txn, self._jobs.blocked)
        while self._jobs.busy:
            self._jobs.step()

    def _fits(self, plain: Json, partitioned: Json, part_id: int) -> bool:
        """Whether all rows of a plain table, committed or not, belong to this partition of the other one."""
        rows = (parse_key(key) for key, _ in self._cluster.snapshot(record_range(plain["id"]), self._tso.last))
        return all(physical_id(partitioned, row.handle) == part_id for row in rows)  # type: ignore[union-attr,arg-type]
