"""Takes away what a tenant leaves that was given up, and says when nothing is left.

    DELETING    objects out of sight -> deleted after the grace period, when no pin needs them -> DELETED
    DELETED     now and then the same again, for what came late

The tombstone in the catalog came first (`tistream.catalog.deletion`): nothing that is seen here can become visible any
more, and no state leads back. Objects that were visible are superseded and buried as any others. Batch files and pushed
schema snapshots have no rows: they are deleted as they lie there, once they are older than the grace period. A pusher
that does not know yet goes on writing them; what it writes is read by nobody, and goes in a later round.

DELETED says that no object is left in the folders of the service, and in the buffer none that was old enough.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from metaserver.collect import FOLDERS, GRACE_MS, Collector, Folder
from tistream.catalog.deletion import OBJECTS_AT_ONCE, finish_deletion, retire_objects
from tistream.catalog.engine import Catalog
from tistream.catalog.tenants import TenantRow, TenantState, every_tenant
from tistream.clock import Clock
from tistream.ids import Tenant
from tistream.layout import buffer_prefix, schemas_prefix, seeds_prefix
from tistream.objectstore.protocol import ObjectStore

log = structlog.get_logger(__name__)

SWEEP_S = 3600.0  #: between two looks at a tenant that is DELETED: each costs some LIST requests
_OURS: tuple[Folder, ...] = (*FOLDERS, seeds_prefix, schemas_prefix)


class Deletion:
    """Looks after the tenants that were given up. Used from one thread; several processes may run one each."""

    def __init__(
        self, catalog: Catalog, store: ObjectStore, clock: Clock, collector: Collector, *, grace_ms: int = GRACE_MS
    ) -> None:
        """`grace_ms`: younger batch files are left alone, as the collector leaves younger objects alone."""
        self._catalog, self._store, self._clock, self._collector = catalog, store, clock, collector
        self._grace_ms = grace_ms
        self._due_s: dict[Tenant, float] = {}  # DELETED ones, and when they are looked at again

    def step(self, tenants: Sequence[TenantRow] | None = None) -> int:
        """One round over all tenants (as they were just read); how many objects were deleted. Errors of store and
        catalog end it: the next one finds the rest."""
        deleted = 0
        for row in every_tenant(self._catalog) if tenants is None else tenants:
            now_s = self._clock.monotonic()
            if row.state is TenantState.DELETING:
                deleted += self._take_away(row.tenant)
                if self._is_empty(row.tenant) and finish_deletion(self._catalog, row.tenant):
                    log.info("nothing is left of a deleted tenant", tenant=str(row.tenant))
            elif row.state is TenantState.DELETED and now_s >= self._due_s.get(row.tenant, now_s):
                deleted += self._take_away(row.tenant)
                self._due_s[row.tenant] = now_s + SWEEP_S
        return deleted

    def _take_away(self, tenant: Tenant) -> int:
        while retire_objects(self._catalog, tenant) == OBJECTS_AT_ONCE:
            pass
        deleted = self._collector.clean(tenant, _OURS)
        newest_ms = self._clock.unix_ms() - self._grace_ms
        for info in self._store.list(buffer_prefix(tenant)):
            if info.modified_ms <= newest_ms:
                self._store.delete(info.key)
                deleted += 1
        return deleted

    def _is_empty(self, tenant: Tenant) -> bool:
        return not any(next(iter(self._store.list(folder(tenant))), None) for folder in _OURS)
