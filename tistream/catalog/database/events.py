"""Events: the history of tasks, stores, workers and tenants, for operators.

An event is the last statement of the transaction that it describes: both happen or neither does. Its number comes from
a counter whose row stays locked until the transaction ends, so numbers are in commit order, and a reader of "above the
last number seen" misses nothing.

Nothing depends on events; they are pruned by age and number. They are never written on the data path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson
from sqlalchemy import Connection, Text, and_, bindparam, literal_column, select
from sqlalchemy.sql.elements import ColumnElement

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.columns import WORKER_NAME_MAX, UInt, Word, WorkerName
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.names import is_name, name_of
from tistream.catalog.database.records import record_of
from tistream.catalog.database.tables import counters, events, next_numbers
from tistream.ids import Tenant

KEEP_EVENTS = 50_000
KEEP_DAYS = 30
SINGLE_EVENTS_MAX = 200  #: a transaction with more assignments records one summary
DETAIL_BYTES_MAX = 16_000  #: a TEXT column holds 64 KiB of UTF-8
_KIND_CHARS_MAX = 31  # and a dot
_PRUNED_AT_ONCE = 2_000
_DAY_MS = 86_400_000


class EventKind(StrEnum):
    """What happened; the part before the dot is the kind of the subject."""

    OWNER_ELECTED = "owner.elected"
    FEATURE_ON = "feature.on"  #: what older releases cannot read is written from now on; see `features`
    CATALOG_RESTORED = "catalog.restored"  #: by an operator, from an export
    CATALOG_CONFIRMED = "catalog.confirmed"  #: by an operator: a restored catalog may delete
    CATALOG_UNJOURNALED = "catalog.unjournaled"  #: a deed is not in the journal; an export was asked for instead
    WORKER_REGISTERED = "worker.registered"
    WORKER_DRAINING = "worker.draining"
    WORKER_RETURNED = "worker.returned"
    WORKER_SILENT = "worker.silent"  #: it sends no heartbeats: killed, cut off or paused
    WORKER_GONE = "worker.gone"  #: it has ended by itself
    TASK_ASSIGNED = "task.assigned"
    TASK_MOVED = "task.moved"  #: by an operator
    TASK_STOPPED = "task.stopped"
    TASK_RETRIED = "task.retried"
    TASK_SPLIT = "task.split"
    TASK_MERGE_ASKED = "task.merge_asked"  #: by an operator; TASK_MERGED follows when done
    TASK_MERGED = "task.merged"
    STORE_ASSIGNED = "store.assigned"
    STORE_QUARANTINED = "store.quarantined"  #: it contradicted its own promise; see `quarantines`
    STORE_REJECTED = "store.rejected"  #: by an operator
    TENANT_REGISTERED = "tenant.registered"
    TENANT_ACTIVATED = "tenant.activated"
    TENANT_PAUSED = "tenant.paused"
    TENANT_RESUMED = "tenant.resumed"
    TENANT_ALLOWED = "tenant.allowed"  #: by an operator: a target, see `targets`
    TENANT_DISALLOWED = "tenant.disallowed"  #: by an operator
    TENANT_DELETING = "tenant.deleting"
    TENANT_DELETED = "tenant.deleted"
    ITEM_STOPPED = "item.stopped"  #: an error stopped one role's work on one item; see `stops`
    ITEM_RESUMED = "item.resumed"  #: by an operator
    JOB_FAILED = "job.failed"
    JOB_RETRIED = "job.retried"  #: by an operator
    JOB_CANCELLED = "job.cancelled"  #: by an operator
    LANE_ASSIGNED = "lane.assigned"
    CHANGEFEED_CREATED = "changefeed.created"  #: by an operator, as the following but for `stopped` and `failed`
    CHANGEFEED_CHANGED = "changefeed.changed"
    CHANGEFEED_REBALANCED = "changefeed.rebalanced"
    CHANGEFEED_STOPPED = "changefeed.stopped"  #: a table or a key of it, by a change that the destination refuses
    CHANGEFEED_FAILED = "changefeed.failed"
    CHANGEFEED_REPEATS = "changefeed.repeats"  #: what an earlier try may have written is written once more
    ITEM_WORKS = "item.works"  #: a stopped item works again, or no longer exists


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """An event as the catalog has it."""

    event_id: int  #: rises in commit order
    at_ms: int  #: Unix milliseconds by the database's clock
    kind: str  #: an EventKind, or one of a newer version
    tenant: Tenant | None
    subject: str  #: id of the task, store, worker ...
    actor: str  #: the operator; empty for the service itself
    detail: Mapping[str, Any]


_E = events.c
_COUNT = counters.update().where(counters.c.name == "event").values(value=counters.c.value + 1)
_INSERT = events.insert().from_select(
    ["event_id", "at_ms", "kind", "cluster_id", "tenant_id", "subject", "actor", "detail"],
    select(
        counters.c.value,
        now_ms(),
        bindparam("kind", type_=Word),
        bindparam("cluster_id", type_=UInt),
        bindparam("tenant_id", type_=UInt),
        bindparam("subject", type_=WorkerName),
        bindparam("actor", type_=WorkerName),
        bindparam("detail", type_=Text()),
    ).where(counters.c.name == "event"),
)
_INSERT_MANY = events.insert()  # values only: with an expression the driver sends the rows one by one
_NOW = select(now_ms())
_NEWEST = select(counters.c.value).where(counters.c.name == "event")


def record_event(
    conn: Connection,
    kind: EventKind,
    subject: object,
    /,
    *,
    tenant: Tenant | None = None,
    actor: str = "",
    **detail: object,
) -> None:
    """Record an event as the last statement of the caller's transaction: nothing may be locked after the counter."""
    text = orjson.dumps(detail)
    if len(text) > DETAIL_BYTES_MAX:
        text = orjson.dumps({name: str(value)[:1000] for name, value in detail.items()})
    conn.execute(_COUNT)
    conn.execute(
        _INSERT,
        {
            "kind": kind,
            "cluster_id": None if tenant is None else tenant.cluster_id,
            "tenant_id": None if tenant is None else tenant.tenant_id,
            "subject": name_of(str(subject), WORKER_NAME_MAX),
            "actor": name_of(actor, WORKER_NAME_MAX),
            "detail": text.decode(),
        },
    )


