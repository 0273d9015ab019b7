"""What operators see, as plain dictionaries: the same for the API, the console's pages and the command line.

Everything is read from the catalog, so every process gives the same answer. 64-bit timestamps are text; keys are
hexadecimal, with a readable form beside. Lists have pages; `next_cursor` is None on the last one. Reported `load` is
as old as the last heartbeat, and is left out when it belongs to another epoch than the task.
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
from tistream.catalog.rows.reports import StoreReport, TaskReport
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.rows.tenants import TenantState
from tistream.catalog.rows.workers import WorkerKind, WorkerRow
from tistream.catalog.tenancy.tenants import get_tenant, list_tenants
from tistream.catalog.work import listing
from tistream.catalog.work.leader import get_leader
from tistream.catalog.work.stores import list_stores
from tistream.catalog.work.stream_ends import ends_of
from tistream.catalog.work.tasks import get_task
from tistream.catalog.work.workers import get_worker, list_workers
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
    """What the views are read from."""

    catalog: Catalog
    clock: Clock
    names: Callable[[Tenant], NameOf] = _no_names  #: of a tenant's tables, by physical id; may raise TiStreamError

    def names_of(self, tenant: Tenant) -> NameOf:
        """As `names`; without names while the schema cannot be read: views of ranges do not depend on it."""
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
    rows = listing.page_tasks(
        sources.catalog, limit=limit + 1, after_id=number_of_cursor(cursor), tenant=tenant, owner=owner, stopped=stopped
    )
    items, more = rows[:limit], len(rows) > limit
    return {"items": _task_facts(sources, items), "next_cursor": str(items[-1].task_id) if more else None}


def task(sources: Sources, task_id: int) -> dict[str, Any]:
    """One task with its watermark gaps."""
    row = get_task(sources.catalog, task_id)
    known = known_now(sources, row.tenant)
    name_of = sources.names_of(row.tenant)
    gaps = [watermark_gap_fact(sources, gap, name_of) for gap in watermark_gaps_of(row, known, name_of)]
    return {**_task_fact(sources, row, name_of, known), "watermark_gaps": gaps}


def ranges_page(sources: Sources, tenant: Tenant, *, limit: int, cursor: str | None = None) -> dict[str, Any]:
    """The key space of a tenant in order, with owners and progress."""
    get_tenant(sources.catalog, tenant)
    rows = listing.page_ranges(sources.catalog, tenant, limit=limit + 1, after=_place(cursor))
    items, more = rows[:limit], len(rows) > limit
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
    """The leading meta server."""
    row = get_leader(sources.catalog)
    if row is None:
        return {"owner": None, "release": None, "epoch": 0, "heartbeat_age_s": None, "alive": False}
    alive = row.heartbeat_age_ms <= LEADER_LEASE_MS
    age_s = row.heartbeat_age_ms / 1000
    named = {"owner": row.name, "release": str(row.release), "epoch": row.epoch}
    return {**named, "heartbeat_age_s": age_s, "alive": alive}


def watermark_gaps(sources: Sources, tenant: Tenant | None = None) -> dict[str, Any]:
    """What is stalled, each in one sentence; at most WATERMARK_GAPS_MAX (`truncated`: there are more)."""
    gaps = list_gaps(sources, tenant)
    items = [watermark_gap_fact(sources, gap, name_of) for gap, name_of in gaps[:WATERMARK_GAPS_MAX]]
    return {"items": items, "truncated": len(gaps) > WATERMARK_GAPS_MAX}


def list_gaps(sources: Sources, tenant: Tenant | None = None) -> list[tuple[WatermarkGap, NameOf]]:
    """The watermark gaps of a tenant or of all, with the names of their tables."""
    rows = list_tenants(sources.catalog) if tenant is None else [get_tenant(sources.catalog, tenant)]
    unnamed: NameOf = lambda _: None  # noqa: E731
    waiting = [r for r in rows if r.state is TenantState.AWAITING_SNAPSHOT]
    gaps = [(awaiting(r.tenant, r.keyspace.name if r.kind.is_keyspace else None), unnamed) for r in waiting]
    gaps += [(paused(r.tenant, r.reason), unnamed) for r in rows if r.state is TenantState.PAUSED]
    known = known_now(sources, tenant)
    names: dict[Tenant, NameOf] = {}
    for row in _suspects(sources.catalog, known, tenant):
        name_of = names.setdefault(row.tenant, sources.names_of(row.tenant))
        gaps += [(gap, name_of) for gap in watermark_gaps_of(row, known, name_of)]
    return gaps


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
    above = None if after is None else number_of_cursor(after)
    below = None if cursor is None else number_of_cursor(cursor)
    events = list_events(
        sources.catalog, limit=limit + 1, below=below, above=above, kind=kind, tenant=tenant, subject=subject
    )
    items, more = events[:limit], len(events) > limit
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
        "time": tso.to_text(tso.compose(event.at_ms)),
        "kind": event.kind,
        **ids_of(event.tenant),
        "subject": event.subject,
        "actor": event.actor or None,
        "words": _event_text(event),
        "detail": dict(event.detail),
    }


def ids_of(tenant: Tenant | None) -> dict[str, int | None]:
    """The ids of a tenant; None without one."""
    return {"cluster_id": tenant.cluster_id if tenant else None, "tenant_id": tenant.tenant_id if tenant else None}


def watermark_gap_fact(sources: Sources, gap: WatermarkGap, name_of: NameOf) -> dict[str, Any]:
    """A watermark gap for people and programs."""
    part = gap.range
    return {
        **ids_of(gap.tenant),
        "task_id": gap.task.task_id if gap.task else None,
        **_attributes(gap, "cause", "sentence", "next_step"),
        "start_key": part.start.hex() if part else None,
        "end_key": part.end.hex() if part else None,
        "start_text": key_text(part.start, name_of) if part else None,
        "end_text": key_text(part.end, name_of) if part else None,
        "label": range_label(part, gap.task.kind, name_of) if part and gap.task else None,
        "watermark_ts": str(gap.watermark) if gap.watermark else None,
        "lag_s": _lag(sources, gap.watermark, None),
        "standing_s": gap.standing_s,
        "region_id": gap.region_id or None,
        "version": gap.version or None,
        "store_id": gap.store_id or None,
        "file": gap.file or None,
        **_attributes(gap, "file_age_s", "owner"),
    }


def _attributes(row: object, *names: str) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def known_now(sources: Sources, tenant: Tenant | None = None) -> Known:
    """The last reports of all workers."""
    catalog = sources.catalog
    rows, followed = list_workers(catalog), list_stores(catalog, tenant)
    stores: dict[tuple[Tenant, int], StoreReport] = {}
    for row in rows:
        if Known.is_alive(row):
            stores.update({(s.tenant, s.store_id): s for s in row.report.stores})
    return Known(
        workers={row.worker_id: row for row in rows},
        tasks=_newest(report for row in rows for report in row.report.tasks),
        stores=stores,
        dispatchers={(s.tenant, s.store_id): s.dispatcher for s in followed},
        ends=ends_of(followed),
        resting={row.tenant for state in _RESTING for row in list_tenants(catalog, state)},
        unix_ms=sources.clock.unix_ms(),
    )


def _suspects(catalog: Catalog, known: Known, tenant: Tenant | None) -> list[TaskRow]:
    """The tasks that may be stalled, by id: not all 100,000 are examined."""
    limit = WATERMARK_GAPS_MAX + 1
    idle = listing.idle_tasks(catalog, limit=limit, tenant=tenant, resting=_RESTING)
    idle_by_id = {row.task_id: row for row in idle}
    owners = listing.tasks_per_owner(catalog)
    for name in owners:
        if len(idle_by_id) < limit and not Known.is_alive(known.workers.get(name)):
            rows = listing.page_tasks(catalog, limit=limit, tenant=tenant, owner=name)
            idle_by_id.update({row.task_id: row for row in rows})
    reported = [t.task_id for t in known.tasks.values() if t.stuck or t.standing_s]
    rows = listing.tasks_by_id(catalog, reported[: 4 * limit])
    idle_by_id.update({row.task_id: row for row in rows if tenant is None or row.tenant == tenant})
    return [idle_by_id[task_id] for task_id in sorted(idle_by_id)]


def _newest(reports: Iterable[TaskReport]) -> dict[int, TaskReport]:
    """By task, of the newest epoch: the former owner of a moved task still reports it."""
    newest: dict[int, TaskReport] = {}
    for report in reports:
        if report.task_id not in newest or newest[report.task_id].epoch < report.epoch:
            newest[report.task_id] = report
    return newest


def _task_facts(sources: Sources, rows: list[TaskRow]) -> list[dict[str, Any]]:
    if not rows:
        return []
    known = known_now(sources)
    names = {tenant: sources.names_of(tenant) for tenant in {row.tenant for row in rows}}
    return [_task_fact(sources, row, names[row.tenant], known) for row in rows]


def _task_fact(sources: Sources, row: TaskRow, name_of: NameOf, known: Known) -> dict[str, Any]:
    report = known.tasks.get(row.task_id)
    return {
        "task_id": row.task_id,
        **ids_of(row.tenant),
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
        "lag_s": _lag(sources, row.durable_ts, known.ends.get(row.tenant)),
        **_attributes(row, "epoch", "owner", "resubscribe_id", "snapshot_no", "error"),
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
        **_attributes(report, "rows_per_s", "bytes_per_s", "open_rows", "held_bytes"),
        "watermark_ts": str(report.watermark) if report.watermark is not None else None,
        "standing_s": report.standing_s,
        "split_key": report.split_key.hex() if report.split_key is not None else None,
    }


def _worker_fact(row: WorkerRow, tasks: int, stores: int) -> dict[str, Any]:
    alive = Known.is_alive(row)
    return {
        **_attributes(row, "worker_id", "kind", "address"),
        "release": str(row.release),
        "state": row.state if alive or row.state == "gone" else "silent",
        "alive": alive,
        "incarnation": row.incarnation,
        "heartbeat_age_s": row.heartbeat_age_ms / 1000,
        "tasks": tasks,
        "stores": stores,
        **_attributes(row.report, "bytes_per_s", "held_bytes"),
        "rows_per_s": round(sum((of_task.rows_per_s for of_task in row.report.tasks), 0.0), 1),
        "files_per_s": round(sum((of_store.files_per_s for of_store in row.report.stores), 0.0), 2),
        "problems": list(row.report.problems),
        "drains": row.kind in (WorkerKind.SORTER, WorkerKind.DISPATCHER, WorkerKind.REPLICATE),
    }


def _store_fact(store: StoreReport) -> dict[str, Any]:
    load = _attributes(store, "store_id", "incarnation", "seq", "bytes_per_s", "files_per_s", "silent_s")
    return {**ids_of(store.tenant), **load}


def _lag(sources: Sources, ts: int | None, end_ts: int | None) -> float | None:
    return tso.lag_ms(ts, sources.clock.unix_ms(), end_ts) / 1000 if ts else None


def _event_text(event: EventRow) -> str:
    """An event as a sentence."""
    detail, what = event.detail, event.kind.split(".")[0]
    if what == "changefeed":
        return _changefeed_text(event)
    subject = event.subject if what == "owner" else f"{what} {event.subject}"
    match event.kind:
        case "owner.elected":
            return f"{subject} became the leader, epoch {detail.get('epoch')}"
        case "task.assigned" | "task.moved" | "store.assigned" | "lane.assigned":
            verb = "moved" if event.kind == "task.moved" else "assigned"
            was = f" from {detail['was']}" if detail.get("was") else ""
            epoch = f", epoch {detail['epoch']}" if detail.get("epoch") else ""
            to = detail.get("to") or "no owner"
            if isinstance(to, dict):
                return f"{what}s {verb}, {event.subject}: " + ", ".join(f"{n} to {name}" for name, n in to.items())
            return f"{subject} {verb}{was} to {to}{epoch}"
        case "store.quarantined":
            return (
                f"{subject} sent {detail.get('rows')} rows at or below its own promise in {detail.get('object')}: "
                f"it is quarantined, and nothing above {detail.get('good_ts')} is served"
            )
        case "store.rejected":
            return f"{subject} was rejected: {detail.get('rows')} rows are not taken, and the log is served on"
        case "task.stopped":
            return f"{subject} stopped: {detail.get('error')}"
        case "task.split":
            return f"{subject} was split into {' and '.join(map(str, detail.get('parts', ())))}"
        case "task.merge_asked":
            return f"{subject} and {detail.get('right')} will be merged by {detail.get('to') or 'no sorter yet'}"
        case "task.merged":
            return f"{subject} was merged from {' and '.join(map(str, detail.get('halves', ())))}"
        case "task.retried":
            return f"{subject} is retried"
        case "worker.registered":
            return f"{detail.get('kind', 'worker')} {event.subject} registered, incarnation {detail.get('incarnation')}"
        case "worker.silent":
            return f"{subject}, incarnation {detail.get('incarnation')}, sends no heartbeats any more"
        case "tenant.allowed" | "tenant.disallowed":
            return f"{subject}: the target {detail.get('target')} is {event.kind.split('.')[1]}"
        case "tenant.deleting":
            reason = f": {detail['reason']}" if detail.get("reason") else ""
            return f"{subject} is being deleted, with {detail.get('tasks')} tasks{reason}"
        case "tenant.deleted":
            return f"{subject} is deleted: the bucket has nothing of it any more"
        case "item.stopped":
            return f"{event.subject} stopped: {detail.get('error')}"
        case "item.resumed":
            return f"{event.subject} will be retried"
        case "job.failed":
            return f"{subject}, {detail.get('job')}, failed: {detail.get('error')}"
        case "job.retried" | "job.cancelled":
            return f"{subject}, {detail.get('job')}, was {event.kind.split('.')[1]}"
        case "item.works":
            return f"{event.subject} works again"
        case "tenant.activated":
            return f"{subject} activated with {detail.get('tasks')} tasks"
        case "feature.on":
            return f"{subject} is switched on, and releases before {detail.get('since')} run no longer"
    reason = f": {detail['reason']}" if detail.get("reason") else ""
    return f"{subject} {event.kind.split('.')[-1]}{reason}"


def _changefeed_text(event: EventRow) -> str:
    """An event of a changefeed as a sentence."""
    detail, subject = event.detail, f"changefeed {event.subject}"
    match event.kind:
        case "changefeed.created":
            return f"{subject} was created and writes what is above {detail.get('start_ts')}"
        case "changefeed.changed":
            moved = f", and continues above {detail['to_ts']}" if detail.get("to_ts") else ""
            return f"{subject} is {detail['to']} again{moved}" if detail.get("to") else f"{subject} has other settings"
        case "changefeed.rebalanced":
            return f"{subject} was cut anew: {detail.get('lanes')} lanes instead of {detail.get('was')}"
        case "changefeed.stopped":
            change = f"{detail.get('item') or detail.get('key')}, at {detail.get('commit_ts')}"
            return f"{subject} does not write on at {change}: {detail.get('message')}"
        case "changefeed.failed":
            return f"{subject} failed: {detail.get('message')}"
        case "changefeed.repeats":
            between = f"above {detail.get('repeats_above')} up to {detail.get('repeats_upto')}"
            lane = f", lane {detail['lane']}," if "lane" in detail else ""
            return f"{subject}{lane} may write changes {between} a second time"
    return f"{subject} {event.kind.split('.')[-1]}"


def number_of_cursor(cursor: str | None) -> int:
    """The number in the cursor of a list; 0 without one. CursorInvalid for another text."""
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
        return bytes.fromhex(key), number_of_cursor(number)
    except ValueError as e:
        raise CursorInvalid("This is not a cursor of this list.", cursor=cursor[:40]) from e
