"""What a scenario consists of: the size of a run, its processes, and the faults in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from simulator import profiles as upstream
from simulator.dst.upstream_profiles import StoreTiming
from simulator.raw_workload import RawProfile
from tistream.limits import CLOCK_SKEW_MAX_MS

#: probabilities; `slow_s` is the longest delay in seconds
USUAL: Mapping[str, float] = {
    **{"slow": 0.05, "slow_s": 1.0, "put_refused": 0.03, "put_lost": 0.03, "put_late": 0.03, "put_nowhere": 0.02},
    **{"get_refused": 0.02, "get_torn": 0.003, "list_refused": 0.05, "delete_refused": 0.05, "delete_late": 0.05},
    **{"db_away": 0.01, "db_undone": 0.01, "db_lost": 0.01, "db_late": 0.01, "net_refused": 0.05, "net_cut": 0.01},
}


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
    lost: bool = False  #: the catalog is lost and restored
    sealed: bool = False  #: the tenant is sealed, with a KMS that fails
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
