"""A page of a pull as Spark reads it, and what it is a page of. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What is read of the tenant; a filter may narrow what the options say."""

    database: str | None
    table: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """A page of a pull."""

    rows: pa.Table
    next_cursor: str
    resolved_ts: int
    has_more: bool
    quarantined: int
