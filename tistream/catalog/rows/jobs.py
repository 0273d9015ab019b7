"""Maintenance jobs: what is done, how far it is, and what it did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tistream.ids import Tenant


class JobKind(StrEnum):
    """What is done."""

    MERGE = "merge"  #: small files of the log become larger ones
    BASES = "bases"  #: table snapshots, from which reads as of a timestamp start
    RETIRE_SEEDS = "retire_seeds"  #: seeds and bases that no read needs any more
    REPLAY = "replay"  #: a backlog is matched in bulk
    OTHER = "other"  #: from a newer version, unknown to this one; never leased


class JobExecutor(StrEnum):
    """The least executor that a job needs."""

    THREADS = "threads"  #: any executor
    SPARK = "spark"  #: too large for threads of one process


class JobState(StrEnum):
    """Where a job stands."""

    OFFERED = "offered"  #: an operator may start it
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


OPEN = (JobState.OFFERED, JobState.QUEUED, JobState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """How much a job may do."""

    budget_bytes: int = 0  #: stored input that it reads at most; 0 = what its kind has by itself
    lag_ms: int = 60_000  #: the log within this time of its end is left alone
    due_ms: int = 0  #: bases: a table whose base is older gets a new one in any case; 0 = never
    window_ms: int = 0  #: bases within this time of the watermark are kept; 0 = what the kind has by itself
    task_ids: tuple[int, ...] = ()  #: merge: only these tasks; empty = all of the tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job to enqueue."""

    tenant: Tenant
    kind: JobKind
    scope: str = ""  #: a part of the tenant, at most 128 printable ASCII characters; empty = the tenant
    executor: JobExecutor = JobExecutor.THREADS
    limits: JobLimits = field(default_factory=JobLimits)
    reason: str = ""  #: why it is worth its cost, for operators
    estimated_bytes: int = 0  #: that it will read
    estimated_objects: int = 0
    offered: bool = False  #: it waits for an operator to start it

    @property
    def open_key(self) -> str:
        """Unique among open jobs."""
        return f"{self.tenant} {self.kind} {self.scope}".rstrip(" ")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCounts:
    """What a job did."""

    bytes_read: int = 0
    bytes_written: int = 0
    objects_before: int = 0
    objects_after: int = 0
    requests_saved: int = 0  #: fewer for a reader of the whole stretch


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job as the catalog has it. Times are Unix milliseconds by the database's clock; 0 = not yet."""

    job_id: int  #: rises in the order of enqueuing
    tenant: Tenant
    kind: JobKind
    scope: str
    executor: str
    state: JobState
    epoch: int  #: of its newest lease
    holder: str | None  #: of its newest lease
    tries: int
    limits: JobLimits
    reason: str
    estimated_bytes: int
    estimated_objects: int
    parts_done: int
    parts_total: int
    created_ms: int
    due_ms: int  #: not leased before
    started_ms: int  #: of its newest lease
    renewed_ms: int
    ended_ms: int
    outcome: str  #: how it ended, in the words of its kind
    code: str  #: of the newest error; empty without one
    error: str
    counts: JobCounts
    read_ms: int  #: the database's time when this row was read

    @property
    def key(self) -> tuple[Tenant, JobKind, str]:
        """What is unique among open jobs."""
        return self.tenant, self.kind, self.scope


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """Counts of all jobs, for metrics and screens."""

    by_state: Mapping[str, int]  #: open ones, and ended ones that are the newest of their tenant, kind and scope
    oldest_queued_ms: int  #: age of the oldest job that is due and not leased; 0 without one
    bytes_read: int  #: since the catalog was made
    requests_saved: int
