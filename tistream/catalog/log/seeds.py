"""Seeds: complete sets of rows from the upstream, and the segments of each table.

A seed becomes visible in one transaction when its manifest and all its files are in the bucket; adding it again has no
effect. A seed covers the whole tenant (`table_id` 0) or one logical table. Retention deletes seeds below the floor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import and_, bindparam, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.records import record_of
from tistream.catalog.database.tables import of_asked_tenant, seed_segments, seeds, tenant_ids
from tistream.catalog.log.objects import ObjectKind, insert_live
from tistream.catalog.log.segments import segment_of_table
from tistream.catalog.rows.seeds import SeedRow, SeedState
from tistream.catalog.rows.segments import SegmentRow
from tistream.catalog.tenancy.tenants import lock_tenant
from tistream.codec.seed_file import SeedManifest, manifest_key
from tistream.errors import Fenced
from tistream.ids import Tenant

_SEEDS = select(seeds).where(of_asked_tenant(seeds)).order_by(seeds.c.ts.desc(), seeds.c.table_id)
_KNOWN = select(seeds.c.state).where(
    of_asked_tenant(seeds), seeds.c.ts == bindparam("asked_ts"), seeds.c.table_id == bindparam("asked_table")
)
_s = seed_segments.c
_SEGMENTS = (
    select(seeds.c.ts.label("seed_ts"), seed_segments)
    .select_from(
        seeds.outerjoin(
            seed_segments,
            and_(
                _s.cluster_id == seeds.c.cluster_id,
                _s.tenant_id == seeds.c.tenant_id,
                _s.ts == seeds.c.ts,
                _s.seed_table_id == seeds.c.table_id,
                _s.table_id == bindparam("asked_table"),
            ),
        )
    )
    .where(of_asked_tenant(seeds), seeds.c.ts == bindparam("asked_ts"), seeds.c.table_id == bindparam("asked_seed"))
    .order_by(_s.start_key)
)


def add_seed(catalog: Catalog, manifest: SeedManifest, manifest_bytes: int) -> bool:
    """Make a seed visible; False when it is already. Fenced when one of its objects was tombstoned, TenantDeleted when
    its tenant was deleted."""
    parameters = {**tenant_ids(manifest.tenant), "asked_ts": manifest.ts, "asked_table": manifest.table_id}
    try:
        return _add(catalog, manifest, manifest_bytes, parameters)
    except Fenced:  # a tombstone, or another process added the same seed
        with catalog.reading() as conn:
            if conn.execute(_KNOWN, parameters).scalar() is None:
                raise
        return False


def _add(catalog: Catalog, manifest: SeedManifest, manifest_bytes: int, parameters: Mapping[str, Any]) -> bool:
    tenant = manifest.tenant
    key = str(manifest_key(tenant, manifest.ts, manifest.table_id))
    with catalog.transaction() as conn:
        if conn.execute(_KNOWN, parameters).scalar() is not None:
            return False
        lock_tenant(conn, tenant)  # refuses a deleted tenant
        insert_live(conn, tenant, key, ObjectKind.SEED, manifest_bytes)
        for n, size in manifest.file_bytes.items():
            insert_live(conn, tenant, manifest.key_of(n), ObjectKind.SEED, size)
        conn.execute(
            seeds.insert().values(created_ms=now_ms()),
            {
                "cluster_id": tenant.cluster_id,
                "tenant_id": tenant.tenant_id,
                "ts": manifest.ts,
                "table_id": manifest.table_id,
                "state": SeedState.COMPLETE,
                "manifest_key": key,
                "row_count": manifest.rows,
                "bytes": sum(manifest.file_bytes.values()),
            },
        )
        if rows := _segment_values(manifest):
            conn.execute(seed_segments.insert(), rows)
        return True


def list_seeds(catalog: Catalog, tenant: Tenant) -> list[SeedRow]:
    """All seeds of a tenant, newest first."""
    with catalog.reading() as conn:
        return [
            record_of(SeedRow, row, tenant=tenant, rows=row.row_count)
            for row in conn.execute(_SEEDS, tenant_ids(tenant))
        ]


def seed_segments_of(catalog: Catalog, seed: SeedRow, physical_id: int) -> Sequence[SegmentRow] | None:
    """The segments of a physical table in a seed, in key order; empty without rows, None when the seed was deleted."""
    parameters = {"asked_ts": seed.ts, "asked_seed": seed.table_id, "asked_table": physical_id}
    with catalog.reading() as conn:
        rows = conn.execute(_SEGMENTS, {**tenant_ids(seed.tenant), **parameters}).all()
    if not rows:
        return None
    return [segment_of_table(row) for row in rows if row.object_key is not None]


def _segment_values(manifest: SeedManifest) -> list[dict[str, Any]]:
    return [
        {
            "object_key": manifest.key_of(s.n),
            "segment_no": s.segment_no,
            "cluster_id": manifest.tenant.cluster_id,
            "tenant_id": manifest.tenant.tenant_id,
            "ts": manifest.ts,
            "seed_table_id": manifest.table_id,
            "table_id": s.table_id,
            "start_key": s.start_key,
            "end_key": s.end_key,
            "row_count": s.rows,
            "byte_offset": s.offset,
            "byte_length": s.length,
            "crc": s.crc,
        }
        for s in manifest.segments
    ]
