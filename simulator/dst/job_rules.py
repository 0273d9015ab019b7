"""The rules of maintenance jobs, checked when a transaction has committed.

    one open     no two open jobs of one tenant, kind and scope
    leases       a running job is taken over only when its lease has run out, under a higher epoch
    ends         a job is done by the holder of its newest lease, and does not change afterwards
    thrift       work is thrown away only when another lease of the job may have published it
    paused       no job of a paused tenant runs, nor is one added

Compactors of the scenario `jobs` name the epoch of their lease as the outcome of a job, so that a row tells which of
them ended it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

LEASE_MS = 1000  #: of a job in a run: slow requests and pauses outlast it
_ADDED_S = 3  # a scheduler may have seen the tenant so long ago

_JOBS = (
    "SELECT job_id, cluster_id || '/' || tenant_id || ' ' || kind || ' ' || scope, state, epoch, holder, started_ms, "
    "renewed_ms, outcome, tries, tenant_id FROM jobs ORDER BY 1"
)
_PAUSED = "SELECT tenant_id FROM tenants WHERE state = 'PAUSED'"


class _Job(NamedTuple):
    purpose: str
    state: str
    epoch: int
    holder: str | None
    started_ms: int
    renewed_ms: int
    outcome: str
    tries: int
    tenant_id: int


class JobRules:
    """The rules of one run."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        self._jobs: dict[int, _Job] = {}
        self._paused: dict[int, int] = {}  # tenant -> when it was first seen paused, in ms
        self.by_lease = False  #: an outcome is the epoch of its lease

    def look(self, query: Callable[..., Any], now_ms: int) -> None:
        """Check after a COMMIT."""
        jobs = {job_id: _Job(*row) for job_id, *row in query(_JOBS)}
        opened = [job.purpose for job in jobs.values() if job.state in ("queued", "running")]
        if len(set(opened)) != len(opened):
            self._violated(f"jobs: two of them are open: {sorted(opened)}")
        for job_id, now in jobs.items():
            was = self._jobs.get(job_id)
            since_ms = self._paused.get(now.tenant_id)
            if was is None:
                if since_ms is not None and now_ms - since_ms > _ADDED_S * 1000:
                    self._violated(f"jobs: {now.purpose} is added, {job_id}, although the tenant is paused")
            elif was != now:
                self._check(job_id, was, now)
        self._jobs = jobs
        self._paused = {tenant: self._paused.get(tenant, now_ms) for (tenant,) in query(_PAUSED)}
        for job_id, now in jobs.items():
            if now.state == "running" and now.tenant_id in self._paused:
                self._violated(f"jobs: {now.purpose}, {job_id}, runs although the tenant is paused")

    def _check(self, job_id: int, was: _Job, now: _Job) -> None:
        if was.state not in ("offered", "queued", "running") or now.epoch < was.epoch:
            self._violated(f"jobs: {job_id} was {was.state} at epoch {was.epoch}, it is {now.state} at {now.epoch}")
        if now.state == "done" and now.outcome == "lost" and now.epoch == 1:
            self._violated(f"jobs: the work of {now.purpose}, {job_id}, is thrown away, and no other lease had it")
        if self.by_lease and now.state == "done" and now.outcome != str(now.epoch):
            self._violated(f"jobs: {job_id} at epoch {now.epoch} was ended by the lease of epoch {now.outcome}")
        taken = was.state == now.state == "running" and now.epoch == was.epoch + 1
        if taken and now.started_ms - was.renewed_ms < LEASE_MS:
            age_ms = now.started_ms - was.renewed_ms
            self._violated(f"jobs: {job_id} was taken from {was.holder} {age_ms} ms after it had renewed its lease")
