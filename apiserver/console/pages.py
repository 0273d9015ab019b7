"""The facts behind each page: plain dictionaries, the same for HTML and `.json`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from apiserver.deps import Services
from apiserver.routes import tenants as tenant_routes
from tistream import ts as tso
from tistream.admin.words import bytes_text, lag_text
from tistream.auth.roles import ANYONE, Principal
from tistream.catalog import tasks, tenants
from tistream.catalog.tenants import TenantState
from tistream.codec import memcomparable
from tistream.ids import Tenant

_STRIP_WIDTH = 1000.0
_STRIP_GAP = 3.0
_TAIL_MS = 30_000
_SYSTEM_IDS_FROM = (1 << 48) - 1000  # TiDB gives its own tables ids from here


def overview(services: Services, who: Principal = ANYONE) -> dict[str, Any]:
    """All tenants that `who` may see, and what is wrong with them."""
    seen = [row for row in tenants.list_tenants(services.catalog) if who.sees(row.tenant)]
    rows = [tenant_routes.summary(services, row) for row in seen]
    return {
        "tenants": rows,
        "active": sum(row["state"] == TenantState.ACTIVE for row in rows),
        "lag_ms_max": max((row["lag_ms"] for row in rows if row["lag_ms"] is not None), default=None),
        "problems": _problems(services, tasks.list_tasks(services.catalog), who),
    }


def tenant(services: Services, of: Tenant, who: Principal = ANYONE) -> dict[str, Any]:
    """One tenant: state, the key-space strip of its tasks, stores."""
    facts = tenant_routes.detail(services, of)
    ordered = sorted(facts["tasks"], key=lambda t: bytes.fromhex(t["start_key"]))
    newest = max((int(t["upper"]) for t in ordered), default=0)
    width = (_STRIP_WIDTH + _STRIP_GAP) / max(1, len(ordered))
    for n, task in enumerate(ordered):
        task["x"], task["width"] = round(n * width, 1), round(width - _STRIP_GAP, 1)
        task["behind_ms"] = tso.physical_ms(newest) - tso.physical_ms(int(task["upper"]))
        task["label"] = _label(task)
        task["state"] = "stopped" if task["error"] else "waiting" if task["owner"] is None else "running"
    return {
        **facts,
        "tasks": ordered,
        "problems": _problems(services, tasks.list_tasks(services.catalog, of), who),
        "tail_from": str(max(int(facts["start_ts"]), int(facts["resolved_ts"]) - tso.compose(_TAIL_MS))),
    }


def _problems(services: Services, found: Iterable[tasks.TaskRow], who: Principal) -> list[dict[str, object]]:
    """What this process reports, and the tasks of any process that have stopped. A process works for several tenants:
    what it reports is not for who may see one of them."""
    stopped = [
        {
            "source": f"tenant {task.tenant}, task {task.task_id}",
            "code": "stopped",
            "message": task.error,
            "fatal": True,
            "facts": {},
        }
        for task in found
        if task.error and who.sees(task.tenant)
    ]
    return [*stopped, *(services.problems() if who.sees_all else ())]


def _label(task: dict[str, Any]) -> str:
    """A key range in words."""
    start, end = bytes.fromhex(task["start_key"]), bytes.fromhex(task["end_key"])
    if task["kind"] == "ddl":
        return "meta" if start[:1] == b"m" else "DDL jobs"
    first, last = _table_id(start), _table_id(end)
    if last >= _SYSTEM_IDS_FROM:
        last = 0
    if first and last:
        return f"tables {first} to {last - 1}"
    return f"tables below {last}" if last else f"tables from {first}" if first else "all tables"


def _table_id(key: bytes) -> int:
    """The table id a range boundary begins with; 0 when it is only a prefix."""
    return memcomparable.decode_int(key, 1)[0] if key[:1] == b"t" and len(key) >= 9 else 0


def _clock(text: str) -> str:
    """Date and time of day of a timestamp, in UTC."""
    return tso.to_text(int(text))[:23].replace("T", " ") if int(text) else "–"


def _moment(text: str) -> str:
    """An RFC 3339 time of ours for people."""
    return text[:19].replace("T", " ")


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.1f}"


FILTERS: dict[str, Callable[..., str]] = {
    "lag": lag_text,
    "clock": _clock,
    "moment": _moment,
    "rate": _rate,
    "bytes": bytes_text,
}
