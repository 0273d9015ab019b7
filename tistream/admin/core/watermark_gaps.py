"""Why a range is stalled, in one sentence. Pure.

    stopped         the task met an error that it must not skip; an operator decides
    no sorter       the task has no owner
    silent          its sorter has sent no heartbeat for longer than its lease
    watermark_gap   part of the range has no watermark yet
    standing        the watermark has stalled for longer than STALLED_S: it waits for a region
    awaiting        a tenant whose pusher has not sent its schema snapshot, or the id of its keyspace
    paused          a tenant that an operator paused

Heartbeats of sorters and dispatchers describe the recent past: the sentence is what to look at first, not a proof.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tistream import ts as tso
from tistream.admin.core.formatting import NameOf, key_span, key_text, range_label
from tistream.admin.core.units import duration_text
from tistream.catalog.rows.reports import StoreReport, StuckReport, TaskReport
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.rows.workers import WorkerRow
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.limits import LEASE_MS
from tistream.ts import TSO_END

STALLED_S = 10.0  #: a watermark that has stalled for longer is reported
SILENT_S = 10.0  #: a store without a new file for longer is probably down


class Cause(StrEnum):
    """Why a range is stalled."""

    STOPPED = "stopped"
    NO_SORTER = "no sorter"
    SILENT = "silent"
    WATERMARK_GAP = "watermark_gap"
    STANDING = "standing"
    AWAITING = "awaiting"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkGap:
    """A stalled range."""

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
    start_ts: int = 0  #: of the open transaction that it waits for; 0: it waits for something else
    file: str = ""
    file_age_s: float | None = None
    owner: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The last reports: by worker, by task, by store."""

    workers: Mapping[str, WorkerRow]
    tasks: Mapping[int, TaskReport]
    stores: Mapping[tuple[Tenant, int], StoreReport]
    dispatchers: Mapping[tuple[Tenant, int], str | None]  #: who dispatches a store
    unix_ms: int  #: now
    ends: Mapping[Tenant, int] = field(default_factory=dict)  #: where the streams of tenants end that do
    resting: Collection[Tenant] = ()  #: tenants whose tasks have no owners on purpose: paused, or being deleted

    @staticmethod
    def is_alive(worker: WorkerRow | None) -> bool:
        """Whether its last heartbeat is younger than its lease."""
        return worker is not None and worker.state != "gone" and worker.heartbeat_age_ms <= LEASE_MS


def awaiting(tenant: Tenant, keyspace: str | None = None) -> WatermarkGap:
    """A tenant without tasks. `keyspace`: the name of its keyspace, if it is one."""
    waits = "its first schema snapshot; until then its files wait too"
    if keyspace is not None:
        waits = f"its pusher, which asks PD for the id of keyspace {keyspace}"
    return WatermarkGap(
        tenant=tenant,
        cause=Cause.AWAITING,
        sentence=f"tenant {tenant} waits for {waits}",
        next_step=f"start its pusher: tistream push --cluster {tenant.cluster_id} --tenant {tenant.tenant_id} ...",
    )


def paused(tenant: Tenant, reason: str) -> WatermarkGap:
    """A paused tenant."""
    return WatermarkGap(
        tenant=tenant,
        cause=Cause.PAUSED,
        sentence=f"tenant {tenant} is paused" + (f": {reason}" if reason else ""),
        next_step=f"tistream tenant resume --cluster {tenant.cluster_id} --tenant {tenant.tenant_id}",
    )


