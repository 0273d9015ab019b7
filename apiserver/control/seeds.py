"""Routes of seeds: pushers publish complete seeds, readers list them.

    POST /v1/clusters/{c}/tenants/{t}/seeds     publish a seed whose manifest and files are in the bucket
    GET  /v1/clusters/{c}/tenants/{t}/seeds     list visible seeds
    GET  /v1/clusters/{c}/tenants/{t}/seeds/wanted     tables that a column change rewrote, without a seed since

`tistream.log.published_seeds` says what makes a seed visible.
"""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from apiserver.answers.fields import Tso
from schemas import reseeding
from schemas.registry.schema_registry import SchemaRegistry
from schemas.reseeding import wanted_seeds
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.service_time import service_time
from tistream.catalog.log.bases import list_bases
from tistream.catalog.log.seeds import list_seeds
from tistream.catalog.rows.seeds import SeedRow
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.clock import Clock
from tistream.http.auth.access import needs
from tistream.http.auth.core.roles import Right
from tistream.http.parameters import PathTenant
from tistream.ids import Tenant
from tistream.limits import INT_MAX
from tistream.log.published_seeds import publish
from tistream.objectstore.protocol import ObjectStore


class NewSeed(BaseModel):
    """A seed to publish, complete in the bucket."""

    ts: str = Field(description="timestamp of its rows", pattern=r"^\d{1,19}$")
    table_id: int = Field(default=0, ge=0, le=INT_MAX, description="id of the table; 0 = the whole tenant")


class Seed(BaseModel):
    """A complete seed."""

    ts: Tso = Field(description="timestamp of its rows")
    table_id: int = Field(description="0 = the whole tenant")
    rows: int
    bytes: int


class Seeds(BaseModel):
    """The seeds of a tenant, newest first."""

    items: list[Seed]


class TableRead(BaseModel):
    """A snapshot read of all rows of a table."""

    ts: Tso = Field(description="timestamp of the read, and of the seed")
    physical_ids: list[int] = Field(description="ids in record keys: the table's, or those of its partitions")


class WantedSeed(BaseModel):
    """A table that needs a seed."""

    table_id: int
    database: str = Field(examples=["shop"])
    table: str = Field(examples=["customers"])
    ddl_ts: Tso = Field(description="when the rewritten column took effect")
    reads: list[TableRead] = Field(description="any of them will do; the first is the best")


class WantedSeeds(BaseModel):
    """The tables that need a seed."""

    items: list[WantedSeed]


def seed_router(
    catalog: Catalog, store: ObjectStore, registry: SchemaRegistry, clock: Clock, skew_max_ms: int
) -> APIRouter:
    """The routes over this catalog and bucket. `skew_max_ms`: how far ahead of the service's time a seed may be."""
    routes = APIRouter(tags=["control"], dependencies=[needs(Right.PUSH)])
    base = "/v1/clusters/{cluster_id}/tenants/{tenant_id}/seeds"

    @routes.post(
        base,
        status_code=201,
        operation_id="add_seed",
        summary="Make a seed visible",
        responses={200: {"model": Seed, "description": "it is visible already"}},
    )
    def add(tenant: PathTenant, new: NewSeed, response: Response) -> Seed:
        tenant = _with_tables(catalog, tenant)
        time = service_time(catalog, clock, skew_max_ms)
        if not publish(catalog, store, tenant, int(new.ts), new.table_id, time):
            response.status_code = 200
        seeds = list_seeds(catalog, tenant)
        return next(_shown(row) for row in seeds if (row.ts, row.table_id) == (int(new.ts), new.table_id))

    @routes.get(base, operation_id="list_seeds", summary="List seeds of a tenant, newest first")
    def seeds(tenant: PathTenant) -> Seeds:
        tenant = _with_tables(catalog, tenant)
        return Seeds(items=[_shown(row) for row in list_seeds(catalog, tenant)])

    @routes.get(f"{base}/wanted", summary="List tables that need a new seed")
    def list_wanted_seeds(tenant: PathTenant) -> WantedSeeds:
        tenant = _with_tables(catalog, tenant)
        seeds = wanted_seeds(
            registry.history(tenant), list_seeds(catalog, tenant), lambda ids: list_bases(catalog, tenant, ids)
        )
        return WantedSeeds(items=[_wanted(each) for each in seeds])

    return routes


def _with_tables(catalog: Catalog, tenant: Tenant) -> Tenant:
    row = get_tenant(catalog, tenant)
    row.check_tables()
    return row.tenant


def _wanted(seed: reseeding.WantedSeed) -> WantedSeed:
    return WantedSeed(
        table_id=seed.table.id,
        database=seed.table.db,
        table=seed.table.name,
        ddl_ts=str(seed.ddl_ts),
        reads=[TableRead(ts=str(read.ts), physical_ids=list(read.physical_ids)) for read in seed.reads],
    )


def _shown(row: SeedRow) -> Seed:
    return Seed(ts=str(row.ts), table_id=row.table_id, rows=row.rows, bytes=row.bytes)
