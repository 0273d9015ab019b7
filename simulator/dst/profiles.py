"""Scenarios: the size of a run, and the faults in it. A seed chooses one, or the caller names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from simulator import profiles as upstream
from simulator.dst.upstream_profiles import LARGE, SCANS, SINK, SPREAD, StoreTiming, with_moves
from simulator.raw_workload import RawProfile
from tistream.limits import CLOCK_SKEW_MAX_MS

#: probabilities; `slow_s` is the longest delay in seconds
USUAL: Mapping[str, float] = {
    **{"slow": 0.05, "slow_s": 1.0, "put_refused": 0.03, "put_lost": 0.03, "put_late": 0.03, "put_nowhere": 0.02},
    **{"get_refused": 0.02, "get_torn": 0.003, "list_refused": 0.05, "delete_refused": 0.05, "delete_late": 0.05},
    **{"db_away": 0.01, "db_undone": 0.01, "db_lost": 0.01, "db_late": 0.01, "net_refused": 0.05, "net_cut": 0.01},
}
#: one process of each kind
SINGLE: Mapping[str, Any] = {"sorters": 1, "dispatchers": 1, "metas": 1}
ALONE: Mapping[str, Any] = {"dispatchers": 1, "metas": 1}  #: beside two sorters


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A scenario. Times are seconds of simulated time, chaos counts are events in a run."""

    name: str
    about: str
    actions: int = 300  #: upstream actions
    action_s: float = 0.04  #: mean time between two
    upstream: upstream.WorkloadProfile = upstream.TINY
    raw: RawProfile | None = None  #: the upstream is written with RawKV, and the tenant is a keyspace of it
    dispatchers: int = 2
    sorters: int = 2
    metas: int = 2
    compactors: int = 0
    jobs: bool = False  #: they do maintenance jobs, which they record themselves
    shapers: int = 0  #: processes that request splits and merges
    other_tenants: bool = False  #: there are other tenants, and one of them meets faults
    future: bool = False  #: an upstream whose clock is ahead at times, and a store that writes what it wants
    skew_ms: int = CLOCK_SKEW_MAX_MS  #: how far timestamps may be ahead of the database's clock
    mixed: bool = False  #: processes run one of two releases, and an operator replaces them
    contradictions: int = 0  #: rows with which stores contradict their own promises
    anew: bool = False  #: a second tenant's store does so with a true row; the tenant is replaced by a new one
    members: int = 0  #: processes that read one consumer
    replicators: int = 0  #: processes that write a changefeed to a recovery cluster
    letters: bool = False  #: what that refuses becomes dead letters
    shape_s: float = 1.0  #: mean time between two such requests
    data_tasks: int = 2
    tick_s: float = 1.0
    flush_s: float = 0.4
    snapshot_s: float = 2.5
    maintainers: int = 0  #: processes that do the scheduler's jobs, see `upkeep`
    retainers: int = 0  #: processes that give up the old end of a RawKV tenant's log
    floor_s: float = 0.8  #: mean time between two bases of one
    compact_s: float = 2.0  #: mean time between two compactions of one process
    readers: int = 1
    reader_slow_s: float = 0.0  #: largest extra delay of a reader's request
    collect_s: float = 2.0  #: between two rounds of a collector
    grace_ms: int = 3000  #: age below which it keeps what is not needed
    queue_bytes: int = 1 << 20  #: of a pusher's uploads
    scan_rows: tuple[int | None, ...] = (None, None, 2)  #: rows of an opening scan with each poll; a pusher draws one
    timing: StoreTiming = field(default_factory=StoreTiming)  #: of the stores, where TiKV leaves a choice
    amounts: tuple[float, ...] = (0.2, 1.0, 4.5)  #: seconds of a pause or an outage, plus at most one
    limits: Mapping[str, int] = field(default_factory=dict)  #: of the sorter, below the usual ones (`install.LIMITS`)
    memory_bytes: int | None = None  #: held by a sorter's tasks before they spill; None = all
    restart_s: float = 1.0  #: until the supervisor restarts a process killed at a crash point
    faults: Mapping[str, float] = field(default_factory=lambda: dict(USUAL))
    chaos: Mapping[str, int] = field(
        default_factory=lambda: {"crash": 3, "crash_io": 3, "pause": 2, "stop": 1, "double": 1, "outage": 1, "jump": 1}
    )
    victims: tuple[str, ...] = ("pusher", "dispatcher", "sorter", "meta")


