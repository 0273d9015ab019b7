"""Actions of operators: drain and undrain a worker; move, split, merge and retry a task; pause, resume and delete a
tenant.

Each action reads the state, describes in `words` what it does, and does it unless `dry_run`. The catalog's guards make
an action fail when the state has changed since it was read. Every process offers them.
"""

from __future__ import annotations

from typing import Any

from tistream.admin.core.formatting import key_text, range_label
from tistream.admin.core.watermark_gaps import Known
from tistream.admin.views import Sources, known_now
from tistream.catalog.log.objects import ObjectState, stored_bytes
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.rows.tenants import Successor, TaskKind, TenantState
from tistream.catalog.rows.workers import WorkerKind, WorkerRow, WorkerState
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS
from tistream.catalog.tenancy.consumers import CONSUMERS
from tistream.catalog.tenancy.tenants import GIVEN_UP, change_state, get_tenant, look_up_tenant
from tistream.catalog.work import listing
from tistream.catalog.work.deletion import delete_tenant, repeat_deletion, replace_tenant
from tistream.catalog.work.lanes import lane_places
from tistream.catalog.work.move import move_task
from tistream.catalog.work.reshape import request_merge, split_task
from tistream.catalog.work.tasks import get_task, retry_task
from tistream.catalog.work.workers import drain_worker, get_worker, list_workers, undrain_worker
from tistream.errors import ChangedMeanwhile, InvalidInput, StateForbids
from tistream.ids import Tenant

_DRAINABLE = {WorkerKind.SORTER: "task", WorkerKind.DISPATCHER: "store", WorkerKind.REPLICATE: "lane"}
_SHOWN = 4


