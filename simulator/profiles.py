"""Profiles of workloads: how large the cluster is, and how often each thing happens.

A profile is a plain value. Weights are relative; a weight of 0 (or a name left out) means never. Probabilities are
between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from simulator.core.cluster import Cluster, Region
from tistream.codec.table_key import META_RANGE, table_prefix
from tistream.keyrange import KeyRange

FIRST_TABLE_ID = 101  #: of the tables that are there at the start; the ids after it belong to their partitions
PARTITION_JOBS = 0.85  #: of the jobs, where tables of every kind of partitions are changed in steps

Weights = tuple[tuple[str, int], ...]


def weights(text: str) -> Weights:
    """Of "begin 14, advance 60": each name with its weight."""
    return tuple((name, int(weight)) for name, weight in (each.split() for each in text.split(",")))


_TRANSACTIONS = weights("optimistic 6, pessimistic 4, async 5, one_phase 4, pipelined 2, huge 1, lossy 1")
_ACTIONS = weights(
    "begin 14, advance 60, rewrite_lock 4, roll_back_unseen 3, roll_back_committed 3,"
    " split 3, merge 3, move_leader 4, kill_store 1, start_store 2, ddl 3"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadProfile:
    """A kind of workload."""

    name: str
    stores: int = 3
    tables: int = 3  #: at the start; the last one is partitioned where there are at least two
    rows: int = 10  #: handles of a table, or of a partition
    open_max: int = 8  #: transactions at once
    keys_max: int = 4  #: keys of an ordinary transaction
    huge_keys: int = 120  #: keys of a huge one, if the tables have that many
    patience: int = 12  #: steps that an ordinary transaction may wait before its first prewrite
    interactive: float = 0.2  #: transactions that wait ten times as long
    rollbacks: float = 0.15
    deletes: float = 0.25
    long_values: float = 0.25  #: values of more than 255 bytes: no COMMIT carries them
    hot: float = 0.3  #: writes that go to the first row of a table
    partition_ddl: bool = False  #: tables of every kind of partitions, and DDL that walks through TiDB's schema states
    partition_jobs: float = PARTITION_JOBS  #: of the jobs, with `partition_ddl`
    generations: float = 0.5  #: pipelined transactions that number their flushes; the others have 0
    fakes: bool = True  #: stores are so old that a rewritten lock with a long value is sent without it
    transactions: Weights = _TRANSACTIONS
    actions: Weights = field(default=_ACTIONS)


def _with(weights: Weights, **changed: int) -> Weights:
    return tuple((name, changed.get(name, weight)) for name, weight in weights)


DEFAULT = WorkloadProfile(name="default")
TOPOLOGY_STORM = replace(
    DEFAULT,
    name="topology_storm",
    stores=4,
    actions=_with(_ACTIONS, split=14, merge=14, move_leader=16, kill_store=4, start_store=5, ddl=1),
)
#: the same for a workload paced by a clock: a store stays dead for more than a step
SLOW_STORM = replace(
    TOPOLOGY_STORM,
    name="slow_storm",
    actions=tuple((name, n if name.endswith("_store") else 20 * n) for name, n in TOPOLOGY_STORM.actions),
)
#: no region ever changes
STEADY = replace(
    DEFAULT, name="steady", actions=_with(_ACTIONS, split=0, merge=0, move_leader=0, kill_store=0, start_store=0)
)
OLD_TRANSACTIONS = replace(
    DEFAULT, name="old_transactions", interactive=0.8, patience=30, open_max=14, rollbacks=0.3, hot=0.1
)
PIPELINED = replace(
    DEFAULT,
    name="pipelined",
    rows=6,
    long_values=0.5,
    transactions=_with(_TRANSACTIONS, pipelined=20, huge=0),
    actions=_with(_ACTIONS, rewrite_lock=8, move_leader=8),
)
DDL = replace(DEFAULT, name="ddl", actions=_with(_ACTIONS, ddl=25))
#: DDL of partitions all the time, and sessions under two schema versions
PARTITIONS = replace(
    DEFAULT,
    name="partitions",
    tables=6,
    rows=4,
    keys_max=3,
    huge_keys=40,
    patience=4,
    interactive=0.05,
    hot=0.0,
    partition_ddl=True,
    transactions=_with(_TRANSACTIONS, lossy=0),
    actions=_with(_ACTIONS, ddl=30),
)
TINY = replace(
    DEFAULT,
    name="tiny",
    stores=2,
    tables=1,
    rows=2,
    open_max=3,
    keys_max=2,
    patience=6,
    long_values=0.4,
    transactions=_with(_TRANSACTIONS, huge=0, pipelined=4),
    actions=_with(_ACTIONS, ddl=0, move_leader=6, split=2, merge=3),
)
PROFILES = {p.name: p for p in (DEFAULT, TOPOLOGY_STORM, OLD_TRANSACTIONS, PIPELINED, DDL, PARTITIONS, TINY)}


def new_cluster(profile: WorkloadProfile, *, floor_ts: int) -> Cluster:
    """An empty cluster for a profile: a region for each table, one before and one after them, with their leaders on the
    stores 1, 2, 3 ... in turn."""
    bounds = [META_RANGE.end, *(table_prefix(FIRST_TABLE_ID + 10 * i) for i in range(profile.tables))]
    return Cluster(_regions(bounds, profile.stores), floor_ts=floor_ts)


def _regions(bounds: list[bytes], stores: int) -> Iterable[Region]:
    for i, (start, end) in enumerate(zip([b"", *bounds], [*bounds, b""], strict=True)):
        yield Region(region_id=i + 1, version=1, store_id=i % stores + 1, range=KeyRange(start, end))
