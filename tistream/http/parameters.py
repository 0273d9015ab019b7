"""Parameters that routes of all services read alike: ids of clusters, tenants and tasks, and names.

An id is at most the largest number that every supported database stores.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path

from tistream.ids import Tenant
from tistream.limits import INT_MAX

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"  #: of a changefeed, a consumer, a member, or who keeps history

Id = Annotated[int, Path(ge=0, le=INT_MAX)]
Name = Annotated[str, Path(pattern=NAME)]


async def _tenant(cluster_id: Id, tenant_id: Id) -> Tenant:
    return Tenant(cluster_id, tenant_id)


PathTenant = Annotated[Tenant, Depends(_tenant)]  #: of the path's `cluster_id` and `tenant_id`
