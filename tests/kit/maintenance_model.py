"""A model of tenants whose logs grow, a scheduler that decides, and executors that merge as compaction plans."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import log2

from compactor.core.plan import PlanSettings, plan
from metaserver.core import maintenance
from metaserver.core.maintenance import Decision, JobsNow, MaintenanceRules, TaskPieces, TenantNeed
from tistream.catalog.rows.compaction import Piece
from tistream.catalog.rows.jobs import OPEN, JobCounts, JobKind, JobRow, JobState, NewJob
from tistream.ids import Tenant
from tistream.limits import COMPACTED_FILE_BYTES_TARGET

_TARGET = COMPACTED_FILE_BYTES_TARGET
_STEP_MS = 10_000


def job_row(number: int, new: NewJob, now_ms: int) -> JobRow:
    """A job as `enqueue` adds it."""
    return JobRow(
        job_id=number,
        tenant=new.tenant,
        kind=new.kind,
        scope=new.scope,
        executor=new.executor,
        state=JobState.OFFERED if new.offered else JobState.QUEUED,
        epoch=0,
        holder=None,
        tries=0,
        limits=new.limits,
        reason=new.reason,
        estimated_bytes=new.estimated_bytes,
        estimated_objects=new.estimated_objects,
        parts_done=0,
        parts_total=0,
        created_ms=now_ms,
        due_ms=0,
        started_ms=0,
        renewed_ms=0,
        ended_ms=0,
        outcome="",
        code="",
        error="",
        counts=JobCounts(),
        read_ms=now_ms,
    )


@dataclass
class Growth:
    """How a tenant's log grows."""

    files_per_step: int
    file_bytes: int
    tasks: int = 1
    fails: bool = False  #: each of its jobs does


@dataclass
class Model:
    """Time passes in steps of ten seconds."""

    growth: dict[Tenant, Growth]
    settings: MaintenanceRules
    slots: int = 2
    bytes_per_step: int = 1 << 30  #: that an executor reads
    decide: Callable[..., Decision] = maintenance.decide
    rand: random.Random = field(default_factory=lambda: random.Random(7))
    now_ms: int = 1_000_000
    jobs: list[JobRow] = field(default_factory=list)
    pieces: dict[tuple[Tenant, int], list[Piece]] = field(default_factory=lambda: defaultdict(list))
    rewritten: dict[str, tuple[int, int]] = field(default_factory=dict)  #: object -> (most rewrites, least first size)
    read: list[tuple[int, int]] = field(default_factory=list)  #: (time, bytes) of ended jobs
    files: int = 0
    grows: bool = True

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now_ms += _STEP_MS
            if self.grows:
                self._grow()
            self._schedule()
            self._execute()

    def _grow(self) -> None:
        for tenant, growth in self.growth.items():
            for task in range(growth.tasks):
                for _ in range(growth.files_per_step):
                    size = max(1, int(growth.file_bytes * self.rand.uniform(0.3, 2.0)))
                    self._add(tenant, task, size, (0, size))

    def _add(self, tenant: Tenant, task: int, size: int, history: tuple[int, int], place: Piece | None = None) -> None:
        self.files += 1
        at = self.files if place is None else place.lo_ts
        key = f"f{self.files:09d}"
        self.rewritten[key] = history
        piece = Piece(object_key=key, task_id=task, segments=1, rows=1, stored_bytes=size, lo_ts=at, hi_ts=at)
        self.pieces[tenant, task].append(piece)

    def needs(self) -> list[TenantNeed]:
        wanting = []
        for tenant, growth in self.growth.items():
            tasks = []
            for task in range(growth.tasks):
                small = [p for p in self.pieces[tenant, task] if 2 * p.stored_bytes < _TARGET]
                if small:
                    size = sum(p.stored_bytes for p in small)
                    tasks.append(TaskPieces(task_id=task, pieces=len(small), stored_bytes=size))
            wanting.append(TenantNeed(tenant=tenant, tasks=tuple(tasks)))
        return wanting

    def known(self) -> JobsNow:
        newest = {job.key: job for job in self.jobs if job.state not in OPEN}
        opened = [job for job in self.jobs if job.state in OPEN]
        since = self.now_ms - self.settings.window_ms
        spent = sum(size for at, size in self.read if at > since) + sum(job.estimated_bytes for job in opened)
        return JobsNow(now_ms=self.now_ms, open=opened, ended=list(newest.values()), spent_bytes=spent)

    def _schedule(self) -> None:
        decision = self.decide(self.needs(), self.known(), self.settings)
        opened = {job.key for job in self.jobs if job.state in OPEN}
        for new in decision.enqueue:
            assert (new.tenant, new.kind, new.scope) not in opened, "one open job for each purpose"
            self.jobs.append(job_row(len(self.jobs), new, self.now_ms))

    def _execute(self) -> None:
        waiting = [n for n, job in enumerate(self.jobs) if job.state in OPEN]
        for n in waiting[: self.slots]:
            self.jobs[n] = self._merged(self.jobs[n])

    def _merged(self, job: JobRow) -> JobRow:
        ended = replace(job, ended_ms=self.now_ms, state=JobState.DONE)
        if self.growth[job.tenant].fails:
            return replace(ended, state=JobState.FAILED)
        assert job.kind is JobKind.MERGE
        own = [p for task in job.limits.task_ids for p in self.pieces[job.tenant, task]]
        groups = plan(own, PlanSettings(budget_bytes=job.limits.budget_bytes))
        if not groups:
            return replace(ended, outcome="nothing to do")
        for group in groups:
            pieces = self.pieces[job.tenant, group.task_id]
            replaced = {p.object_key for p in group.pieces}
            self.pieces[job.tenant, group.task_id] = [p for p in pieces if p.object_key not in replaced]
            times = max(self.rewritten[key][0] for key in replaced) + 1
            first = min(self.rewritten[key][1] for key in replaced)
            self._add(job.tenant, group.task_id, group.stored_bytes, (times, first), group.pieces[0])
        size = sum(group.stored_bytes for group in groups)
        self.read.append((self.now_ms, size))
        before = sum(len(group.pieces) for group in groups)
        counts = JobCounts(bytes_read=size, bytes_written=size, objects_before=before, objects_after=len(groups))
        return replace(ended, outcome="committed", counts=counts)

    def worst_amplification(self) -> float:
        """The most rewrites of a byte, beyond log2(target / its first file)."""
        return max(times - max(0.0, log2(_TARGET / first)) for times, first in self.rewritten.values())

    def most_read(self) -> int:
        """The most that was read within one window."""
        window = self.settings.window_ms
        return max(
            (sum(size for at, size in self.read if begin <= at < begin + window) for begin, _ in self.read), default=0
        )

    def longest_wait_ms(self, tenant: Tenant) -> int:
        """The longest time between two ended jobs of a tenant, from the start until now."""
        ends = [job.ended_ms for job in self.jobs if job.tenant == tenant and job.state not in OPEN]
        return max(after - before for before, after in pairwise([1_000_000, *ends, self.now_ms]))
