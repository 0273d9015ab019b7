"""Durations and numbers of bytes as people read them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def duration_text(ms: float | None, digits: int = 1) -> str:
    """Milliseconds in the largest unit that fits. `digits`: decimals of seconds."""
    if ms is None:
        return "–"
    if ms < 60_000:
        return f"{ms / 1000:.{digits}f} s"
    if ms < 3_600_000:
        return f"{ms / 60_000:.1f} min"
    return f"{ms / 3_600_000:.1f} h" if ms < 48 * 3_600_000 else f"{ms / 86_400_000:.0f} days"


def lag_text(tenant: Mapping[str, Any], digits: int = 1) -> str:
    """The lag of a tenant, of its facts in the API; of one whose stream has ended that it has."""
    return "ended" if tenant["ended"] else duration_text(tenant["lag_ms"], digits)


def bytes_text(amount: float | None) -> str:
    """Bytes in the largest binary unit that fits."""
    if amount is None:
        return "–"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
