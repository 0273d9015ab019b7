"""Why a range does not go on, in one sentence. Pure.

    stopped     the task met something that it must not pass; a person decides
    no sorter   nobody works on the task
    silent      its sorter has not been heard of for longer than its lease
    hole        nobody has spoken of part of the range yet, so there is no watermark
    standing    the watermark has stood for longer than STANDING_S: it waits for a region
    awaiting    a tenant whose first schema snapshot has not been pushed
    paused      a tenant that somebody set aside; its tasks rest

What sorters and dispatchers say with their heartbeats is a claim about the recent past: the sentence is what to look
at first, not a proof.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tistream import ts as tso
from tistream.admin.core.formatting import NameOf, key_span, key_text, range_label
from tistream.admin.core.units import duration_text
from tistream.catalog.work.reports import StoreReport, StuckReport, TaskReport
from tistream.catalog.work.tasks import TaskRow
from tistream.catalog.work.workers import WorkerRow
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.limits import LEASE_MS

STANDING_S = 10.0  #: a watermark that stands for longer is told
SILENT_S = 10.0  #: a store without a new file for longer is probably down


class Cause(StrEnum):
    """Why a range does not go on."""

    STOPPED = "stopped"
    NO_SORTER = "no sorter"
    SILENT = "silent"
    WATERMARK_GAP = "watermark_gap"
    STANDING = "standing"
    AWAITING = "awaiting"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkGap:
    """A range that does not go on."""

    tenant: Tenant
    cause: Cause
    sentence: str
    next_step: str
    task: TaskRow | None = None
    range: KeyRange | None = None
    watermark: int | None = None
    standing_s: float | None = None
    region_id: int = 0
    version: int = 0
    store_id: int = 0
    file: str = ""
    file_age_s: float | None = None
    owner: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What workers have said: by worker, by task, by store."""

    workers: Mapping[str, WorkerRow]
    tasks: Mapping[int, TaskReport]
    stores: Mapping[tuple[Tenant, int], StoreReport]
    dispatchers: Mapping[tuple[Tenant, int], str | None]  #: who dispatches a store
    unix_ms: int  #: now
    resting: Collection[Tenant] = ()  #: tenants whose tasks nobody works on: paused, or being deleted

    @staticmethod
    def is_alive(worker: WorkerRow | None) -> bool:
        """Whether the database has heard of it lately."""
        return worker is not None and worker.state != "gone" and worker.heartbeat_age_ms <= LEASE_MS


def awaiting(tenant: Tenant) -> WatermarkGap:
    """A tenant without tasks."""
    return WatermarkGap(
        tenant=tenant,
        cause=Cause.AWAITING,
        sentence=f"tenant {tenant} waits for its first schema snapshot; until then its files wait, too",
        next_step=f"start its pusher: tistream push --cluster {tenant.cluster_id} --tenant {tenant.tenant_id} ...",
    )


def paused(tenant: Tenant, reason: str) -> WatermarkGap:
    """A tenant that was set aside."""
    return WatermarkGap(
        tenant=tenant,
        cause=Cause.PAUSED,
        sentence=f"tenant {tenant} is paused" + (f": {reason}" if reason else ""),
        next_step=f"tistream tenant resume --cluster {tenant.cluster_id} --tenant {tenant.tenant_id}",
    )


def watermark_gaps_of(task: TaskRow, known: Known, name_of: NameOf) -> list[WatermarkGap]:
    """What is to be told of a task; nothing when it goes on."""
    label = range_label(task.range, task.kind, name_of)
    if task.error is not None:
        words = f"task {task.task_id} over {label} has stopped: {task.error}"
        then = f"put right what it says, then let it try again: tistream tasks retry {task.task_id}"
        return [_watermark_gap(task, Cause.STOPPED, words, then)]
    if task.tenant in known.resting:
        return []
    if task.owner is None:
        words = f"task {task.task_id} over {label} has no sorter"
        return [
            _watermark_gap(
                task, Cause.NO_SORTER, words, "see that a sorter and a meta server are up: tistream workers list"
            )
        ]
    worker = known.workers.get(task.owner)
    if not Known.is_alive(worker):
        heard = f"for {duration_text(worker.heartbeat_age_ms)}" if worker else "at all"
        words = f"task {task.task_id} over {label} belongs to {task.owner}, which has not been heard of {heard}"
        then = "another sorter takes it over within seconds if one is up and a meta server is elected"
        return [_watermark_gap(task, Cause.SILENT, words, then)]
    report = known.tasks.get(task.task_id)
    if report is None or report.epoch != task.epoch:
        return []
    told = [s for s in report.stuck if s.watermark is None or report.standing_s >= STANDING_S]
    waits = [s for s in told if not s.start_ts or (s.watermark is not None and s.start_ts <= s.watermark + 1)]
    if waits:
        return [
            _locked(task, report, stuck, known, name_of)
            if stuck.start_ts
            else _stuck(task, report, stuck, known, name_of)
            for stuck in waits
        ]
    if report.standing_s < STANDING_S:
        return []
    for_so_long = duration_text(report.standing_s * 1000)
    words = f"task {task.task_id} over {label} has stood for {for_so_long}, and its sorter did not say why"
    return [
        _watermark_gap(task, Cause.STANDING, words, f"look at the log of {task.owner}", standing_s=report.standing_s)
    ]


