"""Bases: all rows of a physical table at a timestamp, built by compaction.

A base is made of its predecessor (an older base, a seed, or nothing) and the log since. `add_bases` is one transaction:

    every `durable_ts` of the tenant's data has passed the bases   else: a defect
    no store is quarantined with a lower `good_ts`                 else: no effect
    of each base: its predecessor still exists, locked; the log still begins at or below it, and no base of the table
    has this timestamp                                             else: it is left out
    insert the objects of the others, live, the bases and their segments

A floor may rise while bases are built: only those that were built from below it are left out. A transaction that
deletes log below a base must therefore also delete the bases that depend on it: no base is ever added whose log was
deleted. `retire_bases` is one transaction too: rows are deleted, and objects without a segment become superseded under
the next replacement number, which read leases protect. The newest base of a table is never retired, nor is one at the
floor: reads of a tenant without tables start there. Both lock the tenant.

Two bases of one table at one timestamp hold the same rows; the first one added stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, and_, bindparam, exc, func, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog, GuardFailed, is_duplicate
from tistream.catalog.database.tables import (
    base_segments,
    bases,
    of_asked_tenant,
    of_tenant,
    seeds,
    tasks,
    tenant_ids,
)
from tistream.catalog.log.objects import ObjectKind, insert_all_live, replace_unnamed
from tistream.catalog.log.segments import segment_of_table, segment_values
from tistream.catalog.rows.bases import BaseRow, NewBase
from tistream.catalog.rows.seeds import SeedRow
from tistream.catalog.rows.segments import SegmentRow
from tistream.catalog.rows.tenants import TaskKind
from tistream.catalog.tenancy.served import good_ts_of_asked_tenant
from tistream.catalog.tenancy.tenants import lock_tenant
from tistream.errors import NotFound, TenantDeleted, invariant
from tistream.ids import Tenant

_b, _s = bases.c, base_segments.c
_IDS_AT_ONCE = 500
_LISTED = select(bases).where(of_asked_tenant(bases)).order_by(_b.ts.desc(), _b.table_id)
_SEGMENTS = (
    select(bases.c.row_count.label("base_rows"), base_segments)
    .select_from(
        bases.outerjoin(
            base_segments,
            and_(
                _s.cluster_id == _b.cluster_id, _s.tenant_id == _b.tenant_id, _s.table_id == _b.table_id, _s.ts == _b.ts
            ),
        )
    )
    .where(of_asked_tenant(bases), _b.table_id == bindparam("asked_table"), _b.ts == bindparam("asked_ts"))
    .order_by(_s.start_key)
)


def list_bases(catalog: Catalog, tenant: Tenant, table_ids: Collection[int] | None = None) -> list[BaseRow]:
    """The bases of these physical tables, or of all, newest first."""
    wanted = [None] if table_ids is None else _some(sorted(table_ids))
    rows: list[BaseRow] = []
    for ids in wanted:
        query = _LISTED if ids is None else _LISTED.where(_b.table_id.in_(ids))
        with catalog.reading() as conn:
            rows += [_base_row(tenant, row) for row in conn.execute(query, tenant_ids(tenant))]
    return sorted(rows, key=lambda base: (-base.ts, base.table_id))


def base_segments_of(catalog: Catalog, base: BaseRow) -> Sequence[SegmentRow] | None:
    """The segments of a base, in key order; None when it was retired."""
    parameters = {"asked_table": base.table_id, "asked_ts": base.ts}
    with catalog.reading() as conn:
        rows = conn.execute(_SEGMENTS, {**tenant_ids(base.tenant), **parameters}).all()
    if not rows:
        return None
    return [segment_of_table(row) for row in rows if row.object_key is not None]


def add_bases(
    catalog: Catalog,
    tenant: Tenant,
    new: Sequence[NewBase],
    files: Mapping[str, int],
) -> frozenset[int]:
    """Make bases visible; the ids of the tables whose base was added. `files`: object key -> bytes; those with nothing
    of an added base are left out.

    Left out are bases whose predecessor is gone, or was built on log that retention has given up since, and those of
    tables with one at this timestamp. Without effect when a quarantine with a lower `good_ts` began meanwhile. Fenced
    when an object's key has a row."""
    invariant(bool(new), "there are bases to add")
    try:
        with catalog.transaction() as conn:
            return _add(conn, tenant, new, files)
    except GuardFailed:
        return frozenset()