def drain(sources: Sources, worker_id: str, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Hand what a worker owns to others, and assign nothing more to it."""
    row = get_worker(sources.catalog, worker_id)
    item = _DRAINABLE.get(row.kind)
    if item is None:
        raise StateForbids(f"{worker_id} is of kind {row.kind}: it owns nothing, just stop it.", worker_id=worker_id)
    if row.state is not WorkerState.UP:
        raise StateForbids(f"{worker_id} is {row.state}, not up.", worker_id=worker_id, state=row.state)
    count = _owned(sources, row)
    others = [w.worker_id for w in _alive(sources, row.kind) if w.worker_id != worker_id]
    what = _many(count, item)
    if not count:
        words = f"{worker_id} owns nothing and is assigned nothing more."
    elif others:
        words = f"{worker_id} hands over {what} to {_listed(others)}."
    else:
        words = f"No other {row.kind} is up: {worker_id} keeps its {what} until one is."
    if not dry_run and not drain_worker(sources.catalog, worker_id, row.incarnation, actor=actor):
        raise StateForbids(f"{worker_id} is not up any more.", worker_id=worker_id)
    return outcome("drain", worker_id, dry_run, words, items=count, receivers=others)


def undrain(sources: Sources, worker_id: str, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Assign work to a draining worker again."""
    row = get_worker(sources.catalog, worker_id)
    if row.state is not WorkerState.DRAINING:
        raise StateForbids(f"{worker_id} is {row.state}, not draining.", worker_id=worker_id, state=row.state)
    if not dry_run and not undrain_worker(sources.catalog, worker_id, row.incarnation, actor=actor):
        raise StateForbids(f"{worker_id} is not draining any more.", worker_id=worker_id)
    words = f"{worker_id} is given work again. What it handed over stays with its new owners."
    return outcome("undrain", worker_id, dry_run, words)


def move(
    sources: Sources, task_id: int, to: str | None, *, dry_run: bool, actor: str, if_epoch: int | None = None
) -> dict[str, Any]:
    """Move a task to another sorter: to `to`, or to the one with the least load."""
    row = get_task(sources.catalog, task_id)
    if if_epoch is not None and if_epoch != row.epoch:
        raise ChangedMeanwhile(f"Task {task_id} is at epoch {row.epoch}.", task_id=task_id, epoch=row.epoch)
    receiver = _receiver(sources, row, to)
    label = range_label(row.range, row.kind, sources.names_of(row.tenant))
    words = (
        f"Task {task_id} ({label}) goes from {row.owner or 'no owner'} to {receiver}, which loads its snapshot and "
        f"replays what came since. Nothing is lost or repeated; its watermark pauses meanwhile."
    )
    seen = row.epoch
    if not dry_run and move_task(sources.catalog, task_id, worker_id=receiver, seen_epoch=seen, actor=actor) is None:
        raise _reassigned(task_id)
    return outcome("move", str(task_id), dry_run, words, was=row.owner, to=receiver, epoch=seen + 1)


def split(sources: Sources, task_id: int, key: str | None, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Split a task at a key (hexadecimal), or where its sorter saw about half of the traffic on either side."""
    row = get_task(sources.catalog, task_id)
    at = _split_key(sources, row, key)
    if at not in row.range or at == row.range.start:
        raise InvalidInput(f"Task {task_id} does not have this key inside its range.", key=at.hex())
    where = key_text(at, sources.names_of(row.tenant))
    owner = row.owner or "no owner"
    words = f"Task {task_id} is replaced by two, below {where} and from there on; both stay with {owner}."
    parts: tuple[int, int] | None = None
    if not dry_run:
        parts = split_task(sources.catalog, task_id, at, seen_epoch=row.epoch, actor=actor)
        if parts is None:
            raise _reassigned(task_id)
    return outcome("split", str(task_id), dry_run, words, key=at.hex(), parts=list(parts) if parts else None)


def merge(sources: Sources, task_id: int, other: int, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Merge two neighbours: their sorter aligns both and replaces them by one task."""
    left, right = sorted(
        (get_task(sources.catalog, task_id), get_task(sources.catalog, other)), key=lambda row: row.range.start
    )
    if left.tenant != right.tenant or not left.range.end or left.range.end != right.range.start:
        raise InvalidInput(f"Tasks {task_id} and {other} are not neighbours of one tenant.")
    if TaskKind.DDL in (left.kind, right.kind) or left.error or right.error:
        raise StateForbids("Tasks of DDL, and tasks that have stopped, are not merged.")
    owner = left.owner or right.owner or "a sorter"
    both = f"Tasks {left.task_id} and {right.task_id}"
    words = f"{both} go to {owner}, which puts one task in their place once both are at one watermark."
    seen = (left.epoch, right.epoch)
    if not dry_run and not request_merge(sources.catalog, left.task_id, right.task_id, seen_epochs=seen, actor=actor):
        raise ChangedMeanwhile("One of the tasks was reassigned meanwhile.", task_id=task_id)
    return outcome("merge", f"{left.task_id}, {right.task_id}", dry_run, words, to=owner)


def _reassigned(task_id: int) -> ChangedMeanwhile:
    return ChangedMeanwhile(f"Task {task_id} was reassigned meanwhile.", task_id=task_id)


def _split_key(sources: Sources, row: TaskRow, key: str | None) -> bytes:
    if key is not None:
        try:
            return bytes.fromhex(key)
        except ValueError as e:
            raise InvalidInput("A key is given in hexadecimal.", key=key[:80]) from e
    report = known_now(sources, row.tenant).tasks.get(row.task_id)
    if report is None or report.epoch != row.epoch or report.split_key is None:
        raise StateForbids(f"The sorter of task {row.task_id} has suggested no key yet: give one.", task_id=row.task_id)
    return report.split_key


def retry(sources: Sources, task_id: int, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Retry a stopped task."""
    row = get_task(sources.catalog, task_id)
    if row.error is None:
        raise StateForbids(f"Task {task_id} has not stopped.", task_id=task_id)
    words = f"Task {task_id} is retried, with new subscriptions in its range. It had stopped: {row.error}"
    if not dry_run and not retry_task(sources.catalog, task_id, epoch=row.epoch, actor=actor):
        raise _reassigned(task_id)
    return outcome("retry", str(task_id), dry_run, words)


def pause(sources: Sources, tenant: Tenant, *, reason: str, dry_run: bool, actor: str) -> dict[str, Any]:
    """Pause a tenant."""
    words = (
        f"Tenant {tenant} is paused: its log stays readable, its watermark stops, and its pushers' files wait in the "
        f"bucket until it is resumed."
    )
    return _change(
        sources, tenant, (TenantState.ACTIVE, TenantState.PAUSED), "pause", words, reason or "paused by an operator",
        dry_run=dry_run, actor=actor,
    )  # fmt: skip


def resume(sources: Sources, tenant: Tenant, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Resume a paused tenant."""
    words = f"Tenant {tenant} resumes where it was; what its pushers wrote meanwhile is sorted now."
    change = (TenantState.PAUSED, TenantState.ACTIVE)
    return _change(sources, tenant, change, "resume", words, "", dry_run=dry_run, actor=actor)


def delete(sources: Sources, tenant: Tenant, *, reason: str, dry_run: bool, actor: str) -> dict[str, Any]:
    """Delete a tenant for good. A repeat changes nothing."""
    row = look_up_tenant(sources.catalog, tenant)
    if row.state in GIVEN_UP:
        if not dry_run:
            repeat_deletion(sources.catalog, tenant, actor=actor)
        over = row.state is TenantState.DELETED
        words = f"Tenant {tenant} {'was deleted' if over else 'is being deleted'} already: there is nothing to do."
        return outcome("delete", str(tenant), dry_run, words, state=row.state, tasks=0, objects=0, bytes=0)
    stored = [n for (_, state), n in stored_bytes(sources.catalog, tenant).items() if state != ObjectState.DEAD]
    files, size = sum(count for count, _ in stored), sum(total for _, total in stored)
    tasks = listing.count_tasks(sources.catalog, tenant).total
    consumers, feeds = (len(table.of_tenant(sources.catalog, tenant)) for table in (CONSUMERS, CHANGEFEEDS))
    words = (
        f"Tenant {tenant} ({row.state}) is deleted, and this cannot be undone: its pushers are refused, their keys "
        f"revoked, its {_many(tasks, 'task')}, {_many(consumers, 'consumer')} and {_many(feeds, 'changefeed')} "
        f"removed. Its log of {_many(files, 'object')} ({size / 1e6:.1f} MB) cannot be read from now on; after an hour "
        f"it is removed from the bucket, with all that its pushers wrote. Its id is not used again."
    )
    if not dry_run and not delete_tenant(sources.catalog, tenant, seen=row.state, reason=reason, actor=actor):
        raise ChangedMeanwhile(f"Tenant {tenant} is not {row.state} any more.")
    return outcome(
        "delete", str(tenant), dry_run, words, state=TenantState.DELETING, tasks=tasks, objects=files, bytes=size
    )


def replace(sources: Sources, tenant: Tenant, by: Tenant, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Delete a tenant for good and send its readers to another one. A repeat changes nothing."""
    row = look_up_tenant(sources.catalog, tenant)
    if row.state in GIVEN_UP:
        successor = Successor.of_reason(row.reason)
        if successor is None or successor.tenant != by:
            raise StateForbids(f"Tenant {tenant} was deleted, and not replaced by {by}.", state=row.state)
        if not dry_run:
            repeat_deletion(sources.catalog, tenant, actor=actor)
        words = f"Tenant {tenant} is replaced by {by} already: there is nothing to do."
        return outcome("replace", str(tenant), dry_run, words, state=row.state, tasks=0, objects=0, bytes=0)
    would = delete(sources, tenant, reason="", dry_run=True, actor=actor)
    words = f"{would['words']} Its readers learn that tenant {by} has its place, and where they begin anew."
    if not dry_run and not replace_tenant(sources.catalog, tenant, by, seen=row.state, actor=actor):
        raise ChangedMeanwhile(f"Tenant {tenant} is not {row.state} any more.")
    return would | outcome("replace", str(tenant), dry_run, words)


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _change(
    sources: Sources,
    tenant: Tenant,
    change: tuple[TenantState, TenantState],
    verb: str,
    words: str,
    reason: str,
    *,
    dry_run: bool,
    actor: str,
) -> dict[str, Any]:
    seen, to = change
    row = get_tenant(sources.catalog, tenant)
    if row.state is not seen:
        raise StateForbids(f"Tenant {tenant} is {row.state}, not {seen}.", state=row.state)
    if not dry_run and not change_state(sources.catalog, tenant, seen=seen, to=to, reason=reason, actor=actor):
        raise ChangedMeanwhile(f"Tenant {tenant} is not {seen} any more.")
    return outcome(verb, str(tenant), dry_run, words, state=to)


def _receiver(sources: Sources, row: TaskRow, to: str | None) -> str:
    alive = {worker.worker_id: worker for worker in _alive(sources, WorkerKind.SORTER)}
    if to == row.owner and to is not None:
        raise StateForbids(f"Task {row.task_id} is with {to} already.", task_id=row.task_id)
    if to is not None:
        if to not in alive:
            up = f" Up are {_listed(sorted(alive))}." if alive else " No sorter is up."
            raise StateForbids(f"{to} is not a sorter that is up: it cannot be assigned tasks.{up}", worker_id=to)
        return to
    others = [worker for name, worker in alive.items() if name != row.owner]
    if not others:
        raise StateForbids("No other sorter is up.", task_id=row.task_id)
    owned = listing.tasks_per_owner(sources.catalog)
    return min(others, key=lambda w: (w.report.bytes_per_s, owned.get(w.worker_id, 0), w.worker_id)).worker_id


def _alive(sources: Sources, kind: WorkerKind) -> list[WorkerRow]:
    rows = list_workers(sources.catalog, kind)
    return [row for row in rows if row.state is WorkerState.UP and Known.is_alive(row)]


def _owned(sources: Sources, row: WorkerRow) -> int:
    if row.kind is WorkerKind.REPLICATE:
        return sum(lane.owner == row.worker_id for lane in lane_places(sources.catalog))
    per = listing.tasks_per_owner if row.kind is WorkerKind.SORTER else listing.stores_per_dispatcher
    return per(sources.catalog).get(row.worker_id, 0)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def outcome(verb: str, subject: str, dry_run: bool, words: str, **more: object) -> dict[str, Any]:
    """The result of an action."""
    return {"verb": verb, "subject": subject, "dry_run": dry_run, "done": not dry_run, "words": words, **more}
