"""Readers of the log of a RawKV tenant: pages of any size, from any place, each handed to the rules (`raw_rules`)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from reading.reader import LogReader
from simulator.dst.database import SimCatalog
from simulator.dst.raw_floors import judge
from simulator.dst.raw_rules import RawRules
from simulator.dst.store import SimStore
from simulator.raw_workload import RawWorkload
from tistream.catalog.tenancy.kinds import Keyspace, TenantKind
from tistream.catalog.tenancy.tenants import get_tenant, register_tenant
from tistream.catalog.work.tasks import frontier
from tistream.codec.raw.keys import KeyMode, keyspace_range
from tistream.errors import BeyondQuarantine, ErrorKind, TiStreamError, TsExpired
from tistream.ids import Tenant

_KEYSPACE = 1
RAW_KEYS = keyspace_range(KeyMode.RAW, _KEYSPACE)  #: of the tenant


def register_keyspace(catalog: SimCatalog, tenant: Tenant) -> None:
    """The tenant is a keyspace; there may be others in the cluster."""
    register_tenant(catalog, tenant, kind=TenantKind.RAW, keyspace=Keyspace(id=_KEYSPACE))


def rules_of(workload: object, violated: Callable[[str], None]) -> RawRules | None:
    """The rules of the tenant's log, if it is one of RawKV."""
    return RawRules(workload.versions, RAW_KEYS, violated) if isinstance(workload, RawWorkload) else None


def feed_of(world: Any) -> Mapping[str, Any]:
    """Arguments of a source that follows the keyspace; none when the scenario has no RawKV."""
    return {} if world.raw is None else {"raw_keys": RAW_KEYS, "opened": world.raw.opened}


def read_at_random(
    world: Any, stopping: Any, who: str, tenant: Tenant, catalog: SimCatalog, reader: LogReader, rand: random.Random
) -> None:
    """Read pages from where the last one ended, or from an older place."""
    places = [0]
    while not stopping.wait(0.3 + rand.random() * 2):
        after = rand.choice((places[-1], rand.choice(places), places[0]))
        try:
            places.append(read_page(world, who, tenant, catalog, reader, after, rand.choice((1, 3, 10_000))))
        except TsExpired as e:
            places = [int(str(e.facts["earliest_ts"]))]
        except BeyondQuarantine:
            continue
        except TiStreamError as e:
            if e.kind not in (ErrorKind.RETRY, ErrorKind.CORRUPT):
                raise


def read_page(
    world: Any, who: str, tenant: Tenant, catalog: SimCatalog, reader: LogReader, after: int, rows: int
) -> int:
    """Read one page of the log as far as it is written; where it ends."""
    durable_ts = min(row.durable_ts for row in frontier(catalog, tenant))
    page = reader.page(tenant, after=after, upto=durable_ts, rows=rows)
    world.raw.read(who, page.rows, after, page.upto)
    world.oracle.served(durable_ts, page.rows.num_rows)
    if world.replication is not None:
        world.replication.rules.paged(who, page.rows, after, page.upto)
    return page.upto


def read_whole(world: Any, tenant: Tenant, catalog: SimCatalog, store: SimStore, reader: LogReader, upto: int) -> None:
    """Read all of the log, and judge it."""
    at = floor_ts = get_tenant(catalog, tenant).floor_ts
    while True:
        try:
            at = read_page(world, "final reader", tenant, catalog, reader, at, 100_000)
        except TsExpired:  # by a process that had not heard yet that all rest
            at = floor_ts = get_tenant(catalog, tenant).floor_ts
            continue
        if at >= upto:
            break
    if not floor_ts:
        world.raw.at_rest()
    if world.replication is not None:
        world.replication.rules.at_rest()
    judge(world, tenant, catalog, store, reader, upto)
