"""The rules of maintenance jobs, checked when a transaction has committed.

    one open     no two open jobs of one tenant, kind and scope
    leases       a running job is taken over only when its lease has run out, under a higher epoch
    ends         a job is done by the holder of its newest lease, and does not change afterwards

Compactors of the simulator name the epoch of their lease as the outcome of a job, so that a row tells which of them
ended it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

LEASE_MS = 1000  #: of a job in a run: slow requests and pauses outlast it

_JOBS = (
    "SELECT job_id, cluster_id || '/' || tenant_id || ' ' || kind || ' ' || scope, state, epoch, holder, started_ms, "
    "renewed_ms, outcome FROM jobs ORDER BY 1"
)


class _Job(NamedTuple):
    purpose: str
    state: str
    epoch: int
    holder: str | None
    started_ms: int
    renewed_ms: int
    outcome: str


class JobRules:
    """The rules of one run."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        self._jobs: dict[int, _Job] = {}

    def look(self, query: Callable[..., Any]) -> None:
        """Check after a COMMIT."""
        found = {job_id: _Job(*row) for job_id, *row in query(_JOBS)}
        opened = [job.purpose for job in found.values() if job.state in ("queued", "running")]
        if len(set(opened)) != len(opened):
            self._violated(f"jobs: two of them are open: {sorted(opened)}")
        for job_id, now in found.items():
            was = self._jobs.get(job_id)
            if was is not None and was != now:
                self._check(job_id, was, now)
        self._jobs = found

    def _check(self, job_id: int, was: _Job, now: _Job) -> None:
        if was.state not in ("queued", "running") or now.epoch < was.epoch:
            self._violated(f"jobs: {job_id} was {was.state} at epoch {was.epoch}, it is {now.state} at {now.epoch}")
        if now.state == "done" and now.outcome != str(now.epoch):
            self._violated(f"jobs: {job_id} at epoch {now.epoch} was ended by the lease of epoch {now.outcome}")
        taken = was.state == now.state == "running" and now.epoch == was.epoch + 1
        if taken and now.started_ms - was.renewed_ms < LEASE_MS:
            age_ms = now.started_ms - was.renewed_ms
            self._violated(f"jobs: {job_id} was taken from {was.holder} {age_ms} ms after it had renewed its lease")
