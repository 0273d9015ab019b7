"""Items that an unexpected error has stopped, recorded where all processes and operators see them.

A row names the role that stopped ("activation", "collection"), the item (a tenant, a store or a job), the error and
the object that it is about. (role, item) is the key: one process at a time works on an item in a role. The row is
deleted when the role succeeds or gives the item up. Tasks keep their error in their own row (`tasks.stop_task`).

`StoppedItemRecords` is the only writer: it syncs the rows with a `Containment` after each round of a role, or after the
next one when the catalog is unavailable. A row not tried for STALE_MS belongs to a role that no longer exists and is
deleted (`forget_stale_items`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic

from sqlalchemy import and_, bindparam, func, literal, literal_column, select, union_all

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import EventKind, record_event
from tistream.catalog.database.records import record_of
from tistream.catalog.database.tables import next_numbers, of_tenant, stopped_items
from tistream.catalog.tenancy.served import IS_OPEN
from tistream.errors import NotFound
from tistream.ids import Tenant
from tistream.model.problem import Problem
from tistream.objectstore.layout import SchemaSnapKey, parse
from tistream.runtime.containment import Containment, Item

STALE_MS = 3_600_000  #: a stopped item is retried, and its row written, at least every 10 minutes
STOPPED_ITEMS_MAX = 1000  #: in one listing
ACTIVATION = "activation"  #: the role that waits for a tenant's first schema snapshot
_REWRITE_TRIES = 1.5  #: the row is rewritten when its tries have grown by this factor ...
_REWRITE_S = 300.0  #: ... or after this time
_TEXT_MAX = 8000  #: a TEXT column holds 64 KiB of UTF-8
_ITEM_MAX = 128


class Scope(StrEnum):
    """What kind of item has stopped."""

    TENANT = "tenant"
    STORE = "store"
    JOB = "job"
    TASK = "task"  #: in listings only: a task's error is in its own row


STORED = (Scope.TENANT, Scope.STORE, Scope.JOB)  #: the scopes stored in rows


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedItem:
    """One item that a role cannot work on."""

    role: str
    item: str  #: its name within the role; ASCII, at most 128 characters
    scope: Scope
    tenant: Tenant | None
    code: str
    message: str
    object: str  #: the object that the error names; empty when it names none
    tries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedItemRow:
    """A stop as the catalog has it."""

    item_id: int
    stopped: StoppedItem
    since_ms: int  #: Unix milliseconds by the database's clock
    last_failed_ms: int  #: of the last recorded failure
    resumed: bool  #: an operator requested a retry that has not happened yet


_s = stopped_items.c
_IS_ITEM = and_(_s.role == bindparam("asked_role"), _s.item == bindparam("asked_item"))
_OF_ITEM = select(stopped_items).where(_IS_ITEM).with_for_update()
_OF_ROLE = select(stopped_items).where(_s.role == bindparam("asked_role")).order_by(_s.item_id)
_RESUMED = select(_s.item).where(_s.role == bindparam("asked_role"), _s.resumed)
_ONE = select(stopped_items).where(_s.item_id == bindparam("asked_id"))
_COUNTS = union_all(
    select(_s.scope, func.count().label("number")).group_by(_s.scope),
    select(literal("store").label("scope"), func.count()).where(IS_OPEN),
)


def record_stopped_item(catalog: Catalog, stopped: StoppedItem) -> None:
    """Record that an item has stopped or failed again. Clears a pending resume."""
    failure = {
        "code": stopped.code[:32],
        "message": stopped.message[:_TEXT_MAX],
        "object": stopped.object[:_TEXT_MAX],
        "tries": stopped.tries,
        "resumed": False,
    }
    with catalog.transaction() as conn:
        row = conn.execute(_OF_ITEM, {"asked_role": stopped.role, "asked_item": stopped.item}).one_or_none()
        if row is not None:
            conn.execute(
                stopped_items.update().where(_s.item_id == row.item_id).values(last_failed_ms=now_ms(), **failure)
            )
            return
        item_id = next_numbers(conn, "stopped item", 1)[0]
        values = {
            "item_id": item_id,
            "role": stopped.role,
            "item": stopped.item,
            "scope": stopped.scope,
            "cluster_id": None if stopped.tenant is None else stopped.tenant.cluster_id,
            "tenant_id": None if stopped.tenant is None else stopped.tenant.tenant_id,
            **failure,
        }
        conn.execute(stopped_items.insert().values(since_ms=now_ms(), last_failed_ms=now_ms()), values)
        _record(conn, EventKind.ITEM_STOPPED, stopped, error=f"{stopped.code} {stopped.message}"[:1000])


def clear_stopped_item(catalog: Catalog, role: str, item: str) -> bool:
    """Record that an item works again or no longer exists; False when it had not stopped."""
    with catalog.transaction() as conn:
        row = conn.execute(_OF_ITEM, {"asked_role": role, "asked_item": item}).one_or_none()
        if row is None:
            return False
        conn.execute(stopped_items.delete().where(_s.item_id == row.item_id))
        _record(conn, EventKind.ITEM_WORKS, _row(row).stopped)
        return True


def resume_stopped_item(catalog: Catalog, item_id: int, *, actor: str = "") -> bool:
    """Ask the role to retry the item now; False when it works already."""
    with catalog.transaction() as conn:
        row = conn.execute(_ONE.with_for_update(), {"asked_id": item_id}).one_or_none()
        if row is None:
            return False
        conn.execute(stopped_items.update().where(_s.item_id == item_id).values(resumed=True))
        _record(conn, EventKind.ITEM_RESUMED, _row(row).stopped, actor=actor)
        return True


def get_stopped_item(catalog: Catalog, item_id: int) -> StoppedItemRow:
    """The stop with this id. NotFound when it does not exist or was cleared."""
    with catalog.reading() as conn:
        row = conn.execute(_ONE, {"asked_id": item_id}).one_or_none()
    if row is None:
        raise NotFound(f"Stop {item_id} not found: the item may work again.", stop_id=item_id)
    return _row(row)


def list_stopped_items(
    catalog: Catalog, tenant: Tenant | None = None, *, after: int = 0, limit: int = STOPPED_ITEMS_MAX
) -> list[StoppedItemRow]:
    """The stopped items of one tenant, or of all, by id."""
    query = select(stopped_items).where(_s.item_id > after).order_by(_s.item_id).limit(limit)
    if tenant is not None:
        query = query.where(of_tenant(stopped_items, tenant))
    with catalog.reading() as conn:
        return [_row(row) for row in conn.execute(query)]


def is_snapshot_refused(catalog: Catalog, tenant: Tenant) -> bool:
    """Whether every schema snapshot that a waiting tenant pushed is unusable."""
    of_role = (row.stopped for row in list_stopped_items(catalog, tenant) if row.stopped.role == ACTIVATION)
    return any(isinstance(parse(stopped.object), SchemaSnapKey) for stopped in of_role if stopped.object)


def count_stopped_items(catalog: Catalog) -> Mapping[str, int]:
    """The number of stopped items by scope; a quarantined store counts as one for each record."""
    counts = Counter[str]()
    with catalog.reading() as conn:
        for row in conn.execute(_COUNTS):
            counts[row.scope] += int(row.number)
    return +counts


def stopped_items_of_role(catalog: Catalog, role: str) -> list[StoppedItemRow]:
    """The recorded stops of a role."""
    with catalog.reading() as conn:
        return [_row(row) for row in conn.execute(_OF_ROLE, {"asked_role": role})]


def resumed_items(catalog: Catalog, role: str) -> list[str]:
    """The items of a role with a pending resume."""
    with catalog.reading() as conn:
        return list(conn.execute(_RESUMED, {"asked_role": role}).scalars())


def forget_stale_items(catalog: Catalog, *, older_ms: int = STALE_MS) -> int:
    """Delete stops that were not tried for `older_ms`; the number deleted."""
    with catalog.transaction() as conn:
        old = _s.last_failed_ms < now_ms() - literal_column(str(older_ms))
        return conn.execute(stopped_items.delete().where(old)).rowcount


class StoppedItemRecords(Generic[Item]):
    """Keeps the stopped items of one Containment in the catalog. `sync` and `forget` are for the thread that runs the
    items, `take_resumed` for any."""

    def __init__(
        self,
        catalog: Catalog,
        role: str,
        contained: Containment[Item],
        *,
        scope: Callable[[Item], tuple[Scope, Tenant | None, str]],
        item_of: Callable[[StoppedItemRow], Item | None],
        seconds: Callable[[], float],
    ) -> None:
        """`scope(item)` gives scope, tenant and name; `item_of` finds the item of a row from an earlier process, or
        None when it is not this process's; `seconds` is a monotonic clock."""
        self._catalog, self._role, self._contained = catalog, role, contained
        self._scope, self._item_of, self._seconds = scope, item_of, seconds
        self._known: dict[Item, tuple[Problem, int, float]] | None = None
        self._resumed: set[Item] = set()  #: whose resumed retry is not recorded yet

    def load(self) -> None:
        """Load the role's recorded stops, once, before the first round."""
        if self._known is not None:
            return
        known: dict[Item, tuple[Problem, int, float]] = {}
        for row in stopped_items_of_role(self._catalog, self._role):
            item = self._item_of(row)
            if item is None:
                continue
            was = row.stopped
            facts = {"object": was.object} if was.object else {}
            self._contained.remember(item, code=was.code, message=was.message, facts=facts, tries=was.tries)
            if (problem := self._contained.stopped().get(item)) is not None:
                known[item] = problem, was.tries, self._seconds()
        self._known = known

    def sync(self) -> None:
        """After a round: record what stopped, failed again or works again. Raises catalog errors; the next call
        continues."""
        self.load()
        known = self._known if self._known is not None else {}
        stopped = self._contained.stopped()
        for item, problem in stopped.items():
            tries = self._contained.tries(item)
            if self._must_write(item, known.get(item), problem, tries):
                record_stopped_item(self._catalog, self._stopped(item, problem, tries))
                known[item] = problem, tries, self._seconds()
                self._resumed.discard(item)
        for item in [item for item in known if item not in stopped]:
            clear_stopped_item(self._catalog, self._role, self._name(item))
            del known[item]
            self._resumed.discard(item)

    def take_resumed(self) -> bool:
        """Retry the items that an operator resumed; whether there were any. Reads the catalog only while something is
        stopped."""
        stopped = self._contained.stopped()
        if not stopped:
            return False
        names = set(resumed_items(self._catalog, self._role))
        resumed = [item for item in stopped if self._name(item) in names and item not in self._resumed]
        for item in resumed:
            self._resumed.add(item)
            self._contained.resume(item)
        return bool(resumed)

    def forget(self) -> None:
        """Drop all state: another process works on the items now."""
        self._contained.forget_all()
        self._known = None
        self._resumed = set()

    def _must_write(self, item: Item, known: tuple[Problem, int, float] | None, problem: Problem, tries: int) -> bool:
        if known is None or known[0] != problem:
            return True
        if tries == known[1]:
            return False
        grown = tries < known[1] or tries >= known[1] * _REWRITE_TRIES
        return item in self._resumed or grown or self._seconds() - known[2] >= _REWRITE_S

    def _name(self, item: Item) -> str:
        return self._scope(item)[2].encode("ascii", "replace").decode()[:_ITEM_MAX]

    def _stopped(self, item: Item, problem: Problem, tries: int) -> StoppedItem:
        scope, tenant, _ = self._scope(item)
        named = problem.facts.get("object") or problem.facts.get("object_key") or problem.facts.get("key") or ""
        return StoppedItem(
            role=self._role,
            item=self._name(item),
            scope=scope,
            tenant=tenant,
            code=problem.code,
            message=problem.message,
            object=named.hex() if isinstance(named, bytes) else str(named),
            tries=tries,
        )


def _record(conn: Any, kind: EventKind, stopped: StoppedItem, *, actor: str = "", **detail: object) -> None:
    subject = f"{stopped.role} {stopped.item}"
    record_event(conn, kind, subject, tenant=stopped.tenant, actor=actor, scope=stopped.scope, **detail)


def _row(row: Any) -> StoppedItemRow:
    return StoppedItemRow(
        item_id=row.item_id,
        stopped=record_of(
            StoppedItem,
            row,
            scope=Scope(row.scope),
            tenant=None if row.cluster_id is None else Tenant(row.cluster_id, row.tenant_id),
        ),
        since_ms=int(row.since_ms),
        last_failed_ms=int(row.last_failed_ms),
        resumed=bool(row.resumed),
    )
