"""The facts behind each page: plain dictionaries, the same for HTML and `.json`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from apiserver.deps import Services
from apiserver.routes import tenants as tenant_routes
from tistream import ts as tso
from tistream.catalog import tenants
from tistream.codec import memcomparable
from tistream.ids import Tenant

_STRIP_WIDTH = 1000.0


def overview(services: Services) -> dict[str, Any]:
    """All tenants, and what is wrong."""
    rows = [tenant_routes.summary(services, row) for row in tenants.list_tenants(services.catalog)]
    return {
        "tenants": rows,
        "problems": services.problems(),
        "active": sum(row["state"] == "ACTIVE" for row in rows),
        "lag_ms_max": max((row["lag_ms"] for row in rows if row["lag_ms"] is not None), default=None),
    }


def tenant(services: Services, who: Tenant) -> dict[str, Any]:
    """One tenant: state, the key-space strip of its tasks, stores."""
    facts = tenant_routes.detail(services, who)
    ordered = sorted(facts["tasks"], key=lambda t: bytes.fromhex(t["start_key"]))
    lag_base = max((int(t["upper"]) for t in ordered), default=0)
    width = _STRIP_WIDTH / max(1, len(ordered))
    for n, task in enumerate(ordered):
        task["x"], task["width"] = round(n * width, 1), round(width - 2, 1)
        task["behind_ms"] = tso.physical_ms(lag_base) - tso.physical_ms(int(task["upper"]))
        task["label"] = _label(task)
        task["state"] = "stopped" if task["error"] else "waiting" if task["owner"] is None else "running"
    return {**facts, "tasks": ordered, "problems": services.problems(), "tail_from": str(_tail_from(facts))}


def _tail_from(facts: dict[str, Any]) -> int:
    """Where a live tail begins: half a minute of changes before the newest served."""
    return max(int(facts["start_ts"]), int(facts["resolved_ts"]) - tso.compose(30_000))


def _label(task: dict[str, Any]) -> str:
    """A key range in words."""
    start, end = bytes.fromhex(task["start_key"]), bytes.fromhex(task["end_key"])
    if task["kind"] == "ddl":
        return "meta" if start[:1] == b"m" else "DDL jobs"
    first, last = _table_id(start), _table_id(end)
    if first and last:
        return f"tables {first} to {last - 1}"
    return f"tables below {last}" if last else f"tables from {first}" if first else "all tables"


def _table_id(key: bytes) -> int:
    """The table id a range boundary begins with; 0 when it is only a prefix."""
    return memcomparable.decode_int(key, 1)[0] if key[:1] == b"t" and len(key) >= 9 else 0


def _lag(ms: int | None) -> str:
    if ms is None:
        return "–"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    return f"{ms / 60_000:.1f} min" if ms < 3_600_000 else f"{ms / 3_600_000:.1f} h"


def _ts(text: str) -> str:
    ts = int(text)
    return f"{ts} · {tso.to_text(ts)[11:23]}" if ts else "–"


FILTERS: dict[str, Callable[..., str]] = {"lag": _lag, "tso": _ts}
