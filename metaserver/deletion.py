"""Takes away what a tenant leaves that was given up, and says when nothing is left.

    DELETING    objects out of sight -> deleted after the grace period, when no read lease needs them -> DELETED
    DELETED     now and then the same again, for what came late

The tombstone in the catalog came first (`tistream.catalog.work.deletion`): nothing that is seen here can become
visible any more, and no state leads back. Objects that were visible are superseded and buried as any others. Batch
files and pushed schema snapshots have no rows: they are deleted as they lie there, once they are older than the grace
period. A pusher that does not know yet goes on writing them; what it writes is read by nobody, and goes in a later
round.

DELETED says that no object is left in the folders of the service, and in the buffer none that was old enough.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from metaserver.collect import FOLDERS, GRACE_MS, Collector, Count, Deletes, Folder
from metaserver.contained import Contained
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.tenants import GIVEN_UP, TenantRow, TenantState, every_tenant
from tistream.catalog.work.deletion import OBJECTS_AT_ONCE, finish_deletion, retire_objects
from tistream.clock import Clock
from tistream.ids import Tenant
from tistream.objectstore.layout import buffer_prefix, schemas_prefix, seeds_prefix
from tistream.objectstore.protocol import ObjectStore
from tistream.runtime.service import Problem

log = structlog.get_logger(__name__)

ROLE = "deletion"
SWEEP_S = 3600.0  #: between two looks at a tenant that is DELETED: each costs some LIST requests
_OURS: tuple[Folder, ...] = (*FOLDERS, seeds_prefix, schemas_prefix)


class Deletion:
    """Looks after the tenants that were given up. Used from one thread; several processes may run one each."""

    def __init__(
        self,
        catalog: Catalog,
        store: ObjectStore,
        clock: Clock,
        collector: Collector,
        *,
        grace_ms: int = GRACE_MS,
        name: str = "",
    ) -> None:
        """`grace_ms`: younger batch files are left alone, as the collector leaves younger objects alone. `name` of the
        process, in problems."""
        self._catalog, self._store, self._clock, self._collector = catalog, store, clock, collector
        self._grace_ms = grace_ms
        self.tenants = Contained(catalog, clock, name, ROLE)
        self._due_s: dict[Tenant, float] = {}  # DELETED ones, and when they are looked at again

    def step(self, tenants: Sequence[TenantRow] | None = None) -> int:
        """One round over all tenants (as they were just read); how many objects were deleted. What fails is found again
        by the next round."""
        self.tenants.load()
        wanted = [row for row in (every_tenant(self._catalog) if tenants is None else tenants) if row.state in GIVEN_UP]
        self.tenants.keep_only(row.tenant for row in wanted)
        count = Count()
        for row in wanted:
            self.tenants.run(row.tenant, lambda r=row: self._look(r, count))  # type: ignore[misc]
        self.tenants.sync()
        return count.deleted

    def problems(self) -> list[Problem]:
        """The tenants of which something cannot be taken away."""
        return self.tenants.problems()

    def _look(self, row: TenantRow, count: Count) -> None:
        now_s = self._clock.monotonic()
        if row.state is TenantState.DELETING:
            self._take_away(row.tenant, count)
            if self._is_empty(row.tenant) and finish_deletion(self._catalog, row.tenant):
                log.info("nothing is left of a deleted tenant", tenant=str(row.tenant))
        elif now_s >= self._due_s.get(row.tenant, now_s):
            self._take_away(row.tenant, count)
            self._due_s[row.tenant] = now_s + SWEEP_S

    def _take_away(self, tenant: Tenant, count: Count) -> None:
        while retire_objects(self._catalog, tenant) == OBJECTS_AT_ONCE:
            pass
        self._take_batch_files(tenant, count)
        self._collector.clean(tenant, _OURS, count)

    def _take_batch_files(self, tenant: Tenant, count: Count) -> None:
        deletes = Deletes(self._store, count)
        newest_ms = self._clock.unix_ms() - self._grace_ms
        for info in self._store.list(buffer_prefix(tenant)):
            if info.modified_ms <= newest_ms:
                deletes.delete(info.key)
        deletes.settle()

    def _is_empty(self, tenant: Tenant) -> bool:
        return not any(next(iter(self._store.list(folder(tenant))), None) for folder in _OURS)
