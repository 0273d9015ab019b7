"""What operators see, as plain dictionaries: the same for the API, the console's pages and the command line.

Everything is read from the catalog, so any process answers alike. 64-bit timestamps travel as text, keys as hexadecimal
beside words for people. Lists go by pages; `next_cursor` is None on the last one. What workers claim about their load
(`load`, `report`) is as old as their last heartbeat, and is left out when it is of another epoch than the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tistream import ts as tso
from tistream.admin.core.formatting import NameOf, key_text, range_label
from tistream.admin.core.watermark_gaps import Known, WatermarkGap, awaiting, paused, watermark_gaps_of
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import EventRow, list_events
from tistream.catalog.tenancy.tenants import TenantState, get_tenant, list_tenants
from tistream.catalog.work import listing
from tistream.catalog.work.leader import get_leader
from tistream.catalog.work.reports import StoreReport, TaskReport
from tistream.catalog.work.stores import list_stores
from tistream.catalog.work.tasks import TaskRow, get_task
from tistream.catalog.work.workers import WorkerKind, WorkerRow, get_worker, list_workers
from tistream.clock import Clock
from tistream.errors import CursorInvalid, TiStreamError
from tistream.ids import Tenant
from tistream.limits import LEADER_LEASE_MS

WATERMARK_GAPS_MAX = 200
_RESTING = (TenantState.PAUSED, TenantState.DELETING)


def _no_names(_: Tenant) -> NameOf:
    return lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What the facts are read from."""

    catalog: Catalog
    clock: Clock
    names: Callable[[Tenant], NameOf] = _no_names  #: of a tenant's tables, by physical id; may raise TiStreamError

    def names_of(self, tenant: Tenant) -> NameOf:
        """As `names`; without names while the schema cannot be read: facts about ranges do not depend on it."""
        try:
            return self.names(tenant)
        except TiStreamError:
            return lambda _: None


def tasks_page(
    sources: Sources,
    *,
    limit: int,
    cursor: str | None = None,
    tenant: Tenant | None = None,
    owner: str | None = None,
    stopped: bool = False,
) -> dict[str, Any]:
    """Tasks by id."""
    found = listing.page_tasks(
        sources.catalog, limit=limit + 1, after_id=_number(cursor), tenant=tenant, owner=owner, stopped=stopped
    )
    items, more = found[:limit], len(found) > limit
    return {"items": _task_facts(sources, items), "next_cursor": str(items[-1].task_id) if more else None}


def task(sources: Sources, task_id: int) -> dict[str, Any]:
    """One task, and what of it does not go on."""
    row = get_task(sources.catalog, task_id)
    known = known_now(sources, row.tenant)
    name_of = sources.names_of(row.tenant)
    facts = _task_fact(sources, row, name_of, known)
    return {
        **facts,
        "watermark_gaps": [
            watermark_gap_fact(sources, watermark_gap, name_of)
            for watermark_gap in watermark_gaps_of(row, known, name_of)
        ],
    }


def ranges_page(sources: Sources, tenant: Tenant, *, limit: int, cursor: str | None = None) -> dict[str, Any]:
    """The key space of a tenant in order: who owns what, and how far it is."""
    get_tenant(sources.catalog, tenant)
    found = listing.page_ranges(sources.catalog, tenant, limit=limit + 1, after=_place(cursor))
    items, more = found[:limit], len(found) > limit
    last = f"{items[-1].range.start.hex()}.{items[-1].task_id}" if more else None
    return {"items": _task_facts(sources, items), "next_cursor": last}


def workers(sources: Sources, kind: str | None = None) -> dict[str, Any]:
    """All workers with their load."""
    owned, stores = listing.tasks_per_owner(sources.catalog), listing.stores_per_dispatcher(sources.catalog)
    rows = list_workers(sources.catalog, kind)
    return {"items": [_worker_fact(row, owned.get(row.worker_id, 0), stores.get(row.worker_id, 0)) for row in rows]}


def worker(sources: Sources, worker_id: str) -> dict[str, Any]:
    """One worker with what it reports."""
    row = get_worker(sources.catalog, worker_id)
    owned, stores = listing.tasks_per_owner(sources.catalog), listing.stores_per_dispatcher(sources.catalog)
    return {
        **_worker_fact(row, owned.get(worker_id, 0), stores.get(worker_id, 0)),
        "task_reports": [{"task_id": t.task_id, "epoch": t.epoch, **_load(t)} for t in row.report.tasks],
        "store_reports": [_store_fact(s) for s in row.report.stores],
    }