def _stuck(task: TaskRow, report: TaskReport, stuck: StuckReport, known: Known, name_of: NameOf) -> WatermarkGap:
    """Part of a range that a region, or nobody, has to speak of."""
    part = KeyRange(stuck.start_key, stuck.end_key)
    what = range_label(part, task.kind, name_of) if part == task.range else f"[{key_span(part, name_of)})"
    place = (task.tenant, stuck.store_id)
    store = known.stores.get(place)
    dispatcher = known.dispatchers.get(place)
    age_s = store.silent_s if store is not None else None
    waits = (
        f"waits for region {stuck.region_id} v{stuck.version}"
        if stuck.region_id
        else "waits for a region that nobody has named"
    )
    words = [f"{what} {waits}" + (f" from store {stuck.store_id}" if stuck.store_id else "")]
    if age_s is not None:
        words.append(f"last file {duration_text(age_s * 1000)} ago")
    elif stuck.file:
        words.append(f"last file {stuck.file}")
    guess, then = _guess(stuck, age_s, dispatcher, known)
    words.append(guess)
    if stuck.reason:
        words.append(stuck.reason)
    return _watermark_gap(
        task,
        Cause.WATERMARK_GAP if stuck.watermark is None else Cause.STANDING,
        "; ".join(words),
        then,
        range=part,
        watermark=stuck.watermark,
        standing_s=report.standing_s,
        region_id=stuck.region_id,
        version=stuck.version,
        store_id=stuck.store_id,
        file=stuck.file,
        file_age_s=age_s,
    )


def _locked(task: TaskRow, report: TaskReport, stuck: StuckReport, known: Known, name_of: NameOf) -> WatermarkGap:
    """The oldest transaction whose outcome the watermark waits for: no resolved timestamp passes its locks."""
    key = stuck.start_key
    age = duration_text(known.unix_ms - tso.physical_ms(stuck.start_ts))
    words = [
        f"{range_label(task.range, task.kind, name_of)} waits for transaction {stuck.start_ts}, which began {age} ago "
        f"and has a lock on {key_text(key, name_of)} (key {key.hex()})",
        stuck.reason,
    ]
    return _watermark_gap(
        task,
        Cause.STANDING,
        "; ".join(word for word in words if word),
        "see whether its client lives; the pusher resolves locks that have expired, and names those that it leaves",
        range=KeyRange(key, stuck.end_key),
        watermark=stuck.watermark,
        standing_s=report.standing_s,
    )


def _guess(stuck: StuckReport, age_s: float | None, dispatcher: str | None, known: Known) -> tuple[str, str]:
    """What is probably wrong, and what to look at."""
    if not stuck.store_id:
        return "no store has spoken of it yet", "see that the pushers of all stores run and have registered its regions"
    if dispatcher is None or not Known.is_alive(known.workers.get(dispatcher)):
        who = f"its dispatcher {dispatcher} is down" if dispatcher else "it has no dispatcher"
        return who, "see that a dispatcher and a meta server are up: tistream workers list"
    if age_s is not None and age_s > SILENT_S:
        return "probably the store is down", f"look at store {stuck.store_id} and its pusher"
    return (
        "the store writes, but not of this region",
        "look at the region's leader and at long transactions: tistream doctor --pd HOST:PORT",
    )


def _watermark_gap(task: TaskRow, cause: Cause, sentence: str, next_step: str, **more: object) -> WatermarkGap:
    facts: dict[str, object] = {"range": task.range, "watermark": task.durable_ts, **more}
    return WatermarkGap(
        tenant=task.tenant,
        task=task,
        owner=task.owner,
        cause=cause,
        sentence=sentence,
        next_step=next_step,
        **facts,  # type: ignore[arg-type]
    )
