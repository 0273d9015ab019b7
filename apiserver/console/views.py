"""Data of the overview and tenant pages: plain dictionaries, the same for HTML and `.json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from apiserver.console import strips
from apiserver.console.lag_history import LagHistory
from apiserver.sources import lag_sources, sources_of
from reading.served.services import Services
from tistream import ts as tso
from tistream.admin import quarantines, stops, views
from tistream.admin.core.cost import of_requests
from tistream.admin.core.keyspaces import is_of_keyspace, key_words, keyspace_range_label
from tistream.admin.core.units import bytes_text, kind_words, seconds_text
from tistream.admin.lag import explained
from tistream.admin.tenants import detail, summary
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.rows.tenants import TenantState
from tistream.catalog.tenancy import tenants
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS
from tistream.catalog.tenancy.consumers import CONSUMERS
from tistream.catalog.work import tasks
from tistream.catalog.work.stream_ends import stream_ends
from tistream.codec import memcomparable
from tistream.codec.table_key import SYSTEM_IDS_FROM
from tistream.http.auth.core.roles import ANYONE, Principal
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.objectstore.metered import MeteredStore, requests_so_far

_STOPS_SHOWN_MAX = 50
_STRIP_WIDTH = 1000.0
_STRIP_GAP = 3.0
_TAIL_MS = 30_000


def overview(services: Services, who: Principal, lags: LagHistory) -> dict[str, Any]:
    """The tenants that `who` may see, their lag and problems; throughput and requests only for those who see all."""
    visible = {row.tenant: row for row in tenants.list_tenants(services.catalog) if who.sees(row.tenant)}
    sources, ends = sources_of(services), stream_ends(services.catalog)
    rows = {tenant: summary(sources, row, ends) for tenant, row in visible.items()}
    active = [tenant for tenant, row in rows.items() if row["state"] == TenantState.ACTIVE]
    lag_of = {t: row["lag_s"] for t, row in rows.items() if row["lag_s"] is not None and not row["ended"]}
    lags.note(services.clock.monotonic(), {tenant: lag_of[tenant] for tenant in active if tenant in lag_of})
    percentiles = lags.percentiles([tenant for tenant in active if tenant in lag_of])
    worst = max((lag_of[tenant] for tenant in active if tenant in lag_of), default=None)
    return {
        "tenants": list(rows.values()),
        "active": len(active),
        "ended": sum(row["ended"] for row in rows.values()),
        "states": dict(Counter(str(row["state"]) for row in rows.values())),
        "lag_s_max": max(lag_of.values(), default=None),
        "lag_p50_s": percentiles.p50_s,
        "lag_p99_s": percentiles.p99_s,
        "lag_seen_s": percentiles.seconds,
        "late": 0 if worst is None else strips.lateness(worst),
        "late_tenants": sum(strips.lateness(lag_of[tenant]) > 0 for tenant in active if tenant in lag_of),
        "late_consumers": _late(CONSUMERS.checkpoints(services.catalog), rows),
        "late_changefeeds": _late(CHANGEFEEDS.checkpoints(services.catalog), rows),
        "lines": {str(tenant): lags.line(tenant) for tenant in rows},
        "watermark_gaps": _watermark_gaps(services, who, visible),
        "problems": _problems(services, tasks.list_tasks(services.catalog), who),
        **(_of_service(services) if who.sees_all else {"bytes_per_s": None, "requests": None}),
    }


def _late(checkpoints: Iterable[tuple[Tenant, int]], rows: Mapping[Tenant, Mapping[str, Any]]) -> int:
    """How many of these are late among the tenants that are shown."""
    return sum(
        strips.lateness((tso.physical_ms(int(rows[tenant]["resolved_ts"])) - tso.physical_ms(at)) / 1000) > 0
        for tenant, at in checkpoints
        if tenant in rows and at
    )


def waterfall(services: Services, of: Tenant) -> dict[str, Any]:
    """The stages of a tenant's lag as consecutive bars; reads the bucket."""
    row = tenants.get_tenant(services.catalog, of)
    named = {"cluster_id": of.cluster_id, "tenant_id": of.tenant_id}
    explanation = explained(lag_sources(services), row)
    if "stages" not in explanation:
        return {
            **named, "lag_s": None, "sentence": explanation["sentence"], "stages": [], "slowest": None, "waits_for": []
        }  # fmt: skip
    whole, x = max(0.001, explanation["lag_s"]), 0.0
    for stage in explanation["stages"]:
        width = _STRIP_WIDTH * stage["duration_s"] / whole
        stage["x"], stage["width"] = round(x, 1), round(max(width, 2.0), 1)
        stage["name"] = "+".join(stage["stages"])
        x += width
    shown = ("lag_s", "sentence", "stages", "slowest", "waits_for")
    return {**named, **{name: explanation[name] for name in shown}}