def owner(sources: Sources) -> dict[str, Any]:
    """Who runs assignment."""
    row = get_leader(sources.catalog)
    if row is None:
        return {"owner": None, "epoch": 0, "heartbeat_age_ms": None, "alive": False}
    alive = row.heartbeat_age_ms <= LEADER_LEASE_MS
    return {"owner": row.name, "epoch": row.epoch, "heartbeat_age_ms": row.heartbeat_age_ms, "alive": alive}


def watermark_gaps(sources: Sources, tenant: Tenant | None = None) -> dict[str, Any]:
    """What does not go on, each in one sentence; at most WATERMARK_GAPS_MAX (`truncated` says that there are more)."""
    found: list[tuple[WatermarkGap, NameOf]] = []
    names: dict[Tenant, NameOf] = {}
    rows = list_tenants(sources.catalog) if tenant is None else [get_tenant(sources.catalog, tenant)]
    nobody: NameOf = lambda _: None  # noqa: E731
    found += [(awaiting(r.tenant), nobody) for r in rows if r.state is TenantState.AWAITING_SNAPSHOT]
    found += [(paused(r.tenant, r.reason), nobody) for r in rows if r.state is TenantState.PAUSED]
    known = known_now(sources, tenant)
    for row in _suspects(sources.catalog, known, tenant):
        name_of = names.setdefault(row.tenant, sources.names_of(row.tenant))
        found += [(watermark_gap, name_of) for watermark_gap in watermark_gaps_of(row, known, name_of)]
    return {
        "items": [
            watermark_gap_fact(sources, watermark_gap, name_of) for watermark_gap, name_of in found[:WATERMARK_GAPS_MAX]
        ],
        "truncated": len(found) > WATERMARK_GAPS_MAX,
    }


def events_page(
    sources: Sources,
    *,
    limit: int,
    cursor: str | None = None,
    after: str | None = None,
    kind: str | None = None,
    tenant: Tenant | None = None,
    subject: str | None = None,
) -> dict[str, Any]:
    """Events, the newest first and on to older ones by `cursor`; with `after` (an event's id) newer ones, in order."""
    above = None if after is None else _number(after)
    below = None if cursor is None else _number(cursor)
    found = list_events(
        sources.catalog, limit=limit + 1, below=below, above=above, kind=kind, tenant=tenant, subject=subject
    )
    items, more = found[:limit], len(found) > limit
    follow = max([event.event_id for event in items], default=above or 0)
    return {
        "items": [event_fact(event) for event in items],
        "next_cursor": str(items[-1].event_id) if more and above is None else None,
        "newest": str(follow),
    }


def event_fact(event: EventRow) -> dict[str, Any]:
    """An event for people and programs."""
    return {
        "event_id": str(event.event_id),
        "at": tso.to_text(tso.compose(event.at_ms)),
        "kind": event.kind,
        "cluster_id": event.tenant.cluster_id if event.tenant else None,
        "tenant_id": event.tenant.tenant_id if event.tenant else None,
        "subject": event.subject,
        "actor": event.actor or None,
        "words": _told(event),
        "detail": dict(event.detail),
    }


def watermark_gap_fact(sources: Sources, watermark_gap: WatermarkGap, name_of: NameOf) -> dict[str, Any]:
    """A hole for people and programs."""
    part = watermark_gap.range
    return {
        "cluster_id": watermark_gap.tenant.cluster_id,
        "tenant_id": watermark_gap.tenant.tenant_id,
        "task_id": watermark_gap.task.task_id if watermark_gap.task else None,
        "cause": watermark_gap.cause,
        "sentence": watermark_gap.sentence,
        "next_step": watermark_gap.next_step,
        "start_key": part.start.hex() if part else None,
        "end_key": part.end.hex() if part else None,
        "start_text": key_text(part.start, name_of) if part else None,
        "end_text": key_text(part.end, name_of) if part else None,
        "label": range_label(part, watermark_gap.task.kind, name_of) if part and watermark_gap.task else None,
        "watermark": str(watermark_gap.watermark) if watermark_gap.watermark else None,
        "lag_ms": _lag(sources, watermark_gap.watermark),
        "standing_s": watermark_gap.standing_s,
        "region_id": watermark_gap.region_id or None,
        "version": watermark_gap.version or None,
        "store_id": watermark_gap.store_id or None,
        "file": watermark_gap.file or None,
        "file_age_s": watermark_gap.file_age_s,
        "owner": watermark_gap.owner,
    }