def watermark_gaps_of(task: TaskRow, known: Known, name_of: NameOf) -> list[WatermarkGap]:
    """The watermark gaps of a task; none when it advances."""
    label = range_label(task.range, task.kind, name_of)
    if task.error is not None:
        words = f"task {task.task_id} over {label} has stopped: {task.error}"
        then = f"fix the cause, then retry it: tistream tasks retry {task.task_id}"
        return [_watermark_gap(task, Cause.STOPPED, words, then)]
    if task.tenant in known.resting:
        return []
    if task.owner is None:
        words = f"task {task.task_id} over {label} has no sorter"
        then = "check that a sorter and a meta server are up: tistream workers list"
        return [_watermark_gap(task, Cause.NO_SORTER, words, then)]
    worker = known.workers.get(task.owner)
    if not Known.is_alive(worker):
        seen = f"sent no heartbeat for {duration_text(worker.heartbeat_age_ms)}" if worker else "never registered"
        words = f"task {task.task_id} over {label} belongs to {task.owner}, which has {seen}"
        then = "another sorter takes it over within seconds if one is up and a meta server is elected"
        return [_watermark_gap(task, Cause.SILENT, words, then)]
    report = known.tasks.get(task.task_id)
    if report is None or report.epoch != task.epoch or task.durable_ts >= known.ends.get(task.tenant, TSO_END):
        return []
    reported = [s for s in report.stuck if s.watermark is None or report.standing_s >= STALLED_S]
    waits = [s for s in reported if not s.start_ts or (s.watermark is not None and s.start_ts <= s.watermark + 1)]
    if waits:
        return [(_locked if s.start_ts else _stuck)(task, report, s, known, name_of) for s in waits]
    if report.standing_s < STALLED_S:
        return []
    stalled_for = duration_text(report.standing_s * 1000)
    words = f"task {task.task_id} over {label} has stalled for {stalled_for}, and its sorter did not report why"
    then = f"look at the log of {task.owner}"
    return [_watermark_gap(task, Cause.STANDING, words, then, standing_s=report.standing_s)]


def _stuck(task: TaskRow, report: TaskReport, stuck: StuckReport, known: Known, name_of: NameOf) -> WatermarkGap:
    """A part of a range that waits for a region, known or not."""
    part = KeyRange(stuck.start_key, stuck.end_key)
    what = range_label(part, task.kind, name_of) if part == task.range else f"[{key_span(part, name_of)})"
    place = (task.tenant, stuck.store_id)
    store = known.stores.get(place)
    dispatcher = known.dispatchers.get(place)
    age_s = store.silent_s if store is not None else None
    region = f"region {stuck.region_id} v{stuck.version}" if stuck.region_id else "a region that no store has reported"
    words = [
        f"the watermark of {what} waits for {region}" + (f" from store {stuck.store_id}" if stuck.store_id else "")
    ]
    if age_s is not None:
        words.append(f"last file {duration_text(age_s * 1000)} ago")
    elif stuck.file:
        words.append(f"last file {stuck.file}")
    guess, then = _guess(stuck, age_s, dispatcher, known)
    words += [more for more in (guess, stuck.reason) if more]
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
    """The oldest open transaction: no resolved timestamp passes its locks."""
    key = stuck.start_key
    age = duration_text(known.unix_ms - tso.physical_ms(stuck.start_ts))
    words = [
        f"the watermark of {range_label(task.range, task.kind, name_of)} waits for transaction {stuck.start_ts}, "
        f"which began {age} ago and has a lock on {key_text(key, name_of)} (key {key.hex()})",
        stuck.reason,
    ]
    return _watermark_gap(
        task,
        Cause.STANDING,
        "; ".join(word for word in words if word),
        "check whether its client is alive; the pusher resolves expired locks, and names those that it leaves",
        range=KeyRange(key, stuck.end_key),
        watermark=stuck.watermark,
        start_ts=stuck.start_ts,
        standing_s=report.standing_s,
    )


def without_followers(gaps: Sequence[WatermarkGap]) -> list[WatermarkGap]:
    """The gaps but for those that an open transaction explains. TiKV announces one resolved timestamp for a group of
    regions, the lowest of them: a region that stands where a transaction began is held by it, or by its group."""
    begun = {gap.start_ts for gap in gaps if gap.start_ts}
    held = begun | {at - 1 for at in begun}
    return [gap for gap in gaps if gap.start_ts or gap.cause is not Cause.STANDING or gap.watermark not in held]


def _guess(stuck: StuckReport, age_s: float | None, dispatcher: str | None, known: Known) -> tuple[str, str]:
    """What is probably wrong, if the sentence does not have it yet, and what to look at."""
    if not stuck.store_id:
        return "", "check that the pushers of all stores run and follow its regions"
    if dispatcher is None or not Known.is_alive(known.workers.get(dispatcher)):
        who = f"its dispatcher {dispatcher} is down" if dispatcher else "it has no dispatcher"
        return who, "check that a dispatcher and a meta server are up: tistream workers list"
    if age_s is not None and age_s > SILENT_S:
        return "probably the store is down", f"look at store {stuck.store_id} and its pusher"
    return (
        "the store writes, but not for this region",
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
