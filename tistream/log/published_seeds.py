"""Makes a seed visible that is complete in the bucket: the one way for the API server and for a restore.

    manifest in the bucket -> each file of it is there with its size -> rows in the catalog

A seed ahead of the service's time is refused until that time has come: no read could use it, and later rows would be
taken for part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.seeds import add_seed
from tistream.codec.seed_file import SeedManifest, manifest_key, read_manifest
from tistream.errors import InvalidInput, ObjectNotFound
from tistream.ids import Tenant
from tistream.limits import INT_MAX, MANIFEST_BYTES_MAX
from tistream.objectstore.bounded import small_object
from tistream.objectstore.protocol import ObjectStore
from tistream.runtime.service_time import ServiceTime

#: the bytes of a seed's files in the bucket, by number
Sizes = Callable[[SeedManifest], Mapping[int, int]]


def publish(
    catalog: Catalog,
    store: ObjectStore,
    tenant: Tenant,
    ts: int,
    table_id: int,
    time: ServiceTime,
    sizes_of: Sizes | None = None,
) -> bool:
    """Check the objects in the bucket and publish the seed; False when it is visible already. `sizes_of` replaces a
    request for each file.

    InvalidInput when something is missing, AheadOfTime before its time has come, CorruptObject and TooLarge of the
    manifest; TenantDeleted, and Fenced when one of its objects was tombstoned."""
    if not 0 < ts <= INT_MAX:
        raise InvalidInput("ts of a seed must lie in 1..2**63-1", ts=ts)
    key = str(manifest_key(tenant, ts, table_id))
    if ahead := time.ahead(ts, "seed", object=key, tenant=str(tenant)):
        raise ahead
    try:
        data = small_object(store, key, MANIFEST_BYTES_MAX)
        manifest = read_manifest(key, data, tenant, ts, table_id)
        sizes = (
            {n: store.size(manifest.key_of(n)) for n in manifest.file_bytes} if sizes_of is None else sizes_of(manifest)
        )
    except ObjectNotFound as e:
        raise InvalidInput("the seed is incomplete: an object is missing", ts=ts, cause=str(e)) from e
    if sizes != manifest.file_bytes:
        raise InvalidInput("the seed is incomplete: a file does not have the size in its manifest", ts=ts)
    return add_seed(catalog, manifest, len(data))