def known_now(sources: Sources, tenant: Tenant | None = None) -> Known:
    """What workers said last."""
    catalog = sources.catalog
    rows = list_workers(catalog)
    stores: dict[tuple[Tenant, int], StoreReport] = {}
    for row in rows:
        if Known.is_alive(row):
            stores.update({(s.tenant, s.store_id): s for s in row.report.stores})
    return Known(
        workers={row.worker_id: row for row in rows},
        tasks=_newest(report for row in rows for report in row.report.tasks),
        stores=stores,
        dispatchers={(s.tenant, s.store_id): s.dispatcher for s in list_stores(catalog, tenant)},
        resting={row.tenant for state in _RESTING for row in list_tenants(catalog, state)},
        unix_ms=sources.clock.unix_ms(),
    )


def _suspects(catalog: Catalog, known: Known, tenant: Tenant | None) -> list[TaskRow]:
    """The tasks that may have something to tell, by id: not all 100,000 are looked at."""
    limit = WATERMARK_GAPS_MAX + 1
    idle = listing.idle_tasks(catalog, limit=limit, tenant=tenant, resting=_RESTING)
    found = {row.task_id: row for row in idle}
    owners = listing.tasks_per_owner(catalog)
    for name in owners:
        if len(found) < limit and not Known.is_alive(known.workers.get(name)):
            rows = listing.page_tasks(catalog, limit=limit, tenant=tenant, owner=name)
            found.update({row.task_id: row for row in rows})
    told = [t.task_id for t in known.tasks.values() if t.stuck or t.standing_s]
    rows = listing.tasks_by_id(catalog, told[: 4 * limit])
    found.update({row.task_id: row for row in rows if tenant is None or row.tenant == tenant})
    return [found[task_id] for task_id in sorted(found)]


def _newest(reports: Iterable[TaskReport]) -> dict[int, TaskReport]:
    """By task, of the newest epoch: a task that was moved is still named by who had it."""
    found: dict[int, TaskReport] = {}
    for report in reports:
        if report.task_id not in found or found[report.task_id].epoch < report.epoch:
            found[report.task_id] = report
    return found


def _task_facts(sources: Sources, rows: list[TaskRow]) -> list[dict[str, Any]]:
    known = known_now(sources) if rows else None
    names: dict[Tenant, NameOf] = {}
    facts = []
    for row in rows:
        assert known is not None
        if row.tenant not in names:
            names[row.tenant] = sources.names_of(row.tenant)
        facts.append(_task_fact(sources, row, names[row.tenant], known))
    return facts


def _task_fact(sources: Sources, row: TaskRow, name_of: NameOf, known: Known) -> dict[str, Any]:
    report = known.tasks.get(row.task_id)
    return {
        "task_id": row.task_id,
        "cluster_id": row.tenant.cluster_id,
        "tenant_id": row.tenant.tenant_id,
        "kind": row.kind,
        "state": _state(row, known),
        "label": range_label(row.range, row.kind, name_of),
        "start_key": row.range.start.hex(),
        "end_key": row.range.end.hex(),
        "start_text": key_text(row.range.start, name_of),
        "end_text": key_text(row.range.end, name_of),
        "start_ts": str(row.start_ts),
        "durable_ts": str(row.durable_ts),
        "durable_time": tso.to_text(row.durable_ts),
        "lag_ms": _lag(sources, row.durable_ts),
        "epoch": row.epoch,
        "owner": row.owner,
        "resubscribe_id": row.resubscribe_id,
        "snapshot_n": row.snapshot_n,
        "error": row.error,
        "load": _load(report) if report is not None and report.epoch == row.epoch else None,
    }


def _state(row: TaskRow, known: Known) -> str:
    if row.error is not None:
        return "stopped"
    if row.tenant in known.resting:
        return "paused"
    if row.owner is None:
        return "waiting"
    return "running" if Known.is_alive(known.workers.get(row.owner)) else "silent"


