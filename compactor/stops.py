"""Records what compaction leaves out as stops in the catalog, so that the console and `tistream status` name it.

A tenant has at most one stop for the merging of files and one for bases: the first error, and how many there are. It
goes away with the first job that leaves nothing out.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from tistream.catalog.database.engine import Catalog
from tistream.catalog.work.stops import Scope, Stopped, clear_stop, record_stop, stops_of_role
from tistream.ids import Tenant


class Role(StrEnum):
    """The kinds of job."""

    COMPACTION = "compaction"
    BASES = "bases"


class LeftOut(Protocol):
    """A group of files or a table that a job left out."""

    @property
    def code(self) -> str: ...

    @property
    def message(self) -> str: ...

    @property
    def object(self) -> str: ...


def record_left_out(catalog: Catalog, tenant: Tenant, role: Role, left_out: Sequence[LeftOut]) -> None:
    """Record what a job left out; when that is nothing, the tenant's stop of this role goes away."""
    item = str(tenant)
    if not left_out:
        clear_stop(catalog, role, item)
        return
    first, more = left_out[0], len(left_out) - 1
    tries = next((row.stopped.tries for row in stops_of_role(catalog, role) if row.stopped.item == item), 0)
    stopped = Stopped(
        role=role,
        item=item,
        scope=Scope.TENANT,
        tenant=tenant,
        code=first.code,
        message=f"{first.message} ({more} more are left out)" if more else first.message,
        object=first.object,
        tries=tries + 1,
    )
    record_stop(catalog, stopped)
