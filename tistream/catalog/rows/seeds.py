"""Seeds: complete sets of rows from the upstream."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tistream.ids import Tenant


class SeedState(StrEnum):
    """The state of a seed. An incomplete seed has no row."""

    COMPLETE = "complete"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRow:
    """A complete seed."""

    tenant: Tenant
    ts: int
    table_id: int  #: of the logical table; 0 = all tables
    rows: int
    bytes: int
    manifest_key: str
