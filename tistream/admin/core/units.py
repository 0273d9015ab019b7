"""Durations and numbers of bytes as people read them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_UNITS = (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1))


def duration_text(ms: float | None) -> str:
    """Milliseconds in the largest unit that fits and the next smaller one: 2 d 15 h, 4 min 3 s, 3.2 s, 340 ms."""
    if ms is None:
        return "–"
    if ms < 999.5:
        return f"{ms:.0f} ms"
    if ms < 59_950:
        return f"{ms / 1000:.1f} s"
    seconds = round(ms / 1000)
    large, large_s, small, small_s = next(unit for unit in _UNITS if seconds >= unit[1])
    rest = seconds % large_s // small_s
    return f"{seconds // large_s} {large}" + (f" {rest} {small}" if rest else "")


def seconds_text(seconds: float | None) -> str:
    """The same of seconds, as the API has durations."""
    return duration_text(None if seconds is None else seconds * 1000)


def lag_text(tenant: Mapping[str, Any]) -> str:
    """The lag of a tenant, of its facts in the API; of one whose stream has ended that it has."""
    return "ended" if tenant["ended"] else seconds_text(tenant["lag_s"])


def bytes_text(amount: float | None) -> str:
    """Bytes in the largest binary unit that fits."""
    if amount is None:
        return "–"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def kind_words(tenant: dict[str, Any]) -> str:
    """The kind of a tenant in words, as the API shows it."""
    if tenant["keyspace"] is None:
        return "TiDB"
    data = "RawKV" if tenant["kind"] == "raw" else "TxnKV"
    name, number = tenant["keyspace"]["name"], tenant["keyspace"]["id"]
    which = str(number) if name is None else name if number is None else f"{name} ({number})"
    return f"{data}, keyspace {which}"
