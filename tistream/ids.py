"""Names for the numbers that identify things.

A tenant is always the pair (cluster, tenant); everything else is numbered inside one tenant or inside the catalog.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

StoreId = NewType("StoreId", int)  #: a TiKV store of the upstream cluster
Incarnation = NewType("Incarnation", int)  #: one process of a pusher or worker; issued by the catalog, from 1
Seq = NewType("Seq", int)  #: dense number of a file within one incarnation, from 1
TaskId = NewType("TaskId", int)  #: a contiguous key range of a tenant, the unit of ownership
Epoch = NewType("Epoch", int)  #: fencing number of an owner; rises with each assignment
WorkerId = NewType("WorkerId", str)  #: a dispatcher or sorter process, for example "sorter-2"


@dataclass(frozen=True, slots=True, order=True)
class Tenant:
    """A tenant of an upstream cluster: the unit of keys, tokens and billing."""

    cluster_id: int
    tenant_id: int

    def __str__(self) -> str:
        return f"{self.cluster_id}/{self.tenant_id}"


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Position:
    """How far one (store, incarnation) has been consumed: every file up to and including `seq`."""

    seq: int
    closed: bool = False  #: the incarnation ended at `seq`; later files are never used
