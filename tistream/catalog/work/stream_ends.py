"""Where the streams of stores end: a recording has an end, a live store has none.

A pusher whose source ends says so once (`end_stream`): the store has no change above `end_ts`. The catalog keeps it
until a pusher of the store gets another incarnation, which may bring more.

- Only the newest incarnation may end a stream: a pusher that was replaced does not speak for the store.
- A tenant's stream ends when those of all its stores do, at the lowest of their ends.
- Lag counts up to that end instead of now (`tistream.ts.lag_ms`). Once the watermark has reached it, the tenant has
  ended: nothing of it lags, waits or is stalled.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from sqlalchemy import bindparam, func, select

from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import of_asked_tenant, stores, tenant_ids, tenant_of
from tistream.catalog.work.stores import StoreRow
from tistream.clock import Clock
from tistream.errors import TiStreamError
from tistream.ids import Tenant
from tistream.runtime import metrics

_END = stores.update().where(
    of_asked_tenant(stores),
    stores.c.store_id == bindparam("asked_store"),
    stores.c.incarnation == bindparam("asked_incarnation"),
)
_LOWEST = func.min(stores.c.end_ts).label("end_ts")  # 0 while one store continues
#: the tenants whose streams end, and where
ENDED = (
    select(stores.c.cluster_id, stores.c.tenant_id, _LOWEST)
    .group_by(stores.c.cluster_id, stores.c.tenant_id)
    .having(_LOWEST > 0)
)
_END_OF = select(_LOWEST).where(of_asked_tenant(stores))


def end_stream(catalog: Catalog, tenant: Tenant, store_id: int, incarnation: int, end_ts: int) -> bool:
    """Record that this store has no change above `end_ts`. False when the incarnation is not its newest."""
    parameters = {**tenant_ids(tenant), "asked_store": store_id, "asked_incarnation": incarnation}
    with catalog.transaction() as conn:
        return conn.execute(_END, {**parameters, "end_ts": end_ts}).rowcount == 1


def stream_end(catalog: Catalog, tenant: Tenant) -> int | None:
    """Where the tenant's stream ends; None while it continues."""
    with catalog.reading() as conn:
        return conn.execute(_END_OF, tenant_ids(tenant)).scalar() or None


def stream_ends(catalog: Catalog) -> dict[Tenant, int]:
    """`stream_end` of all tenants whose streams end."""
    with catalog.reading() as conn:
        return {tenant_of(row): int(row.end_ts) for row in conn.execute(ENDED)}


def ends_of(rows: Iterable[StoreRow]) -> dict[Tenant, int]:
    """`stream_ends` of stores that were read already: all of each tenant."""
    lowest: dict[Tenant, int] = {}
    for row in rows:
        lowest[row.tenant] = min(row.end_ts, lowest.get(row.tenant, row.end_ts))
    return {tenant: end_ts for tenant, end_ts in lowest.items() if end_ts}


class StreamEnds:
    """The ends for metrics, read at most once in CATALOG_LOOK_S; the last known ones while the catalog is away.
    Thread-safe."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog, self._clock = catalog, clock
        self._lock = threading.Lock()
        self._read_s: float | None = None
        self._ends: Mapping[Tenant, int] = {}

    def __call__(self) -> Mapping[Tenant, int]:
        with self._lock:
            now_s = self._clock.monotonic()
            if self._read_s is None or now_s - self._read_s >= metrics.CATALOG_LOOK_S:
                self._read_s = now_s
                try:
                    self._ends = stream_ends(self._catalog)
                except TiStreamError:
                    return self._ends
            return self._ends
