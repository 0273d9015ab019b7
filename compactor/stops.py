"""Records what compaction excludes as stops in the catalog, which the console and `tistream status` show.

A tenant has at most one stop for compaction and one for bases: the first error, and the number of excluded items. The
next job that excludes nothing clears it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tistream.catalog.database.engine import Catalog
from tistream.catalog.work.stops import Scope, Stopped, clear_stop, record_stop, stops_of_role
from tistream.ids import Tenant


class Role(StrEnum):
    """The kinds of job."""

    COMPACTION = "compaction"
    BASES = "bases"


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """Input of a job that it could not process: a group of files or a table."""

    code: str
    message: str
    object: str  #: that the error names; empty when it names none


def record_excluded(catalog: Catalog, tenant: Tenant, role: Role, excluded: Sequence[Excluded]) -> None:
    """Record what a job excluded; clears the tenant's stop of this role when nothing was."""
    item = str(tenant)
    if not excluded:
        clear_stop(catalog, role, item)
        return
    first, more = excluded[0], len(excluded) - 1
    tries = next((row.stopped.tries for row in stops_of_role(catalog, role) if row.stopped.item == item), 0)
    stopped = Stopped(
        role=role,
        item=item,
        scope=Scope.TENANT,
        tenant=tenant,
        code=first.code,
        message=f"{first.message} ({more} more are excluded)" if more else first.message,
        object=first.object,
        tries=tries + 1,
    )
    record_stop(catalog, stopped)
