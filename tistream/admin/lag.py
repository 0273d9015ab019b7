"""Lag of a tenant and its causes: from the catalog, the newest batch files and the state of this process.

`explained` says in a sentence what is late, since when, because of what, and what to do next. For the stages below it
at most STORES_LOOKED_AT stores (those read least far) are examined: one listing after the reclaimed files and one read
of the end of the newest file each. Task watermarks and their causes come from sorters of this process, else from
heartbeats of workers. Intake of cores in other processes is unknown here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tistream import ts as tso
from tistream.admin import views
from tistream.admin.changefeeds import changefeeds_of
from tistream.admin.consumers import consumers_of
from tistream.admin.core.lag_sentence import Late, Quarantined, SlowReader, lag_sentence
from tistream.admin.core.units import duration_text
from tistream.admin.core.waterfall import Points, Stage, waterfall
from tistream.admin.core.watermark_gaps import Known
from tistream.admin.tenants import summary
from tistream.admin.views import Sources
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.service_time import service_time
from tistream.catalog.rows.reports import StuckReport, TaskReport
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.rows.tenants import TaskKind, TenantRow
from tistream.catalog.rows.workers import WorkerKind, WorkerRow
from tistream.catalog.tenancy.log_readers import ReaderState
from tistream.catalog.work import quarantines, stores, tasks
from tistream.catalog.work.stores import StoreRow
from tistream.catalog.work.stream_ends import ends_of, stream_end
from tistream.catalog.work.workers import list_workers
from tistream.codec.batch_file import BatchWatermarks, decode_watermarks
from tistream.errors import CorruptObject, ObjectNotFound
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.model.task_state import TaskState
from tistream.objectstore.layout import BatchKey, incarnation_prefix, parse
from tistream.objectstore.protocol import ObjectStore
from tistream.runtime.service_time import ServiceTime

STORES_LOOKED_AT = 16
FILES_LISTED_MAX = 5_000  # of one store; a dispatcher that is further behind shows anyway
REASONS_MAX = 5
_END_BYTES = 256 << 10
_AT_REST = (ReaderState.STOPPED, ReaderState.FINISHED)


@dataclass(frozen=True, slots=True, kw_only=True)
class LagSources:
    """What the lag of a tenant is read from."""

    views: Sources
    store: ObjectStore
    skew_max_ms: int  #: how far pushers' timestamps may be ahead of the service's time
    served: Callable[[Tenant], int]  #: the timestamp up to which changes of a tenant are served
    reports: Callable[[], Sequence[TaskState]]  #: task states of the sorters of this process
    explain: Callable[[int], Sequence[str]]  #: what a task of this process waits for, as text

    @property
    def catalog(self) -> Catalog:
        """The catalog of the views."""
        return self.views.catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class _Newest:
    """The newest batch file of a store."""

    key: BatchKey
    promises: BatchWatermarks | None  #: None when the file does not count
    fault: str = ""  #: why not: it is corrupt, or ahead of the service's time


def explained(sources: LagSources, row: TenantRow) -> dict[str, Any]:
    """The lag of a tenant with its sentence, and once it has started with its stages; reads the bucket."""
    lag = lag_of(sources, row)
    workers = {worker.worker_id: worker for worker in list_workers(sources.catalog)}
    followed, owned = stores.list_stores(sources.catalog, row.tenant), tasks.list_tasks(sources.catalog, row.tenant)
    if lag["lag_s"] is not None:
        lag |= _by_stage(sources, row.tenant, followed, owned, workers)
    return {**lag, "sentence": lag_sentence(_late(sources, row.tenant, lag, followed, owned, workers))}


def lag_of(sources: LagSources, row: TenantRow) -> dict[str, Any]:
    """The lag of a tenant, and of its consumers and changefeeds."""
    end_ts = stream_end(sources.catalog, row.tenant)
    report = summary(sources.views, row, {} if end_ts is None else {row.tenant: end_ts})
    return {**report, "readers": live_readers(sources.catalog, row.tenant)}


def live_readers(catalog: Catalog, tenant: Tenant) -> list[dict[str, Any]]:
    """How far each consumer and changefeed is behind that is neither paused nor finished; the furthest comes first."""
    readers = [
        *({**facts, "kind": "consumer", "name": facts["consumer_id"]} for facts in consumers_of(catalog, tenant)),
        *({**facts, "kind": "changefeed", "name": facts["changefeed_id"]} for facts in changefeeds_of(catalog, tenant)),
    ]
    return [
        {
            **{name: facts[name] for name in ("kind", "name", "state", "lag_s", "checkpoint_time", "idle_s")},
            "destination": facts.get("sink_uri", "").partition("?")[0],
            "members": sum(left > 0 for left in facts.get("leases_s", {}).values()),
        }
        for facts in sorted(readers, key=lambda facts: -facts["lag_s"])
        if facts["state"] not in _AT_REST
    ]


def _slow_reader(readers: Sequence[Mapping[str, Any]]) -> SlowReader | None:
    """The one that is furthest behind."""
    for slow in readers[:1]:
        return SlowReader(
            state=slow["state"],
            destination=slow["destination"],
            name=slow["name"],
            lag_s=slow["lag_s"],
            since=slow["checkpoint_time"],
            members=slow["members"],
            idle_s=slow["idle_s"],
        )
    return None


def _late(
    sources: LagSources,
    tenant: Tenant,
    late: Mapping[str, Any],
    followed: Sequence[StoreRow],
    owned: Sequence[TaskRow],
    workers: Mapping[str, WorkerRow],
) -> Late:
    """What the sentence is made of."""
    alive = {name for name, worker in workers.items() if Known.is_alive(worker)}
    replays = [t.owner for t in owned if t.owner in alive and workers[t.owner].kind is WorkerKind.REPLAY]
    continuing = [s for s in followed if not s.end_ts or s.max_cut_ts < s.end_ts]
    unread = min((s for s in continuing if s.dispatcher not in alive), key=lambda s: s.max_cut_ts, default=None)
    bad = quarantines.lowest_quarantine(sources.catalog, tenant)
    slowest = next((s for s in late.get("stages", ()) if "+".join(s["stages"]) == late["slowest"]), None)
    return Late(
        tenant=tenant,
        state=late["state"],
        lag_s=late["lag_s"],
        since=late["resolved_time"],
        ended=late["ended"],
        gaps=[gap for gap, _ in views.list_gaps(sources.views, tenant)],
        quarantined=None if bad is None else Quarantined(store_id=bad.store_id, rows=bad.rows),
        has_leader=views.owner(sources.views)["alive"],
        replay=replays[0] if replays else None,
        lost_store=unread.store_id if unread is not None else None,
        lost_dispatcher=unread.dispatcher if unread is not None else None,
        slowest=slowest["stages"] if slowest is not None else (),
        where=slowest["where"] if slowest is not None else "",
        is_ddl=bool(owned) and min(owned, key=lambda t: t.durable_ts).kind == TaskKind.DDL,
        reader=_slow_reader(late["readers"]),
    )


def _by_stage(
    sources: LagSources,
    tenant: Tenant,
    followed: Sequence[StoreRow],
    owned: Sequence[TaskRow],
    workers: Mapping[str, WorkerRow],
) -> dict[str, Any]:
    """The stages of the lag of a started tenant and their causes; reads the bucket."""
    newest = _newest_files(sources, followed, service_time(sources.catalog, sources.views.clock, sources.skew_max_ms))
    here = {state.task_id: state for state in sources.reports() if state.tenant == tenant}
    reported = _reported(owned, workers)
    marks = {**{t: r.watermark for t, r in reported.items()}, **{t: s.watermark for t, s in here.items()}}
    served, now_ms, end_ts = sources.served(tenant), sources.views.clock.unix_ms(), ends_of(followed).get(tenant)
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
        "waits_for": _reasons(sources, slow_task.task_id, reported),
        "stores": [_store(store, newest, now_ms) for store in followed],
        "tasks": [_task(task, marks.get(task.task_id), now_ms) for task in owned],
    }


def _reported(owned: Sequence[TaskRow], workers: Mapping[str, WorkerRow]) -> dict[int, TaskReport]:
    """Task -> its owner's report in a heartbeat."""
    reports = {}
    for task in owned:
        worker = workers.get(task.owner or "")
        for report in worker.report.tasks if worker is not None else ():
            if (report.task_id, report.epoch) == (task.task_id, task.epoch):
                reports[task.task_id] = report
    return reports


