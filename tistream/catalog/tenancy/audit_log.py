"""The audit log: who did what, from where, when, on what, with what result. Entries are added and completed, and leave
only with their age.

    open_entry --the operation--> close_entry       one row: a process that dies in between leaves `unknown`
    add_entries --more of the same--> recount       refusals: equal ones of a minute are one row with a number

Numbers come from a counter whose row stays locked until the transaction ends, so they are in commit order, and a reader
of "above the last number seen" misses no entry. Times are by the database's clock. Secrets and bodies of requests never
reach this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BindParameter, bindparam, literal_column, or_, select
from sqlalchemy.sql.elements import ColumnElement

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.columns import WORKER_NAME_MAX
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.engine import now_ms as time_of
from tistream.catalog.database.names import is_name, name_of
from tistream.catalog.database.records import record_of
from tistream.catalog.database.tables import audit_log, next_numbers, of_tenant
from tistream.catalog.rows.audit import TARGET_CHARS_MAX, AuditEntry, Deed, Doer, Ended, Outcome, Result
from tistream.ids import Tenant

_NAME_CHARS_MAX = 255
_PRUNED_AT_ONCE = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryFilter:
    """Which entries; None = all."""

    since_ms: int | None = None  #: begun at or after
    until_ms: int | None = None  #: begun before
    principal: str | None = None  #: name or id of a key, or the user of a command
    operation: str | None = None
    tenant: Tenant | None = None
    result: str | None = None


_L = audit_log.c
_INSERT = audit_log.insert()
_OPEN = audit_log.insert().values(at_ms=now_ms(), last_ms=now_ms())
_ENDING: dict[str, BindParameter[Any]] = {
    name: bindparam(f"new_{name}") for name in ("result", "status", "code", "cluster_id", "tenant_id", "target")
}
_GIVEN = [each.key for each in _ENDING.values()]
_CLOSE = audit_log.update().where(_L.entry_no == bindparam("asked")).values(last_ms=now_ms(), **_ENDING)
_RECOUNT = (
    audit_log.update()
    .where(_L.entry_no == bindparam("asked"))
    .values(times=bindparam("new_times"), target=bindparam("new_target"), last_ms=now_ms() - bindparam("age_ms"))
)
_UNDECIDED = Outcome(result=Result.UNKNOWN)


def open_entry(catalog: Catalog, doer: Doer, deed: Deed) -> int:
    """Record an operation that is about to begin; the number of its entry."""
    with catalog.transaction() as conn:
        (entry_no,) = next_numbers(conn, "audit entry", 1)
        conn.execute(_OPEN, {"entry_no": entry_no, "times": 1, **_columns(doer, deed, _UNDECIDED)})
        return entry_no


def close_entry(catalog: Catalog, entry_no: int, deed: Deed, outcome: Outcome) -> None:
    """Record how it ended, and on what if that is only known then."""
    columns = {f"new_{name}": value for name, value in (_of_deed(deed) | _of_outcome(outcome)).items()}
    with catalog.transaction() as conn:
        conn.execute(_CLOSE, {"asked": entry_no, **{name: columns[name] for name in _GIVEN}})


def add_entries(catalog: Catalog, ended: Sequence[Ended]) -> Sequence[int]:
    """Record what has ended already; the numbers of the entries. A fixed number of statements."""
    if not ended:
        return ()
    with catalog.transaction() as conn:
        numbers = next_numbers(conn, "audit entry", len(ended))
        at_ms = time_of(conn)
        conn.execute(_INSERT, [_row(at_ms, entry_no, each) for entry_no, each in zip(numbers, ended, strict=True)])
        return numbers


def recount(catalog: Catalog, counted: Mapping[int, Ended]) -> None:
    """Set how many operations entries stand for."""
    rows = [
        {"asked": n, "new_times": each.times, "new_target": each.deed.target, "age_ms": each.last_age_ms}
        for n, each in sorted(counted.items())
    ]
    if rows:
        with catalog.transaction() as conn:
            conn.execute(_RECOUNT, rows)


def list_entries(
    catalog: Catalog,
    which: EntryFilter,
    *,
    limit: int,
    before: tuple[int, int] | None = None,
    above: int | None = None,
) -> list[AuditEntry]:
    """Entries, newest first, from `before` (at_ms, entry_no) on; with `above`, those after that number, in order."""
    conditions = _conditions(which)
    if before is not None:
        at_ms, entry_no = before
        conditions += [_L.at_ms <= at_ms, or_(_L.at_ms < at_ms, _L.entry_no < entry_no)]
    order: list[ColumnElement[Any]] = [_L.at_ms.desc(), _L.entry_no.desc()]
    if above is not None:
        conditions.append(_L.entry_no > above)
        order = [_L.entry_no]
    wanted = select(audit_log).where(*conditions).order_by(*order).limit(limit)
    with catalog.reading() as conn:
        return [_entry(row) for row in conn.execute(wanted)]


def prune_audit_log(catalog: Catalog, *, keep_s: int) -> int:
    """Delete entries that began more than `keep_s` ago, in short transactions; the number deleted. 0 keeps all."""
    pruned = 0
    while keep_s:
        with catalog.transaction() as conn:
            old = select(_L.entry_no).where(_L.at_ms < now_ms() - literal_column(str(keep_s * 1000)))
            numbers = list(conn.execute(old.order_by(_L.at_ms, _L.entry_no).limit(_PRUNED_AT_ONCE)).scalars())
            if numbers:
                conn.execute(audit_log.delete().where(_L.entry_no.in_(numbers)))
        pruned += len(numbers)
        if len(numbers) < _PRUNED_AT_ONCE:
            break
    return pruned


def _conditions(which: EntryFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if which.since_ms is not None:
        conditions.append(_L.at_ms >= which.since_ms)
    if which.until_ms is not None:
        conditions.append(_L.at_ms < which.until_ms)
    if which.principal is not None:
        named = _L.principal == which.principal
        conditions.append(or_(named, _L.key_id == which.principal) if is_name(which.principal, 32) else named)
    if which.operation is not None:
        conditions.append(_L.operation == name_of(which.operation, WORKER_NAME_MAX))
    if which.tenant is not None:
        conditions.append(of_tenant(audit_log, which.tenant))
    if which.result is not None:
        conditions.append(_L.result == name_of(which.result, 32))
    return conditions


def _row(at_ms: int, entry_no: int, ended: Ended) -> dict[str, Any]:
    times = {"at_ms": at_ms - ended.first_age_ms, "last_ms": at_ms - ended.last_age_ms, "times": ended.times}
    return {"entry_no": entry_no, **times, **_columns(ended.doer, ended.deed, ended.outcome)}


def _columns(doer: Doer, deed: Deed, outcome: Outcome) -> dict[str, Any]:
    """All but the number and the times. Requests choose some of them, so each is cut to its column."""
    return {
        "key_id": name_of(doer.key_id, 32),
        "principal": _text(doer.principal, _NAME_CHARS_MAX),
        "role": name_of(doer.role, 32),
        "address": _text(doer.address, _NAME_CHARS_MAX),
        **_of_deed(deed),
        **_of_outcome(outcome),
    }


def _of_deed(deed: Deed) -> dict[str, Any]:
    tenant = deed.tenant
    return {
        "operation": name_of(deed.operation, WORKER_NAME_MAX),
        "cluster_id": None if tenant is None else tenant.cluster_id,
        "tenant_id": None if tenant is None else tenant.tenant_id,
        "target": _text(deed.target, TARGET_CHARS_MAX),
        "request_id": name_of(deed.request_id, 64),
    }


def _of_outcome(outcome: Outcome) -> dict[str, Any]:
    return {"result": outcome.result, "status": outcome.status, "code": name_of(outcome.code, 32)}


def _text(text: str, most: int) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")[:most]


def _entry(row: Any) -> AuditEntry:
    return record_of(AuditEntry, row, tenant=None if row.cluster_id is None else Tenant(row.cluster_id, row.tenant_id))
