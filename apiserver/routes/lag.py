"""Lag of a tenant and its causes: from the catalog, the newest batch files and the state of this process.

With `why` a sentence says what is late, since when, because of what, and what to do next. For the stages below it at
most STORES_LOOKED_AT stores (those read least far) are examined: one listing after the reclaimed files and one read of
the end of the newest file each. Task watermarks and their causes come from sorters of this process, else from
heartbeats of workers. Intake of cores in other processes is unknown here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Query

from apiserver.routes import tenants as tenant_routes
from apiserver.waterfall import Points, Stage, waterfall
from reading.deps import Id, Services
from schemas.registry.table_names import table_names
from tistream import ts as tso
from tistream.admin import views
from tistream.admin.consumers import consumers_of
from tistream.admin.core.lag_sentence import Late, Quarantined, SlowConsumer, lag_sentence
from tistream.admin.core.units import duration_text
from tistream.admin.core.watermark_gaps import Known
from tistream.admin.views import Sources
from tistream.catalog.database.service_time import service_time
from tistream.catalog.tenancy import tenants
from tistream.catalog.tenancy.changefeeds import FeedState
from tistream.catalog.tenancy.tenants import TenantRow
from tistream.catalog.work import quarantines, stores, tasks
from tistream.catalog.work.reports import StuckReport, TaskReport
from tistream.catalog.work.stores import StoreRow
from tistream.catalog.work.stream_ends import ends_of, stream_end
from tistream.catalog.work.tasks import TaskRow
from tistream.catalog.work.workers import WorkerKind, WorkerRow, list_workers
from tistream.codec.batch_file import BatchWatermarks, decode_watermarks
from tistream.errors import CorruptObject, KeyLimited, ObjectNotFound
from tistream.http.auth.access import KeyTables, needs
from tistream.http.auth.core.roles import OfLimited, Right
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.model.task_state import TaskState
from tistream.objectstore.layout import BatchKey, incarnation_prefix, parse
from tistream.runtime.service_time import ServiceTime

STORES_LOOKED_AT = 16
FILES_LISTED_MAX = 5_000  # of one store; a dispatcher that is further behind shows anyway
REASONS_MAX = 5
_END_BYTES = 256 << 10
_AT_REST = (FeedState.STOPPED, FeedState.FINISHED)

Why = Annotated[bool, Query(description="Explain the lag in a sentence and by stage; reads the bucket.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Newest:
    """The newest batch file of a store."""

    key: BatchKey
    promises: BatchWatermarks | None  #: None when the file does not count
    fault: str = ""  #: why not: it is corrupt, or ahead of the service's time


def router(services: Services) -> APIRouter:
    """The one route."""
    routes = APIRouter(tags=["tenants"], dependencies=[needs(Right.LOOK, limited=OfLimited.WITHIN)])

    @routes.get(
        "/v1/clusters/{cluster_id}/tenants/{tenant_id}/lag",
        operation_id="get_lag",
        summary="Lag of a tenant, and its causes",
    )
    def lag(cluster_id: Id, tenant_id: Id, within: KeyTables, why: Why = False) -> dict[str, Any]:
        if why and within is not None:
            raise KeyLimited("A key that is limited to tables is not told why a tenant lags: leave out why.")
        row = tenants.get_tenant(services.catalog, Tenant(cluster_id, tenant_id))
        return explained(services, row) if why else _summary(services, row)

    return routes


def explained(services: Services, row: TenantRow) -> dict[str, Any]:
    """The lag of a tenant with its sentence, and once it has started with its stages; reads the bucket."""
    found = _summary(services, row)
    workers = {worker.worker_id: worker for worker in list_workers(services.catalog)}
    followed, owned = stores.list_stores(services.catalog, row.tenant), tasks.list_tasks(services.catalog, row.tenant)
    if found["lag_s"] is not None:
        found |= _by_stage(services, row.tenant, followed, owned, workers)
    return {**found, "sentence": lag_sentence(_late(services, row.tenant, found, followed, owned, workers))}


def _summary(services: Services, row: TenantRow) -> dict[str, Any]:
    end_ts = stream_end(services.catalog, row.tenant)
    found = tenant_routes.summary(services, row, {} if end_ts is None else {row.tenant: end_ts})
    return {**found, "consumers": _consumers(services, row.tenant)}


def _consumers(services: Services, tenant: Tenant) -> list[dict[str, Any]]:
    """The changefeeds that are neither paused nor finished; the one that is furthest behind comes first."""
    live = [f for f in consumers_of(services.catalog, tenant) if f["state"] not in _AT_REST]
    return [
        {
            **{name: feed[name] for name in ("changefeed_id", "state", "lag_s", "checkpoint_time", "idle_s")},
            "destination": feed["sink_uri"].partition("?")[0],
            "members": sum(left > 0 for left in feed["leases_s"].values()),
        }
        for feed in sorted(live, key=lambda f: -f["lag_s"])
    ]


def _slow_consumer(consumers: Sequence[Mapping[str, Any]]) -> SlowConsumer | None:
    """The one that is furthest behind."""
    for slow in consumers[:1]:
        return SlowConsumer(
            state=slow["state"],
            destination=slow["destination"],
            name=slow["changefeed_id"],
            lag_s=slow["lag_s"],
            since=slow["checkpoint_time"],
            members=slow["members"],
            idle_s=slow["idle_s"],
        )
    return None


def _late(
    services: Services,
    tenant: Tenant,
    found: Mapping[str, Any],
    followed: Sequence[StoreRow],
    owned: Sequence[TaskRow],
    workers: Mapping[str, WorkerRow],
) -> Late:
    """What the sentence is made of."""
    sources = Sources(catalog=services.catalog, clock=services.clock, names=table_names(services.registry))
    alive = {name for name, worker in workers.items() if Known.is_alive(worker)}
    replays = [t.owner for t in owned if t.owner in alive and workers[t.owner].kind is WorkerKind.REPLAY]
    continuing = [s for s in followed if not s.end_ts or s.max_cut_ts < s.end_ts]
    unread = min((s for s in continuing if s.dispatcher not in alive), key=lambda s: s.max_cut_ts, default=None)
    bad = quarantines.lowest_quarantine(services.catalog, tenant)
    slowest = next((s for s in found.get("stages", ()) if "+".join(s["stages"]) == found["slowest"]), None)
    return Late(
        tenant=tenant,
        state=found["state"],
        lag_s=found["lag_s"],
        since=found["resolved_time"],
        ended=found["ended"],
        gaps=[gap for gap, _ in views.list_gaps(sources, tenant)],
        quarantined=None if bad is None else Quarantined(store_id=bad.store_id, rows=bad.rows),
        has_leader=views.owner(sources)["alive"],
        replay=replays[0] if replays else None,
        lost_store=unread.store_id if unread is not None else None,
        lost_dispatcher=unread.dispatcher if unread is not None else None,
        slowest=slowest["stages"] if slowest is not None else (),
        where=slowest["where"] if slowest is not None else "",
        consumer=_slow_consumer(found["consumers"]),
    )


def _by_stage(
    services: Services,
    tenant: Tenant,
    followed: Sequence[StoreRow],
    owned: Sequence[TaskRow],
    workers: Mapping[str, WorkerRow],
) -> dict[str, Any]:
    """The stages of the lag of a started tenant and their causes; reads the bucket."""
    newest = _newest_files(services, followed, service_time(services.catalog, services.clock, services.skew_max_ms))
    here = {state.task_id: state for state in services.reports() if state.tenant == tenant}
    reported = _reported(owned, workers)
    marks = {**{t: r.watermark for t, r in reported.items()}, **{t: s.watermark for t, s in here.items()}}
    served, now_ms, end_ts = services.served(tenant).resolved, services.clock.unix_ms(), ends_of(followed).get(tenant)
    if end_ts is not None:
        now_ms = min(now_ms, tso.physical_ms(end_ts))
    points = Points(
        durable=min((_cut(store, newest) for store in followed), default=None) if newest else None,
        fetched=min((store.max_cut_ts for store in followed), default=None),
        taken_in=_taken_in(owned, here),
        watermark=_lowest(owned, marks),
        durable_ts=min((task.durable_ts for task in owned), default=served),
        served=served,
    )
    stages = waterfall(points, now_ms)
    slow_store = min(followed, key=lambda s: _cut(s, newest), default=None)
    slow_task = min(owned, key=lambda t: t.durable_ts)
    where = {
        "upstream_flush": _of_store(slow_store, newest, workers, now_ms),
        "fetch": _of_dispatcher(min(followed, key=lambda s: s.max_cut_ts, default=None), workers),
        "match": _of_task(slow_task, workers),
        "watermark_gap_wait": _of_task(slow_task, workers),
        "flush": _of_task(slow_task, workers),
        "serve": "the schema history of the tenant",
    }
    slowest = max(stages, key=lambda stage: stage.ms)
    return {
        "lag_s": sum(stage.ms for stage in stages) / 1000,
        "stages": [_stage(stage, where) for stage in stages],
        "slowest": "+".join(slowest.stages),
        "waits_for": _reasons(services, slow_task.task_id, reported),
        "stores": [_store(store, newest, now_ms) for store in followed],
        "tasks": [_task(task, marks.get(task.task_id), now_ms) for task in owned],
    }


def _reported(owned: Sequence[TaskRow], workers: Mapping[str, WorkerRow]) -> dict[int, TaskReport]:
    """Task -> its owner's report in a heartbeat."""
    found = {}
    for task in owned:
        worker = workers.get(task.owner or "")
        for report in worker.report.tasks if worker is not None else ():
            if (report.task_id, report.epoch) == (task.task_id, task.epoch):
                found[task.task_id] = report
    return found


