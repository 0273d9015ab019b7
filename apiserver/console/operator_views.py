"""Data of the operators' pages: plain dictionaries, the same for HTML and `.json`."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from apiserver import schema_views
from apiserver.console import strips
from apiserver.routes.schemas import describe
from apiserver.sources import sources_of
from reading.served.services import Services
from tistream import ts as tso
from tistream.admin import jobs, views
from tistream.admin.core.formatting import range_label
from tistream.admin.tenants import summary
from tistream.catalog.rows.jobs import JobState
from tistream.catalog.tenancy import tenants
from tistream.catalog.work import listing
from tistream.catalog.work.stream_ends import stream_ends
from tistream.catalog.work.tasks import get_task
from tistream.ids import Tenant

ROWS = 50
_RANGES_SHOWN = 1000
_EVENTS_OF_SUBJECT = 8
_TABLES_SHOWN = 200


def tasks(
    services: Services, who: Tenant | None, cursor: str | None, owner: str | None, stopped: bool
) -> dict[str, Any]:
    """Tasks, and the key-space strip if a tenant is chosen."""
    sources = sources_of(services)
    page = views.tasks_page(sources, limit=ROWS, cursor=cursor, tenant=who, owner=owner, stopped=stopped)
    counts = listing.count_tasks(services.catalog, who)
    shown: dict[str, Any] = {"strip": [], "legend": [], "states": [], "ranges": 0}
    if who is not None:
        ranges = views.ranges_page(sources, who, limit=_RANGES_SHOWN)["items"]
        names = sorted({task["owner"] for task in ranges if task["owner"]})
        colours = strips.owner_colours(names)
        owned = [task["owner"] for task in ranges]
        shown = {
            "strip": strips.owner_strip(ranges, colours),
            "legend": [{"name": n, "colour": f"own{colours[n]}", "ranges": owned.count(n)} for n in names],
            "states": strips.states_in(ranges),
            "ranges": len(ranges),
        }
    return {
        **page,
        **shown,
        "tenants": _tenant_choices(services),
        "chosen": None if who is None else str(who),
        "owner": owner,
        "stopped_only": stopped,
        "total": counts.total,
        "stopped": counts.stopped,
        "waiting": counts.waiting,
    }


def task(services: Services, task_id: int) -> dict[str, Any]:
    """One task, its watermark gaps, possible receivers and merge partners, and its events."""
    sources = sources_of(services)
    shown = views.task(sources, task_id)
    sorters = views.workers(sources, "sorter")["items"]
    recent = views.events_page(sources, limit=_EVENTS_OF_SUBJECT, kind="task", subject=str(task_id))
    receivers = [w["worker_id"] for w in sorters if w["state"] == "up" and w["worker_id"] != shown["owner"]]
    row = get_task(services.catalog, task_id)
    name_of = sources.names_of(row.tenant)
    beside = [
        {"task_id": each.task_id, "label": range_label(each.range, each.kind, name_of)}
        for each in listing.neighbours(services.catalog, row)
    ]
    return {**shown, "receivers": receivers, "neighbours": beside, "events": recent["items"]}


def workers(services: Services) -> dict[str, Any]:
    """All workers by kind, with their share of the highest load."""
    sources = sources_of(services)
    items = views.workers(sources)["items"]
    groups = []
    for kind in ("sorter", "dispatcher", "replicate", "meta", "api", "maintain", "spark", "replay", "command"):
        of_kind = [w for w in items if w["kind"] == kind]
        most = max((w["bytes_per_s"] for w in of_kind), default=0)
        for w in of_kind:
            w["heat"] = round(100 * w["bytes_per_s"] / most, 1) if most else 0.0
        if of_kind or kind in ("sorter", "dispatcher"):
            groups.append({"kind": kind, "workers": of_kind})
    return {"owner": views.owner(sources), "groups": groups, "total": len(items), "up": _up(items)}


def worker(services: Services, worker_id: str) -> dict[str, Any]:
    """One worker, its tasks and its events."""
    sources = sources_of(services)
    shown = views.worker(sources, worker_id)
    owned = views.tasks_page(sources, limit=ROWS, owner=worker_id)
    recent = views.events_page(sources, limit=_EVENTS_OF_SUBJECT, kind="worker", subject=worker_id)
    return {
        **shown,
        "listens_at": shown["address"],  # `address` is the page's own
        "owned": owned["items"],
        "owned_more": owned["next_cursor"] is not None,
        "events": recent["items"],
    }


def watermark_gaps(services: Services, who: Tenant | None) -> dict[str, Any]:
    """Stalled ranges, and the range map of their tenants or of the chosen one."""
    sources = sources_of(services)
    gaps = views.watermark_gaps(sources, who)
    by_tenant: dict[Tenant, dict[int, list[dict[str, Any]]]] = {} if who is None else {who: {}}
    for watermark_gap in gaps["items"]:
        if watermark_gap["task_id"] is not None:
            of_tenant = by_tenant.setdefault(Tenant(watermark_gap["cluster_id"], watermark_gap["tenant_id"]), {})
            of_tenant.setdefault(watermark_gap["task_id"], []).append(watermark_gap)
    maps = []
    for tenant in list(by_tenant)[:8]:
        ranges = views.ranges_page(sources, tenant, limit=_RANGES_SHOWN)["items"]
        if ranges:
            maps.append(
                {"tenant": str(tenant), "ranges": len(ranges), "strip": strips.lag_strip(ranges, by_tenant[tenant])}
            )
    return {**gaps, "maps": maps, "tenants": _tenant_choices(services), "chosen": None if who is None else str(who)}


def events(services: Services, cursor: str | None, kind: str | None, who: Tenant | None) -> dict[str, Any]:
    """Events, the newest first."""
    page = views.events_page(sources_of(services), limit=ROWS, cursor=cursor, kind=kind or None, tenant=who)
    chosen = None if who is None else str(who)
    return {**page, "kind": kind, "cursor": cursor, "tenants": _tenant_choices(services), "chosen": chosen}


def maintenance_jobs(
    services: Services, cursor: str | None, state: JobState | None, who: Tenant | None
) -> dict[str, Any]:
    """Maintenance jobs, the newest first, with counts of all."""
    sources = sources_of(services)
    page = jobs.jobs_page(sources, limit=ROWS, cursor=cursor, tenant=who, states=[] if state is None else [state])
    return {
        **page,
        "figures": jobs.figures(sources),
        "states": [str(each) for each in JobState],
        "state": state,
        "cursor": cursor,
        "tenants": _tenant_choices(services),
        "chosen": None if who is None else str(who),
    }


def all_tenants(services: Services) -> dict[str, Any]:
    """All tenants."""
    items, sources, ends = [], sources_of(services), stream_ends(services.catalog)
    for row in tenants.list_tenants(services.catalog):
        created = tso.to_text(tso.compose(row.created_ms))
        items.append({**summary(sources, row, ends), "reason": row.reason, "created": created})
    return {"items": items}


def schema(services: Services, who: Tenant, at: str | None) -> dict[str, Any]:
    """The schema as of one of its DDL events, and what that event changed."""
    history, resolved = schema_views.history_of(services, who, None)
    events = history.events(history.start_ts, resolved)
    ts = schema_views.moment(services, history, resolved, at, resolved)
    stamps = sorted({event.commit_ts for event in events})
    step = bisect_right(stamps, ts)
    since = stamps[step - 2] if step >= 2 else history.start_ts
    changed = schema_views.schema_diff(services, who, None, str(since), str(stamps[step - 1])) if step else None
    items = [
        {"database": database.name, **describe(table)}
        for database in history.databases(ts)
        for table in history.tables(database.name, ts)
    ]
    newest = [event for event in events if event.commit_ts <= ts][::-1]
    return {
        "cluster_id": who.cluster_id,
        "tenant_id": who.tenant_id,
        "at_ts": str(ts),
        "at_time": tso.to_text(ts),
        "step": step,
        "steps": [str(history.start_ts), *(str(stamp) for stamp in stamps)],
        "ddl_total": len(events),
        "ddl": [schema_views.event_view(event) for event in newest[:ROWS]],
        "changed": changed,
        "tables": items[:_TABLES_SHOWN],
        "tables_total": len(items),
    }


def _tenant_choices(services: Services) -> list[str]:
    return [str(row.tenant) for row in tenants.list_tenants(services.catalog)]


def _up(items: list[dict[str, Any]]) -> int:
    return sum(w["alive"] and w["state"] == "up" for w in items)
