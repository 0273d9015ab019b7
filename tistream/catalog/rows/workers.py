"""Workers: processes, whether they live, and what they have reported."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tistream.catalog.rows.reports import WorkerReport
from tistream.release import Release


class WorkerKind(StrEnum):
    """What a process does."""

    DISPATCHER = "dispatcher"
    SORTER = "sorter"
    API = "api"  #: owns nothing, as a meta server and a command: see `leave`
    META = "meta"
    COMMAND = "command"  #: a command line that opens the catalog, as `tistream compact`
    REPLAY = "replay"  #: holds a tenant's tasks while it replays a backlog; never assigned work
    MAINTAIN = "maintain"  #: takes maintenance jobs, with threads
    REPLICATE = "replicate"  #: writes lanes of changefeeds to their destinations
    SPARK = "spark"  #: takes maintenance jobs, with a Spark session
    OTHER = "other"  #: from a newer version, unknown to this one; never assigned work


class WorkerState(StrEnum):
    """Whether a process may be given work."""

    UP = "up"
    DRAINING = "draining"
    GONE = "gone"
    OTHER = "other"  #: from a newer version, unknown to this one; never assigned work


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """A process as the catalog has it."""

    worker_id: str
    kind: WorkerKind
    address: str
    release: Release
    incarnation: int
    state: WorkerState
    heartbeat_age_ms: int  #: by the database's clock; absolute, should that have been set back
    report: WorkerReport = field(default_factory=WorkerReport)  #: of the newest heartbeat that carried one


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """A worker's heartbeat and state, without its report."""

    worker_id: str
    kind: WorkerKind
    incarnation: int
    state: WorkerState
    heartbeat_ms: int  #: the database's time of the newest heartbeat
    heartbeat_age_ms: int
