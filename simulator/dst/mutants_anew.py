"""Mutants of what the tenant rests on that is connected in the place of one whose store has broken its promise."""

from __future__ import annotations

from simulator.dst.mutants import broken

broken(
    "deleted-served (anew): a reader of a deleted tenant gets a page",
    ("tistream.catalog.tenancy.tenants:get_tenant", "if row.state in GIVEN_UP:", "if False:"),
)
broken(
    "seed-left-out (anew): rows at a timestamp lack those that only the seed has",
    ("reading.asof.source:_listed", "return seed_segments_of(catalog, seed, base.physical_id)", "return ()"),
)
broken(
    "tasks-outlive-tenant (anew): the tasks of a deleted tenant go on",
    ("simulator.dst.anew:delete_tenant", "ended = _end_tasks(conn, tenant)", "ended = 0"),
)