def retire_bases(catalog: Catalog, tenant: Tenant, gone: Iterable[BaseRow]) -> int:
    """Delete these bases, except the newest of each table and those at the floor; the number deleted."""
    of_table: dict[int, set[int]] = {}
    for base in gone:
        of_table.setdefault(base.table_id, set()).add(base.ts)
    if not of_table:
        return 0
    with catalog.transaction() as conn:
        try:
            _, floor_ts = lock_tenant(conn, tenant)
        except (NotFound, TenantDeleted):
            return 0
        count, keys = 0, set[str]()
        for table_id in sorted(of_table):
            mine = and_(of_tenant(bases, tenant), _b.table_id == table_id)
            there = sorted(conn.execute(select(_b.ts).where(mine).order_by(_b.ts).with_for_update()).scalars())
            ts = sorted(of_table[table_id].intersection(there[:-1]) - {floor_ts})
            held = and_(of_tenant(base_segments, tenant), _s.table_id == table_id, _s.ts.in_(ts))
            keys.update(conn.execute(select(_s.object_key).where(held)).scalars())
            conn.execute(base_segments.delete().where(held))
            count += conn.execute(bases.delete().where(mine, _b.ts.in_(ts))).rowcount
        replace_unnamed(conn, keys, _s.object_key)
    return count


def _add(conn: Connection, tenant: Tenant, new: Sequence[NewBase], files: Mapping[str, int]) -> frozenset[int]:
    try:
        earliest_ts = max(lock_tenant(conn, tenant))
    except (NotFound, TenantDeleted) as e:
        raise GuardFailed from e
    durable_ts = select(func.min(tasks.c.durable_ts)).where(of_tenant(tasks, tenant), tasks.c.kind == TaskKind.DATA)
    edge, newest = int(conn.execute(durable_ts).scalar() or 0), max(base.ts for base in new)
    invariant(newest <= edge, "a base lies at or below the live edge of the log", ts=newest, durable_ts=edge)
    good_ts = conn.execute(good_ts_of_asked_tenant(), tenant_ids(tenant)).scalar()
    if good_ts is not None and newest > good_ts:
        raise GuardFailed
    added = [base for base in sorted(new, key=lambda b: b.table_id) if _may_be_added(conn, tenant, base, earliest_ts)]
    if not added:
        raise GuardFailed
    named = {segment.object_key for base in added for segment in base.segments}
    if named:
        insert_all_live(conn, tenant, {key: files[key] for key in sorted(named)}, ObjectKind.BASE)
    try:
        conn.execute(bases.insert().values(created_ms=now_ms()), [_base_values(tenant, base) for base in added])
    except exc.IntegrityError as e:
        if not is_duplicate(e):
            raise
        raise GuardFailed from e  # another round was first
    if rows := [
        segment_values(base_segments, tenant, s, object_key=s.object_key, table_id=base.table_id, ts=base.ts)
        for base in added
        for s in base.segments
    ]:
        conn.execute(base_segments.insert(), rows)
    return frozenset(base.table_id for base in added)


def _may_be_added(conn: Connection, tenant: Tenant, base: NewBase, earliest_ts: int) -> bool:
    """Whether all that it was made of is still there, and no base of the table has its timestamp."""
    if base.after_ts < earliest_ts or not _lock_previous(conn, tenant, base.previous):
        return False
    there = select(_b.ts).where(of_tenant(bases, tenant), _b.table_id == base.table_id, _b.ts == base.ts)
    return conn.execute(there).first() is None


def _lock_previous(conn: Connection, tenant: Tenant, previous: BaseRow | SeedRow | None) -> bool:
    """Whether it exists; locks it until the transaction ends."""
    if previous is None:
        return True
    table = bases if isinstance(previous, BaseRow) else seeds
    query = select(table.c.ts).where(
        of_tenant(table, tenant), table.c.ts == previous.ts, table.c.table_id == previous.table_id
    )
    return conn.execute(query.with_for_update()).first() is not None


def _some(ids: list[int]) -> list[list[int]]:
    return [ids[at : at + _IDS_AT_ONCE] for at in range(0, len(ids), _IDS_AT_ONCE)]


def _base_row(tenant: Tenant, row: Any) -> BaseRow:
    return BaseRow(
        tenant=tenant, table_id=row.table_id, ts=row.ts, seed_ts=row.seed_ts, rows=row.row_count, bytes=row.bytes
    )


def _base_values(tenant: Tenant, base: NewBase) -> dict[str, Any]:
    return {
        "cluster_id": tenant.cluster_id,
        "tenant_id": tenant.tenant_id,
        "table_id": base.table_id,
        "ts": base.ts,
        "seed_ts": base.seed_ts,
        "row_count": base.rows,
        "bytes": sum(segment.length for segment in base.segments),
    }
