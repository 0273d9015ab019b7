"""The numbers that identify things, as the services pass them to each other.

A tenant is always the pair (cluster, tenant); everything else is numbered inside one tenant or inside the catalog.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

_DOTS = re.compile(r"`*\.{1,2}`*")


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


def name_in_path(name: str) -> str:
    """A name of a database or table as a part of a path. HTTP clients resolve `.` and `..`, so the API takes these in
    backquotes."""
    return quote(f"`{name}`" if _DOTS.fullmatch(name) else name, safe="")