def record_assignments(
    conn: Connection, kind: EventKind, given: Sequence[tuple[object, Tenant | None, str]], *, leader_epoch: int
) -> None:
    """Record assignments, (subject, tenant, worker) each, as `record_event` does but in four statements. More than
    SINGLE_EVENTS_MAX become one event with the number per worker."""
    if len(given) > SINGLE_EVENTS_MAX:
        counts = dict(Counter(worker for _, _, worker in given))
        record_event(conn, kind, f"{len(given)} at once", to=counts, leader_epoch=leader_epoch)
    elif given:
        at_ms = int(conn.execute(_NOW).scalar_one())
        rows = [
            {
                "event_id": event_id,
                "at_ms": at_ms,
                "kind": kind,
                "cluster_id": None if tenant is None else tenant.cluster_id,
                "tenant_id": None if tenant is None else tenant.tenant_id,
                "subject": name_of(str(subject), WORKER_NAME_MAX),
                "actor": "",
                "detail": orjson.dumps({"to": worker, "leader_epoch": leader_epoch}).decode(),
            }
            for event_id, (subject, tenant, worker) in zip(next_numbers(conn, "event", len(given)), given, strict=True)
        ]
        conn.execute(_INSERT_MANY, rows)


def list_events(
    catalog: Catalog,
    *,
    limit: int,
    below: int | None = None,
    above: int | None = None,
    kind: str | None = None,
    tenant: Tenant | None = None,
    subject: str | None = None,
) -> list[EventRow]:
    """Events, newest first; with `above` those after that number, oldest first, to follow them.

    `kind` is a full kind ("task.moved") or the part before its dot ("task")."""
    conditions: list[ColumnElement[bool]] = []
    if below is not None:
        conditions.append(_E.event_id < below)
    if above is not None:
        conditions.append(_E.event_id > above)
    if kind is not None:
        if not is_name(kind, _KIND_CHARS_MAX):
            return []  # not a valid kind
        below_all = f"{kind}/"  # the character after the dot
        conditions.append(_E.kind == kind if "." in kind else and_(_E.kind > f"{kind}.", _E.kind < below_all))
    if tenant is not None:
        conditions += [_E.cluster_id == tenant.cluster_id, _E.tenant_id == tenant.tenant_id]
    if subject is not None:
        conditions.append(_E.subject == name_of(subject, WORKER_NAME_MAX))  # as it was written
    order = _E.event_id.desc() if above is None else _E.event_id
    with catalog.reading() as conn:
        return [_event_row(row) for row in conn.execute(select(events).where(*conditions).order_by(order).limit(limit))]


def prune_events(catalog: Catalog, *, keep: int = KEEP_EVENTS, days: int = KEEP_DAYS) -> int:
    """Delete events older than `days`, and all but the newest `keep`; the number deleted. Works in short transactions,
    so that writers do not wait."""
    pruned = 0
    while True:
        with catalog.transaction() as conn:
            floor = int(conn.execute(_NEWEST).scalar_one()) - keep
            old = select(_E.event_id).where(
                (_E.event_id <= floor) | (_E.at_ms < now_ms() - literal_column(str(days * _DAY_MS)))
            )
            ids = list(conn.execute(old.order_by(_E.event_id).limit(_PRUNED_AT_ONCE)).scalars())
            if ids:
                conn.execute(events.delete().where(_E.event_id.in_(ids)))
        pruned += len(ids)
        if len(ids) < _PRUNED_AT_ONCE:
            return pruned


def _event_row(row: Any) -> EventRow:
    return record_of(
        EventRow,
        row,
        tenant=None if row.cluster_id is None else Tenant(row.cluster_id, row.tenant_id),
        detail=orjson.loads(row.detail),
    )