def _load(report: TaskReport) -> dict[str, Any]:
    return {
        "rows_per_s": report.rows_per_s,
        "bytes_per_s": report.bytes_per_s,
        "open_rows": report.open_rows,
        "held_bytes": report.held_bytes,
        "watermark": str(report.watermark) if report.watermark is not None else None,
        "standing_s": report.standing_s,
        "split_key": report.split_key.hex() if report.split_key is not None else None,
    }


def _worker_fact(row: WorkerRow, tasks: int, stores: int) -> dict[str, Any]:
    alive = Known.is_alive(row)
    return {
        "worker_id": row.worker_id,
        "kind": row.kind,
        "address": row.address,
        "state": row.state if alive or row.state == "gone" else "silent",
        "alive": alive,
        "incarnation": row.incarnation,
        "heartbeat_age_ms": row.heartbeat_age_ms,
        "tasks": tasks,
        "stores": stores,
        "bytes_per_s": row.report.bytes_per_s,
        "held_bytes": row.report.held_bytes,
        "problems": list(row.report.problems),
        "drains": row.kind in (WorkerKind.SORTER, WorkerKind.DISPATCHER),
    }


def _store_fact(store: StoreReport) -> dict[str, Any]:
    return {
        "cluster_id": store.tenant.cluster_id,
        "tenant_id": store.tenant.tenant_id,
        "store_id": store.store_id,
        "incarnation": store.incarnation,
        "seq": store.seq,
        "bytes_per_s": store.bytes_per_s,
        "files_per_s": store.files_per_s,
        "silent_s": store.silent_s,
    }


def _lag(sources: Sources, ts: int | None) -> int | None:
    return max(0, sources.clock.unix_ms() - tso.physical_ms(ts)) if ts else None


def _told(event: EventRow) -> str:
    """An event in words."""
    detail, what = event.detail, event.kind.split(".")[0]
    subject = event.subject if what == "owner" else f"{what} {event.subject}"
    match event.kind:
        case "owner.elected":
            return f"{subject} became the owner, epoch {detail.get('epoch')}"
        case "task.assigned" | "task.moved" | "store.assigned":
            verb = "moved" if event.kind == "task.moved" else "assigned"
            was = f" from {detail['was']}" if detail.get("was") else ""
            epoch = f", epoch {detail['epoch']}" if detail.get("epoch") else ""
            to = detail.get("to") or "nobody"
            if isinstance(to, dict):
                return f"{what}s {verb}, {event.subject}: " + ", ".join(f"{n} to {name}" for name, n in to.items())
            return f"{subject} {verb}{was} to {to}{epoch}"
        case "task.stopped":
            return f"{subject} stopped: {detail.get('error')}"
        case "task.split":
            return f"{subject} was split into {' and '.join(map(str, detail.get('parts', ())))}"
        case "task.merge_asked":
            return f"{subject} and {detail.get('right')} are to be merged by {detail.get('to') or 'nobody yet'}"
        case "task.merged":
            return f"{subject} was put together of {' and '.join(map(str, detail.get('halves', ())))}"
        case "task.retried":
            return f"{subject} tries again"
        case "worker.registered":
            return f"{detail.get('kind', 'worker')} {event.subject} registered, life {detail.get('incarnation')}"
        case "tenant.deleting":
            reason = f": {detail['reason']}" if detail.get("reason") else ""
            return f"{subject} was given up, with {detail.get('tasks')} tasks{reason}"
        case "tenant.deleted":
            return f"{subject} is gone: nothing of it is left in the bucket"
        case "item.stopped":
            return f"{event.subject} stopped: {detail.get('error')}"
        case "item.resumed":
            return f"{event.subject} is to be tried again"
        case "item.works":
            return f"{event.subject} works again"
        case "tenant.activated":
            return f"{subject} activated with {detail.get('tasks')} tasks"
    reason = f": {detail['reason']}" if detail.get("reason") else ""
    return f"{subject} {event.kind.split('.')[-1]}{reason}"


def _number(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdecimal()) or len(cursor) > 18:
        raise CursorInvalid("This is not a cursor of this list.", cursor=cursor[:40])
    return int(cursor)


def _place(cursor: str | None) -> tuple[bytes, int] | None:
    if cursor is None:
        return None
    key, _, number = cursor.partition(".")
    try:
        return bytes.fromhex(key), _number(number)
    except ValueError as e:
        raise CursorInvalid("This is not a cursor of this list.", cursor=cursor[:40]) from e