def _taken_in(owned: Sequence[TaskRow], here: Mapping[int, TaskState]) -> int | None:
    """The lowest cut that the cores took in; known only when all tasks are in this process."""
    if not owned or any(task.task_id not in here or not here[task.task_id].cut_timestamps for task in owned):
        return None
    return min(at for state in here.values() for at in state.cut_timestamps.values())


def _lowest(owned: Sequence[TaskRow], marks: Mapping[int, int | None]) -> int | None:
    """The lowest watermark; None unless all are known. A task with a gap counts with its durable watermark."""
    if not owned or any(task.task_id not in marks for task in owned):
        return None
    return min(max(marks[task.task_id] or 0, task.durable_ts) for task in owned)


def _reasons(sources: LagSources, task_id: int, reported: Mapping[int, TaskReport]) -> list[str]:
    """What the task waits for, as text."""
    if here := sources.explain(task_id):
        return [*here[: REASONS_MAX - 1], *here[REASONS_MAX - 1 :][-1:]]  # the last one is the open transaction
    report = reported.get(task_id)
    return [] if report is None else [_reason(stuck) for stuck in report.stuck[:REASONS_MAX]]


def _reason(stuck: StuckReport) -> str:
    who = f"region {stuck.region_id} store {stuck.store_id} file {stuck.file}: " if stuck.file else ""
    return f"{KeyRange(stuck.start_key, stuck.end_key)}: {who}{stuck.reason}"