def _taken_in(owned: Sequence[TaskRow], here: Mapping[int, TaskState]) -> int | None:
    """The lowest cut that the cores took in; known only when all tasks are in this process."""
    if not owned or any(task.task_id not in here or not here[task.task_id].heard for task in owned):
        return None
    return min(at for state in here.values() for at in state.heard.values())


def _lowest(owned: Sequence[TaskRow], marks: Mapping[int, int | None]) -> int | None:
    """The lowest watermark; None unless all are known. A task with a gap counts with its durable watermark."""
    if not owned or any(task.task_id not in marks for task in owned):
        return None
    return min(max(marks[task.task_id] or 0, task.durable_ts) for task in owned)


def _reasons(services: Services, task_id: int, reported: Mapping[int, TaskReport]) -> list[str]:
    """What the task waits for, as text."""
    if here := services.explain(task_id):
        return list(here)[:REASONS_MAX]
    report = reported.get(task_id)
    return [] if report is None else [_reason(stuck) for stuck in report.stuck[:REASONS_MAX]]


def _reason(stuck: StuckReport) -> str:
    who = f"region {stuck.region_id} store {stuck.store_id} file {stuck.file}: " if stuck.file else ""
    return f"{KeyRange(stuck.start_key, stuck.end_key)}: {who}{stuck.reason}"