_FEW_MOVES = "put 80, apply 20, split 1, merge 1, move_leader 1"


def _only(**faults: float) -> dict[str, float]:
    return {"slow": 0.03, "slow_s": 0.5, **faults}


PROFILES: dict[str, Profile] = {
    p.name: p
    for p in (
        Profile(name="usual", about="a little of everything", compactors=1),
        Profile(
            name="upstream",
            about="many leader moves and pusher deaths, slow uploads, the service itself is well",
            upstream=upstream.TOPOLOGY_STORM,
            **SINGLE,
            faults=_only(slow=0.25, slow_s=3.0, put_late=0.05, put_lost=0.05),
            chaos={"crash": 3, "crash_io": 3, "pause": 2},
            victims=("pusher",),
        ),
        Profile(
            name="owners",
            about="sorters die, pause beyond their lease, come back and run twice; replies get lost",
            sorters=3,
            faults=_only(put_lost=0.08, put_late=0.08, db_lost=0.06, db_late=0.06, db_undone=0.04, slow=0.1),
            chaos={"crash": 2, "crash_io": 4, "pause": 5, "double": 2, "stop": 1},
            victims=("sorter",),
        ),
        Profile(
            name="replies",
            about="no process dies, but the catalog's replies are lost or its commits come late, all the time",
            upstream=replace(upstream.TINY, interactive=0.0, patience=2, rows=4),
            **SINGLE,
            flush_s=0.15,
            tick_s=0.25,
            faults=_only(db_lost=0.1, db_late=0.25, db_undone=0.1, put_lost=0.1),
            chaos={},
        ),
        Profile(
            name="reclaim",
            upstream=upstream.OLD_TRANSACTIONS,
            about="snapshots and reclaim run hot; dispatchers and sorters die between their steps",
            snapshot_s=0.8,
            faults=_only(
                put_late=0.06, put_lost=0.04, delete_late=0.1, delete_refused=0.1, db_lost=0.04, db_undone=0.04
            ),
            chaos={"crash": 3, "crash_io": 5, "pause": 2},
            victims=("sorter", "dispatcher", "meta"),
        ),
        Profile(
            name="overflow",
            upstream=upstream.PIPELINED,
            about="uploads cannot keep up: pushers drop the stream and come back",
            queue_bytes=4000,
            tick_s=0.4,
            faults=_only(slow=0.3, slow_s=4.0, put_refused=0.2, put_late=0.05),
            chaos={"crash": 1, "pause": 2, "outage": 1},
            victims=("pusher", "dispatcher"),
        ),
        Profile(name="schemas", about="DDL all the time, a little of everything else", upstream=upstream.DDL),
        Profile(
            name="spread",
            about="stores tick and look at their locks at different times; sorters die with old snapshots",
            upstream=SPREAD,
            timing=StoreTiming(apart=0.3, fetched=0.6, resolved=0.25),
            **ALONE,
            snapshot_s=3.5,
            faults=_only(db_lost=0.01, net_cut=0.01),
            chaos={"crash": 6, "pause": 2},
            victims=("sorter",),
        ),
        Profile(
            name="scans",
            about="opening scans take long, and locks are written again meanwhile; resolved ts come before their end",
            upstream=SCANS,
            timing=StoreTiming(
                apart=0.2, fetched=0.1, resolved=0.05, before_ready=True, scan_s=0.25, flush_into_scans=True
            ),
            **ALONE,
            scan_rows=(1,),
            tick_s=0.4,
            amounts=(0.2,),
            faults=_only(slow=0.05, slow_s=0.5),
            chaos={"crash": 8},
            victims=("pusher",),
        ),
        Profile(
            name="doubt",
            about="leaders move faster than opening scans end: commits whose prewrite is undecided",
            upstream=replace(SCANS, actions=with_moves(5)),
            **ALONE,
            scan_rows=(1,),
            tick_s=0.4,
            faults=_only(slow=0.1, slow_s=1.5),
            chaos={"crash": 2, "stop": 1},
            victims=("pusher", "sorter"),
        ),
        Profile(
            name="compaction",
            about="two compactions at once, which die between their steps; readers are slow, the collector is quick",
            **SINGLE,
            compactors=2,
            compact_s=0.3,
            readers=3,
            reader_slow_s=1.2,
            collect_s=0.5,
            grace_ms=700,
            flush_s=0.15,
            tick_s=0.25,
            faults=_only(
                slow=0.3, slow_s=0.9, put_lost=0.05, put_late=0.05, db_lost=0.03, db_late=0.03, db_undone=0.02
            ),
            chaos={"crash": 4, "crash_io": 8, "pause": 3, "double": 1},
            victims=("compactor", "compactor", "meta"),
        ),
        Profile(
            name="jobs",
            about="three executors of maintenance jobs, which die and pause beyond their lease; replies are lost",
            **SINGLE,
            compactors=3,
            jobs=True,
            compact_s=0.3,
            actions=200,
            flush_s=0.15,
            tick_s=0.25,
            amounts=(0.5, 3.5),
            faults=_only(slow=0.3, slow_s=0.9, put_lost=0.05, db_lost=0.05, db_late=0.03, db_undone=0.03),
            chaos={"crash": 4, "crash_io": 6, "pause": 6},
            victims=("compactor", "compactor", "compactor", "meta"),
        ),
        Profile(
            name="zombies",
            about="sorters pause beyond their lease in the middle of long requests, and continue once replaced",
            upstream=replace(upstream.TINY, rows=4, patience=2, interactive=0.0),
            sorters=3,
            dispatchers=1,
            tick_s=0.3,
            flush_s=0.2,
            snapshot_s=0.5,
            amounts=(3.4, 4.0),
            faults=_only(slow=0.5, slow_s=2.5),
            chaos={"pause": 9},
            victims=("sorter",),
        ),
        Profile(
            name="coarse",
            about="timestamps are few: a store's tick often has that of the one before, and of another store's",
            upstream=replace(upstream.TINY, stores=2, rows=4, open_max=6, patience=3, interactive=0.4),
            timing=StoreTiming(coarse_tso=True),
            actions=200,
            action_s=0.08,
            **ALONE,
            tick_s=0.15,
            faults=_only(net_cut=0.01),
            chaos={"crash": 1, "pause": 1},
            victims=("pusher", "sorter"),
        ),
        Profile(
            name="order",
            about="files become visible in any order; some pushers die between two of them",
            **SINGLE,
            tick_s=0.25,
            faults=_only(slow=0.35, slow_s=2.5, put_late=0.1),
            chaos={"crash": 4, "crash_io": 2},
            victims=("pusher",),
        ),
        Profile(
            name="lives",
            about="pushers die, pause and run twice; the service itself is well",
            upstream=replace(upstream.TINY, tables=2, rows=6, open_max=12, patience=25),
            **SINGLE,
            tick_s=0.5,
            faults=_only(slow=0.15, slow_s=2.0, put_late=0.1, put_lost=0.05),
            chaos={"crash": 6, "double": 5, "pause": 1},
            victims=("pusher",),
        ),
        Profile(
            name="pieces",
            about="large transactions, decided a few rows at a time, written in many objects; sorters die meanwhile",
            upstream=LARGE,
            sorters=2,
            **ALONE,
            flush_s=0.3,
            tick_s=0.5,
            snapshot_s=0.7,
            limits={"DECIDE_ROWS": 3, "COPY_BYTES_MAX": 300, "PIECE_ROWS": 2, "FILE_BYTES_TARGET": 150}
            | {"SPILL_BYTES_MIN": 0, "ARRAY_BYTES_MIN": 100, "BACKLOG_BYTES_MAX": 300},
            memory_bytes=3000,
            faults=_only(slow=0.05, put_refused=0.04, put_lost=0.04, put_late=0.04, db_lost=0.03, db_late=0.03),
            chaos={"crash": 3, "crash_io": 4, "pause": 2, "double": 1, "outage": 1},
            victims=("sorter",),
        ),
        Profile(
            name="shapes",
            about="tasks are split and merged all the time; their sorters die, pause and run twice",
            upstream=replace(upstream.TINY, tables=2, rows=6, open_max=6, patience=6),
            dispatchers=1,
            compactors=1,
            shapers=1,
            shape_s=0.8,
            snapshot_s=1.5,
            flush_s=0.3,
            tick_s=0.5,
            collect_s=1.0,
            grace_ms=1500,
            limits={"PATIENCE_S": 3, "FIRST_PAUSE_S": 1, "BACKLOG_BYTES_MAX": 200},
            faults=_only(slow=0.1, put_refused=0.02, put_lost=0.04, put_late=0.04, db_lost=0.03, db_late=0.04)
            | {"db_undone": 0.02, "net_cut": 0.01},
            chaos={"crash": 2, "crash_io": 5, "pause": 3, "double": 1, "stop": 1},
            victims=("sorter", "sorter", "shaper", "meta"),
        ),
        Profile(
            name="partitions",
            about="partition DDL in TiDB's schema states, sessions under two versions, a little of everything else",
            upstream=upstream.PARTITIONS,
            compactors=1,
        ),
        Profile(
            name="isolation",
            about="objects of another tenant are harmed for good, or a step of its tasks fails; hostile tenants begin",
            upstream=replace(upstream.TINY, rows=4, patience=3),
            other_tenants=True,
            actions=250,
            snapshot_s=1.0,
            flush_s=0.3,
            tick_s=0.5,
            collect_s=1.0,
            grace_ms=1500,
            faults=_only(slow=0.05, put_lost=0.02, db_lost=0.01, net_cut=0.01),
            chaos={"crash": 4, "crash_io": 2},
            victims=("sorter", "dispatcher", "meta"),
        ),
        Profile(
            name="future",
            about="the upstream's clock is ahead of the database's at times; one store writes timestamps of the future",
            upstream=replace(upstream.TINY, rows=4, patience=3, interactive=0.1),
            future=True,
            skew_ms=3000,
            actions=250,
            dispatchers=1,
            metas=1,
            snapshot_s=1.5,
            flush_s=0.3,
            tick_s=0.5,
            faults=_only(slow=0.02, put_lost=0.02, db_lost=0.01, net_cut=0.01),
            chaos={"crash": 4, "crash_io": 1},
            victims=("pusher", "sorter", "dispatcher", "future"),
        ),
        Profile(
            name="promises",
            about="stores contradict their own promises, or repeat rows; sorters die, an operator rejects the stores",
            upstream=replace(upstream.TINY, stores=2, tables=2, rows=4, patience=4),
            dispatchers=1,
            metas=1,
            contradictions=4,
            tick_s=0.5,
            flush_s=0.2,
            snapshot_s=0.4,
            amounts=(0.1,),
            faults=_only(slow=0.05, put_lost=0.02, db_lost=0.03, db_late=0.02, net_cut=0.01),
            chaos={"crash": 6, "crash_io": 3},
            victims=("sorter",),
        ),
        Profile(
            name="anew",
            about="a store breaks its promise with a true row: its tenant is replaced by a new one, with a seed",
            upstream=replace(upstream.TINY, tables=2, rows=4, patience=4),
            actions=150,
            dispatchers=1,
            metas=1,
            anew=True,
            tick_s=0.5,
            flush_s=0.2,
            snapshot_s=0.4,
            amounts=(0.1,),
            faults=_only(slow=0.05, put_lost=0.02, db_lost=0.03, db_late=0.02, net_cut=0.01),
            chaos={"crash": 3, "crash_io": 3},
            victims=("sorter", "dispatcher", "meta"),
        ),
        Profile(
            name="consumers",
            about="members of a consumer die, pause beyond their lease and run twice; replies are lost",
            upstream=replace(upstream.TINY, tables=5, rows=2, patience=2, interactive=0.0),
            **SINGLE,
            members=3,
            readers=0,
            actions=120,
            flush_s=0.2,
            tick_s=0.3,
            amounts=(0.5, 1.5),
            faults=_only(slow=0.1, slow_s=0.6, db_lost=0.04, db_late=0.04, db_undone=0.02),
            chaos={"crash": 4, "crash_io": 4, "pause": 6, "double": 3, "stop": 2},
            victims=("member",),
        ),
        Profile(
            name="rawkv",
            about="RawKV: splits, merges, leader moves, stores and PD that are away; every process dies at times",
            upstream=replace(upstream.TINY, stores=3),
            raw=RawProfile(),
            **SINGLE,
            actions=250,
            tick_s=0.5,
            flush_s=0.2,
            snapshot_s=0.8,
            faults=_only(slow=0.05, put_lost=0.03, put_late=0.03, db_lost=0.02, db_late=0.02, net_cut=0.01),
            chaos={"crash": 4, "crash_io": 4, "pause": 2, "stop": 1},
        ),
        Profile(
            name="floors",
            about="RawKV: the log is given up from its old end, to bases of the keys, while compactions collect",
            upstream=replace(upstream.TINY, stores=3),
            raw=RawProfile(expiry_max_s=8),
            **SINGLE,
            actions=250,
            tick_s=0.5,
            flush_s=0.2,
            retainers=2,
            compactors=1,
            compact_s=0.6,
            collect_s=0.5,
            faults=_only(slow=0.05, db_lost=0.02, db_late=0.02),
            chaos={"crash": 3, "crash_io": 3, "pause": 2},
            victims=("retainer", "retainer", "compactor", "sorter", "meta"),
        ),
        Profile(
            name="replication",
            about="RawKV to a recovery cluster: workers die, pause beyond their lease and run twice; lanes are recut",
            upstream=replace(upstream.TINY, stores=3),
            raw=RawProfile(puts=3, expiry_max_s=60, delayed=0.02, actions=upstream.weights(_FEW_MOVES)),
            **SINGLE,
            replicators=3,
            retainers=1,
            floor_s=1.5,
            readers=0,
            actions=200,
            action_s=0.15,
            flush_s=0.2,
            tick_s=0.3,
            amounts=(0.5, 2.0, 3.0),
            faults=_only(slow=0.03, slow_s=0.6, db_lost=0.01, db_late=0.02, rec_refused=0.03, rec_part=0.03)
            | {"rec_lost": 0.03, "rec_late": 0.08, "rec_nowhere": 0.02, "host_stops": 0.06},
            chaos={"crash": 1, "crash_io": 2, "pause": 3, "double": 1, "stop": 2},
            victims=("replicator", "replicator", "replicator", "replicator", "replicator", "meta"),
        ),
        Profile(
            name="sink",
            about="TiDB to object storage: workers die and pause, late PUTs; an operator does all that the API allows",
            upstream=SINK,
            **SINGLE,
            replicators=3,
            readers=0,
            actions=300,
            action_s=0.09,
            flush_s=0.2,
            tick_s=0.3,
            amounts=(0.5, 2.0, 3.0),
            faults=_only(slow=0.03, slow_s=0.6, db_lost=0.01, db_late=0.02, sink_refused=0.02, sink_lost=0.02)
            | {"sink_late": 0.04, "sink_nowhere": 0.01, "host_stops": 0.03, "letter_lost": 0.1},
            chaos={"crash": 2, "crash_io": 3, "pause": 3, "double": 1, "stop": 1},
            victims=("replicator", "replicator", "replicator", "replicator", "replicator", "meta"),
        ),
        Profile(
            name="mixed",
            about="an operator moves processes between two releases, one of which has a feature; sorters and metas die",
            upstream=replace(upstream.TINY, rows=4, patience=3),
            mixed=True,
            actions=250,
            action_s=0.06,
            dispatchers=1,
            tick_s=0.5,
            flush_s=0.2,
            snapshot_s=0.8,
            amounts=(0.3, 1.5),
            faults=_only(slow=0.05, put_lost=0.02, db_lost=0.03, db_late=0.03, db_undone=0.02, net_cut=0.01),
            chaos={"crash": 3, "crash_io": 2, "pause": 2, "double": 1},
            victims=("sorter", "sorter", "dispatcher", "meta"),
        ),
        Profile(name="calm", about="nothing goes wrong", faults={}, chaos={}),
    )
}

