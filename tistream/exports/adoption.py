"""Adopts the seeds that are complete in the bucket and that a restored catalog has no row of.

    LIST seeds/ of each tenant -> manifests without a row -> checked as the API server checks them -> rows

A seed is named by its timestamp, and its pusher may never come again. Nothing is overwritten: what is not a complete
seed is named and left, and its pusher completes it, or an operator deletes it. A seed that retention has retired has
rows of its objects, and stays retired.

The other objects that are named by a timestamp are adopted by who would write them: schema histories by
`schemas.registry.history_store`, pushed schema snapshots by the meta server, which activates from what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from tistream import ts as tso
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.service_time import service_time
from tistream.catalog.log.objects import object_states
from tistream.catalog.log.seeds import list_seeds
from tistream.catalog.rows.tenants import TenantRow
from tistream.catalog.tenancy.tenants import GIVEN_UP, every_tenant
from tistream.clock import Clock
from tistream.codec.seed_file import FILES_PER_SEED_MAX, SeedManifest
from tistream.errors import AheadOfTime, CorruptObject, InvalidInput
from tistream.ids import Tenant
from tistream.log.published_seeds import publish
from tistream.objectstore.layout import SeedKey, parse, seed_prefix, seeds_prefix
from tistream.objectstore.protocol import ObjectStore

LISTED_AT_ONCE = 16  #: tenants whose folders are listed at the same time


def adopt_seeds(catalog: Catalog, store: ObjectStore, clock: Clock, *, say: Callable[[str], None]) -> int:
    """Add the rows of all complete seeds; their number. Those that are not complete are named to `say`."""
    rows = [row for row in every_tenant(catalog) if row.state not in GIVEN_UP and not row.kind.is_keyspace]
    with ThreadPoolExecutor(LISTED_AT_ONCE, "adopt") as pool:
        return sum(pool.map(lambda row: _adopt(catalog, store, clock, row, say), rows))


def _adopt(catalog: Catalog, store: ObjectStore, clock: Clock, row: TenantRow, say: Callable[[str], None]) -> int:
    adopted = 0
    for key in _unknown(catalog, store, row.tenant):
        table_id = key.n // FILES_PER_SEED_MAX
        what = f"seed of tenant {row.tenant}{f', table {table_id}' if table_id else ''} at {tso.described(key.ts)}"
        time = service_time(catalog, clock)
        try:
            publish(catalog, store, row.tenant, key.ts, table_id, time, sizes_of=lambda m: _sizes(store, m))
        except (AheadOfTime, CorruptObject, InvalidInput) as e:
            say(f"{what}: not adopted, {e.code} {e}; its manifest is {key}")
        else:
            say(f"{what}: adopted")
            adopted += 1
    return adopted


def _unknown(catalog: Catalog, store: ObjectStore, tenant: Tenant) -> Iterator[SeedKey]:
    """The manifests that no row names."""
    known = {seed.manifest_key for seed in list_seeds(catalog, tenant)}
    for info in store.list(seeds_prefix(tenant)):
        key = parse(info.key)
        if not isinstance(key, SeedKey) or key.n % FILES_PER_SEED_MAX or info.key in known:
            continue
        if not object_states(catalog, [info.key]):
            yield key


def _sizes(store: ObjectStore, manifest: SeedManifest) -> Mapping[int, int]:
    """By LIST: a request for each thousand files, not for each one."""
    sizes = {}
    for info in store.list(seed_prefix(manifest.tenant, manifest.ts)):
        key = parse(info.key)
        if isinstance(key, SeedKey) and key.n in manifest.file_bytes:
            sizes[key.n] = info.size
    return sizes