def _newest_files(sources: LagSources, followed: Sequence[StoreRow], time: ServiceTime) -> dict[int, _Newest]:
    """Store -> its newest batch file, for the stores read least far that have one."""
    newest_files: dict[int, _Newest] = {}
    for store in sorted(followed, key=lambda s: s.max_cut_ts)[:STORES_LOOKED_AT]:
        gone = stores.reclaimed(sources.catalog, store.tenant, store.store_id).get(store.incarnation, 0)
        after = BatchKey(tenant=store.tenant, store_id=store.store_id, incarnation=store.incarnation, seq=gone)
        prefix = incarnation_prefix(store.tenant, store.store_id, store.incarnation)
        last = deque(islice(sources.store.list(prefix, after=str(after)), FILES_LISTED_MAX), maxlen=1)
        for info in last:
            key = parse(info.key)
            if isinstance(key, BatchKey) and (read := _read(sources, key, info.size, time)) is not None:
                newest_files[store.store_id] = read
    return newest_files


def _read(sources: LagSources, key: BatchKey, size: int, time: ServiceTime) -> _Newest | None:
    """The newest file; None when it was reclaimed meanwhile."""
    try:
        for length in (min(size, _END_BYTES), size):
            end = sources.store.get_range(str(key), size - length, length)
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
    newest_file = newest.get(store.store_id)
    promises = None if newest_file is None else newest_file.promises
    return store.max_cut_ts if promises is None else max(promises.cut_ts, store.max_cut_ts)


def _of_store(
    store: StoreRow | None, newest: Mapping[int, _Newest], workers: Mapping[str, WorkerRow], now_ms: int
) -> str:
    if store is None:
        return "no store has pushed yet"
    cut_ts, newest_file = _cut(store, newest), newest.get(store.store_id)
    age = _age(now_ms - tso.physical_ms(cut_ts))
    if newest_file is None and not cut_ts:
        return f"store {store.store_id}: it has pushed no file yet"
    if newest_file is None:
        return f"store {store.store_id}: its last file was cut {age} ago"
    text = f"store {store.store_id}: its newest file {newest_file.key.incarnation}/{newest_file.key.seq}"
    if newest_file.promises is None:
        return f"{text} does not count: {newest_file.fault}"
    text += f" was cut {age} ago"
    region = _slowest_region(newest_file.promises)
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
    count = int((at == at[slowest]).sum())
    who = f"region {region} has its watermark" if count == 1 else f"{count} regions have their watermarks"
    return f"{who} {_age(behind)} before that"


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
    newest_file = newest.get(store.store_id)
    return {
        "store_id": store.store_id,
        "incarnation": store.incarnation,
        "newest_file": str(newest_file.key) if newest_file else None,
        "newest_cut_ts": str(newest_file.promises.cut_ts) if newest_file and newest_file.promises else None,
        "newest_fault": newest_file.fault or None if newest_file else None,
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