PROFILES["letters"] = replace(
    PROFILES["replication"],
    name="letters",
    about="as `replication`, and what the recovery cluster refuses becomes dead letters",
    letters=True,
    faults={**PROFILES["replication"].faults, "letter_refused": 0.1, "letter_lost": 0.1},
)

PROFILES["upkeep"] = replace(
    PROFILES["floors"],
    name="upkeep",
    about="RawKV: scheduled jobs whose files lie about for longer than the grace, while floors rise and tenants pause",
    retainers=0,
    compactors=0,
    maintainers=2,
    actions=120,
    action_s=0.1,
    amounts=(0.5, 1.5),
    grace_ms=2000,
    chaos={"crash": 2, "crash_io": 3, "pause": 2},
    victims=("maintainer", "maintainer", "sorter", "meta"),
)


def profile_of(seed: int) -> Profile:
    """The scenario of a seed when none is named: `isolation` for every tenth, else `usual` for every second."""
    if seed % 10 == 8:
        return PROFILES["isolation"]
    named = (
        *("usual", "calm", "isolation", "promises", "anew", "jobs", "consumers"),
        *("rawkv", "floors", "replication", "letters", "sink", "upkeep", "mixed"),
    )
    others = [p for p in PROFILES.values() if p.name not in named]
    return PROFILES["usual"] if seed % 2 == 0 else others[seed // 2 % len(others)]
