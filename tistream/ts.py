"""Timestamps of the upstream's oracle (TSO) and wall time.

`ts = (physical_ms << 18) + logical`; 0 means "none". Order, fencing and retention use TSO only; wall time is for
people.
"""

from __future__ import annotations

from datetime import UTC, datetime

LOGICAL_BITS = 18
LOGICAL_MASK = (1 << LOGICAL_BITS) - 1
TS_MAX = (1 << 64) - 1
TSO_END = 1 << 63  #: TSOs are signed 64-bit numbers in TiDB and in the catalog


def compose(physical_ms: int, logical: int = 0) -> int:
    """The TSO of a Unix time in milliseconds."""
    return (physical_ms << LOGICAL_BITS) + logical


def physical_ms(ts: int) -> int:
    """Unix milliseconds of a TSO."""
    return ts >> LOGICAL_BITS


def earlier(ts: int, ms: int) -> int:
    """The timestamp `ms` milliseconds before, with a logical part of 0; `ts` itself for 0 milliseconds."""
    return compose(max(0, physical_ms(ts) - ms)) if ms else ts


def lag_ms(ts: int, now_ms: int, end_ts: int | None = None) -> int:
    """Milliseconds by which a watermark is behind now, or behind the end of its stream."""
    until_ms = now_ms if end_ts is None else min(now_ms, physical_ms(end_ts))
    return max(0, until_ms - physical_ms(ts))


def logical(ts: int) -> int:
    """The logical part of a TSO, 0..262143."""
    return ts & LOGICAL_MASK


def to_datetime(ts: int) -> datetime:
    """UTC time of a TSO, to the millisecond. Raises ValueError beyond the year 9999."""
    return datetime.fromtimestamp(physical_ms(ts) / 1000, tz=UTC)


def to_text(ts: int) -> str:
    """RFC 3339 text of a TSO in UTC, with milliseconds."""
    return to_datetime(ts).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def described(ts: int) -> str:
    """A TSO for people: its time and its number. The number alone beyond the year 9999, and for times near 1970, which
    only invented timestamps have."""
    return f"{to_text(ts)} (TSO {ts})" if 1 << 48 <= ts < 1 << 62 else str(ts)
