"""Filters that are pushed down: bounds of commit_ts, and the names of database and table. Pure.

Bounds are applied completely: Spark need not apply them again. Names only narrow what is pulled, because TiStream
compares them without case and Spark with case: Spark still applies them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowed:
    """What the filters select: commit_ts in (after, upto], and names; None = unbounded."""

    after: int | None = None
    upto: int | None = None
    database: str | None = None
    table: str | None = None


def narrow(filters: Iterable[Filter], *, commit_ts: str, by_name: bool) -> tuple[Narrowed, list[Filter]]:
    """What the filters select, and those that Spark must still apply. `commit_ts`: the column's name; `by_name`: the
    frame has the columns `database` and `table`."""
    narrowed, left = Narrowed(), []
    for each in filters:
        attribute = tuple(getattr(each, "attribute", ()))
        value: Any = getattr(each, "value", None)
        if attribute == (commit_ts,) and isinstance(value, int):
            bounds = _bounds(each, value)
            if bounds is None:
                left.append(each)
            else:
                narrowed = _within(narrowed, *bounds)
            continue
        if by_name and isinstance(each, EqualTo) and isinstance(value, str):
            if attribute == ("database",):
                narrowed = replace(narrowed, database=value)
            elif attribute == ("table",):
                narrowed = replace(narrowed, table=value)
        left.append(each)
    return narrowed, left


def _bounds(each: Filter, value: int) -> tuple[int | None, int | None] | None:
    match each:
        case EqualTo():
            return value - 1, value
        case GreaterThan():
            return value, None
        case GreaterThanOrEqual():
            return value - 1, None
        case LessThan():
            return None, value - 1
        case LessThanOrEqual():
            return None, value
    return None


def _within(narrowed: Narrowed, after: int | None, upto: int | None) -> Narrowed:
    afters = [ts for ts in (narrowed.after, after) if ts is not None]
    uptos = [ts for ts in (narrowed.upto, upto) if ts is not None]
    return replace(narrowed, after=max(afters, default=None), upto=min(uptos, default=None))
