"""What errors have stopped, as one list for operators: the catalog's stops, then the stopped tasks.

The id of a stop is a number, that of a task is `task-N`. Resuming a stop has its role retry the item now; a task is
retried with new subscriptions in its range.
"""

from __future__ import annotations

from typing import Any

from tistream import ts as tso
from tistream.admin import actions
from tistream.admin.views import Sources, ids_of
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.work import listing
from tistream.catalog.work.stopped_items import (
    Scope,
    StoppedItemRow,
    get_stopped_item,
    list_stopped_items,
    resume_stopped_item,
)
from tistream.errors import CursorInvalid, InvalidInput, NotFound
from tistream.ids import Tenant

_TASK = "task-"
_ID_DIGITS_MAX = 18


def stops_page(
    sources: Sources, *, limit: int, cursor: str | None = None, tenant: Tenant | None = None
) -> dict[str, Any]:
    """The stops by id, then the stopped tasks by id."""
    try:
        is_task, after = _parsed(cursor) if cursor is not None else (False, 0)
    except InvalidInput as e:
        raise CursorInvalid("This is not a cursor of this list.", cursor=str(cursor)[:40]) from e
    items: list[dict[str, Any]] = []
    if not is_task:
        items += [_stop_fact(row) for row in list_stopped_items(sources.catalog, tenant, after=after, limit=limit + 1)]
        after = 0
    if len(items) <= limit:
        left = limit + 1 - len(items)
        rows = listing.page_tasks(sources.catalog, limit=left, after_id=after, tenant=tenant, stopped=True)
        items += [_task_fact(row) for row in rows]
    return {"items": items[:limit], "next_cursor": items[limit - 1]["stop_id"] if len(items) > limit else None}


def resume(sources: Sources, stop_id: str, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Retry the item now."""
    is_task, number = _parsed(stop_id)
    if is_task:
        return actions.retry(sources, number, dry_run=dry_run, actor=actor)
    row = get_stopped_item(sources.catalog, number)
    stopped = row.stopped
    words = f"{stopped.role} tries {stopped.scope} {stopped.item} now. It had stopped: {stopped.message}"
    if not dry_run and not resume_stopped_item(sources.catalog, number, actor=actor):
        raise NotFound(f"Stop {number} does not exist any more: the item works again.", stop_id=number)
    return actions.outcome("resume", f"{stopped.role} {stopped.item}", dry_run, words)


def problems_of(sources: Sources, tenant: Tenant | None, limit: int) -> list[dict[str, object]]:
    """The stops, not the tasks, as the console's problems."""
    return [
        {
            "source": f"{row.stopped.role}, {row.stopped.scope} {row.stopped.item}",
            "code": row.stopped.code,
            "message": row.stopped.message,
            "fatal": True,
            "contained": True,
            "facts": {"object": row.stopped.object} if row.stopped.object else {},
        }
        for row in list_stopped_items(sources.catalog, tenant, limit=limit)
    ]


def _parsed(text: str) -> tuple[bool, int]:
    number = text.removeprefix(_TASK)
    if not (number.isascii() and number.isdecimal()) or len(number) > _ID_DIGITS_MAX:
        raise InvalidInput(f"'{text[:40]}' is not the id of a stop: GET /v1/stops lists them.")
    return number != text, int(number)


def _stop_fact(row: StoppedItemRow) -> dict[str, Any]:
    stopped = row.stopped
    return {
        **ids_of(stopped.tenant),
        "stop_id": str(row.item_id),
        "scope": stopped.scope,
        "role": stopped.role,
        "item": stopped.item,
        "code": stopped.code,
        "message": stopped.message,
        "object": stopped.object or None,
        "since_time": tso.to_text(tso.compose(row.since_ms)),
        "tries": stopped.tries,
        "resumed": row.resumed,
    }


def _task_fact(row: TaskRow) -> dict[str, Any]:
    unknown = dict.fromkeys(("code", "message", "object", "since_time", "tries"))
    return {
        **ids_of(row.tenant),
        "stop_id": f"{_TASK}{row.task_id}",
        "scope": Scope.TASK,
        "role": "sorter",
        "item": str(row.task_id),
        **unknown,
        "message": row.error,
        "resumed": False,
    }