def _newest_files(services: Services, followed: Sequence[StoreRow], time: ServiceTime) -> dict[int, _Newest]:
    """Store -> its newest batch file, for the stores read least far that have one."""
    found: dict[int, _Newest] = {}
    for store in sorted(followed, key=lambda s: s.max_cut_ts)[:STORES_LOOKED_AT]:
        gone = stores.reclaimed(services.catalog, store.tenant, store.store_id).get(store.incarnation, 0)
        after = BatchKey(tenant=store.tenant, store_id=store.store_id, incarnation=store.incarnation, seq=gone)
        prefix = incarnation_prefix(store.tenant, store.store_id, store.incarnation)
        last = deque(islice(services.store.list(prefix, after=str(after)), FILES_LISTED_MAX), maxlen=1)
        for info in last:
            key = parse(info.key)
            if isinstance(key, BatchKey) and (read := _read(services, key, info.size, time)) is not None:
                found[store.store_id] = read
    return found


def _read(services: Services, key: BatchKey, size: int, time: ServiceTime) -> _Newest | None:
    """The newest file; None when it was reclaimed meanwhile."""
    try:
        for length in (min(size, _END_BYTES), size):
            end = services.store.get_range(str(key), size - length, length)
            if (promises := decode_watermarks(key, end, size)) is not None:
                if held := time.ahead(promises.latest_ts, "batch file"):
                    return _Newest(key=key, promises=None, fault=held.message)
                return _Newest(key=key, promises=promises)
    except ObjectNotFound:
        return None
    except CorruptObject as e:
        return _Newest(key=key, promises=None, fault=e.message)
    return None


