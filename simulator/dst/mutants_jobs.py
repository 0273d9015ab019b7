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
broken(
    "unpublished-collected (upkeep): files of a build that lives are collected like orphans",
    ("metaserver.collect:tombstone", "if not has_row and may_be_published(", "if False and may_be_published("),
)
broken(
    "base-lost-to-floor (upkeep): a base is left out when the floor has risen to its predecessor",
    ("tistream.catalog.log.bases:_may_be_added", "base.after_ts < earliest_ts", "base.after_ts <= earliest_ts"),
)
broken(
    "unreadable-tried-first (upkeep): a merge forgets which objects could not be read",
    ("compactor.maintenance:compact_tenant", "exclude(catalog, tenant,", "set(", "if made:", "if made or failed:"),
)
broken(
    "paused-maintained (upkeep): the jobs of a tenant run on when it is paused",
    ("simulator.dst.upkeep:change_state", "if to is TenantState.PAUSED:", "if False:"),
)
