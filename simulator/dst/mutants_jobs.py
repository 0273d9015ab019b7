"""Mutants of maintenance jobs: their leases, their ends, and that one is open for each purpose."""

from __future__ import annotations

from simulator.dst.mutants import broken

broken(
    "job-ended-without-epoch (jobs): an executor whose lease another has taken over ends the job",
    (
        "tistream.catalog.work.jobs:_leave",
        "jobs.update().where(_HELD)",
        "jobs.update().where(_j.job_id == bindparam('asked_job'), _j.epoch >= bindparam('my_epoch'))",
    ),
)
broken(
    "job-lease-ignored (jobs): a running job is taken although its executor renews its lease",
    (
        "tistream.catalog.work.jobs:lease",
        '"lease_ms": lease_ms,',
        '"lease_ms": -10_000_000,',
        '"lease_ms": lease_ms}',
        '"lease_ms": -10_000_000}',
    ),
)
broken(
    "job-open-twice (jobs): a job is added although the same is open",
    ("tistream.catalog.work.jobs:_values", '"open_key": job.open_key,', '"open_key": f"{job.open_key} {number}",'),
)
