"""Bases: all rows of a table at a timestamp."""

from __future__ import annotations

from dataclasses import dataclass

from tistream.catalog.rows.seeds import SeedRow
from tistream.catalog.rows.segments import SegmentRow
from tistream.ids import Tenant

KEY_RANGE = 0  #: in place of a table id: all keys of a tenant without tables


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseRow:
    """A base."""

    tenant: Tenant
    table_id: int  #: physical, or KEY_RANGE
    ts: int
    seed_ts: int  #: of the seed it is ultimately built on; 0 = none, all rows came from the log
    rows: int
    bytes: int  #: stored


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBase:
    """A base whose files are in the object store."""

    table_id: int
    ts: int
    previous: BaseRow | SeedRow | None  #: its predecessor, besides the log
    after_ts: int  #: the log above it was merged
    rows: int
    segments: tuple[SegmentRow, ...]  #: in key order

    @property
    def seed_ts(self) -> int:
        """See BaseRow."""
        match self.previous:
            case BaseRow(seed_ts=ts) | SeedRow(ts=ts):
                return ts
        return 0