def _cut(store: StoreRow, newest: Mapping[int, _Newest]) -> int:
    """The newest known cut of the store."""
    found = newest.get(store.store_id)
    promises = None if found is None else found.promises
    return store.max_cut_ts if promises is None else max(promises.cut_ts, store.max_cut_ts)


def _of_store(
    store: StoreRow | None, newest: Mapping[int, _Newest], workers: Mapping[str, WorkerRow], now_ms: int
) -> str:
    if store is None:
        return "no store has pushed yet"
    cut_ts, found = _cut(store, newest), newest.get(store.store_id)
    age = _age(now_ms - tso.physical_ms(cut_ts))
    if found is None and not cut_ts:
        return f"store {store.store_id}: it has pushed no file yet"
    if found is None:
        return f"store {store.store_id}: its last file was cut {age} ago"
    text = f"store {store.store_id}: its newest file {found.key.incarnation}/{found.key.seq}"
    if found.promises is None:
        return f"{text} does not count: {found.fault}"
    text += f" was cut {age} ago"
    region = _slowest_region(found.promises)
    return f"{text}; {region}" if region else text


def _slowest_region(promises: BatchWatermarks) -> str:
    """The region with the lowest resolved timestamp in the file."""
    at = promises.regions.column("resolved_ts").to_numpy()
    if not len(at):
        return ""
    slowest = int(at.argmin())
    region = promises.regions.column("region_id")[slowest].as_py()
    if not at[slowest]:
        return f"region {region} is not initialized in it"
    behind = tso.physical_ms(promises.cut_ts) - tso.physical_ms(int(at[slowest]))
    return f"region {region} has its watermark {_age(behind)} before that"


def _of_dispatcher(store: StoreRow | None, workers: Mapping[str, WorkerRow]) -> str:
    return "" if store is None else f"store {store.store_id}, {_worker('dispatcher', store.dispatcher, workers)}"


def _of_task(task: TaskRow, workers: Mapping[str, WorkerRow]) -> str:
    text = f"task {task.task_id} ({task.kind} {task.range}), {_worker('sorter', task.owner, workers)}"
    return f"{text}: {task.error}" if task.error else text


def _worker(kind: str, name: str | None, workers: Mapping[str, WorkerRow]) -> str:
    if name is None:
        return f"without a {kind}"
    row = workers.get(name)
    return f"{kind} {name}" + (f", last seen {_age(row.heartbeat_age_ms)} ago" if row is not None else "")


def _stage(stage: Stage, where: Mapping[str, str]) -> dict[str, Any]:
    facts = {"stages": list(stage.stages), "duration_s": stage.ms / 1000, "means": stage.means}
    return {**facts, "where": where[stage.stages[0]]}


def _store(store: StoreRow, newest: Mapping[int, _Newest], now_ms: int) -> dict[str, Any]:
    found = newest.get(store.store_id)
    return {
        "store_id": store.store_id,
        "incarnation": store.incarnation,
        "newest_file": str(found.key) if found else None,
        "newest_cut_ts": str(found.promises.cut_ts) if found and found.promises else None,
        "newest_fault": found.fault or None if found else None,
        "read_cut_ts": str(store.max_cut_ts),
        "behind_s": max(0, now_ms - tso.physical_ms(_cut(store, newest))) / 1000 if _cut(store, newest) else None,
        "dispatcher": store.dispatcher,
    }


def _task(task: TaskRow, watermark: int | None, now_ms: int) -> dict[str, Any]:
    return {
        "task_id": task.task_id,
        "kind": str(task.kind),
        "durable_ts": str(task.durable_ts),
        "behind_s": max(0, now_ms - tso.physical_ms(task.durable_ts)) / 1000,
        "watermark_ts": None if watermark is None else str(watermark),
        "owner": task.owner,
        "error": task.error,
    }


def _age(ms: int) -> str:
    return duration_text(max(0, ms))
