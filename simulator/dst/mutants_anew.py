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
    ("tistream.catalog.work.deletion:delete_here", "ended = _end_tasks(conn, tenant)", "ended = 0"),
)
broken(
    "replaced-too-early (anew): a tenant is replaced while readers cannot begin anew",
    ("tistream.catalog.work.deletion:_refuse_successor", "if floor_ts > start_ts or", "if False and"),
)
broken(
    "successor-unnamed (anew): a reader of a replaced tenant does not learn by which",
    ("tistream.catalog.tenancy.tenants:given_up", "if successor is None:", "if True:"),
)