def _watermark_gaps(services: Services, who: Principal, visible: Iterable[Tenant]) -> int:
    """Number of stalled ranges."""
    sources = sources_of(services)
    if who.sees_all:
        return len(views.watermark_gaps(sources)["items"])
    return sum(len(views.watermark_gaps(sources, tenant)["items"]) for tenant in visible)


def _of_service(services: Services) -> dict[str, Any]:
    """Throughput of the sorters, and bucket requests of this process."""
    sorters = [w for w in views.workers(sources_of(services), "sorter")["items"] if w["alive"]]
    requests = requests_so_far()
    count = round(sum(n for operation, n in requests.items() if operation != "delete"))
    is_s3 = isinstance(services.store, MeteredStore) and services.store.is_s3
    usd = round(of_requests(requests), 4) if is_s3 else None  # a folder has no prices
    return {
        "bytes_per_s": sum(w["bytes_per_s"] for w in sorters) if sorters else None,
        "requests": {"count": count, "usd": usd} if count else None,
    }


def tenant(services: Services, of: Tenant, who: Principal = ANYONE) -> dict[str, Any]:
    """One tenant: state, the key-space strip of its tasks, stores."""
    shown = detail(sources_of(services), of)
    ordered = sorted(shown["tasks"], key=lambda t: bytes.fromhex(t["start_key"]))
    newest = max((int(t["durable_ts"]) for t in ordered), default=0)
    width = (_STRIP_WIDTH + _STRIP_GAP) / max(1, len(ordered))
    for n, task in enumerate(ordered):
        task["x"], task["width"] = round(n * width, 1), round(width - _STRIP_GAP, 1)
        task["behind_s"] = (tso.physical_ms(newest) - tso.physical_ms(int(task["durable_ts"]))) / 1000
        task["label"] = _label(task)
        task["state"] = "stopped" if task["error"] else "waiting" if task["owner"] is None else "running"
    return {
        **shown,
        "tasks": ordered,
        "late": strips.lateness(shown["lag_s"] or 0),
        "problems": _problems(services, tasks.list_tasks(services.catalog, of), who, of),
        "tail_from": str(max(int(shown["start_ts"]), int(shown["resolved_ts"]) - tso.compose(_TAIL_MS))),
    }


def _problems(
    services: Services, rows: Collection[TaskRow], who: Principal, of: Tenant | None = None
) -> list[dict[str, object]]:
    """Stopped tasks and recorded stops; problems of this process only for those who see all tenants."""
    stopped: list[dict[str, object]] = [
        {
            "source": f"tenant {task.tenant}, task {task.task_id}",
            "code": "stopped",
            "message": task.error,
            "fatal": True,
            "facts": {},
        }
        for task in rows
        if task.error and who.sees(task.tenant)
    ]
    sources = sources_of(services)
    if who.sees_all:
        held = [*quarantines.problems_of(sources, of), *stops.problems_of(sources, of, _STOPS_SHOWN_MAX)]
        return [*stopped, *held, *services.problems(), *services.reported()]
    seen = [of] if of is not None else sorted({task.tenant for task in rows if who.sees(task.tenant)})
    for tenant in seen:
        stopped += [*quarantines.problems_of(sources, tenant), *stops.problems_of(sources, tenant, _STOPS_SHOWN_MAX)]
    return stopped


def _label(task: dict[str, Any]) -> str:
    """A description of a key range."""
    start, end = bytes.fromhex(task["start_key"]), bytes.fromhex(task["end_key"])
    if is_of_keyspace(start):
        return keyspace_range_label(KeyRange(start, end))
    if task["kind"] == "ddl":
        return "meta" if start[:1] == b"m" else "DDL jobs"
    first, last = _table_id(start), _table_id(end)
    if last >= SYSTEM_IDS_FROM:
        last = 0
    if first and last:
        return f"tables {first} to {last - 1}"
    return f"tables below {last}" if last else f"tables from {first}" if first else "all tables"


def _table_id(key: bytes) -> int:
    """The table id of a range boundary; 0 when it is only a prefix."""
    return memcomparable.decode_int(key, 1)[0] if key[:1] == b"t" and len(key) >= 9 else 0


def _user_key(text: str | None) -> str:
    """The end of a range of user keys, from hexadecimal."""
    return key_words(bytes.fromhex(text)) if text else ""


def _clock(text: str) -> str:
    """Date and time of day of a timestamp, in UTC."""
    return tso.to_text(int(text))[:23].replace("T", " ") if int(text) else "–"


def _moment(text: str) -> str:
    """Date and time of an RFC 3339 time."""
    return text[:19].replace("T", " ")


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.1f}"


FILTERS: dict[str, Callable[..., str]] = {
    "lag": seconds_text,
    "kind": kind_words,
    "user_key": _user_key,
    "clock": _clock,
    "moment": _moment,
    "rate": _rate,
    "bytes": bytes_text,
}
