"""Deletes the objects of deleted tenants, and marks a tenant DELETED when none is left.

    DELETING    hide objects -> delete them after the grace period, when no read lease needs them -> DELETED
    DELETED     the same again each SWEEP_S, for late objects

The tombstone in the catalog came first (`tistream.catalog.work.deletion`): nothing can become visible any more, and the
state never changes back. Objects with rows are superseded and collected like others. Batch files and pushed schema
snapshots have no rows; they are deleted once they are older than the grace period. A pusher that does not know of the
deletion continues to write them; they are not read, and a later round deletes them.

DELETED means: no object is left in the folders of the service, and no old one in the buffer.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from metaserver.collect import FOLDERS, GRACE_MS, Collector, Count, Deletes, Folder
from metaserver.contained import Contained
from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.tenants import TenantRow, TenantState
from tistream.catalog.tenancy.tenants import GIVEN_UP, every_tenant
from tistream.catalog.work.deletion import OBJECTS_AT_ONCE, finish_deletion, may_empty, retire_objects
from tistream.clock import Clock
from tistream.ids import Tenant
from tistream.model.problem import Problem
from tistream.objectstore.layout import buffer_prefix, schemas_prefix, seeds_prefix
from tistream.objectstore.protocol import ObjectStore

log = structlog.get_logger(__name__)

ROLE = "deletion"
SWEEP_S = 3600.0  #: between two sweeps of a DELETED tenant: each costs some LIST requests
_OURS: tuple[Folder, ...] = (*FOLDERS, seeds_prefix, schemas_prefix)


class Deletion:
    """Empties deleted tenants. Used from one thread; several processes may run one each."""

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
        """`grace_ms`: younger batch files are left alone. `name` of the process, for problems."""
        self._catalog, self._store, self._clock, self._collector = catalog, store, clock, collector
        self._grace_ms = grace_ms
        self.tenants = Contained(catalog, clock, name, ROLE)
        self._due_s: dict[Tenant, float] = {}  # DELETED tenants: time of the next sweep

    def step(self, tenants: Sequence[TenantRow] | None = None) -> int:
        """One round over all tenants (or `tenants`, just read); the number of deleted objects. The next round retries
        failures."""
        self.tenants.load()
        wanted = [row for row in (every_tenant(self._catalog) if tenants is None else tenants) if row.state in GIVEN_UP]
        self.tenants.keep_only(row.tenant for row in wanted)
        count = Count()
        for row in wanted:
            self.tenants.run(row.tenant, lambda r=row: self._empty(r, count))  # type: ignore[misc]
        self.tenants.sync()
        return count.deleted

    def problems(self) -> list[Problem]:
        """The tenants whose deletion fails."""
        return self.tenants.problems()

    def _empty(self, row: TenantRow, count: Count) -> None:
        now_s = self._clock.monotonic()
        if row.state is TenantState.DELETING:
            self._delete_objects(row.tenant, count)
            if self._is_empty(row.tenant) and finish_deletion(self._catalog, row.tenant):
                log.info("tenant deleted, no object left", tenant=str(row.tenant))
        elif now_s >= self._due_s.get(row.tenant, now_s):
            self._delete_objects(row.tenant, count)
            self._due_s[row.tenant] = now_s + SWEEP_S

    def _delete_objects(self, tenant: Tenant, count: Count) -> None:
        while retire_objects(self._catalog, tenant) == OBJECTS_AT_ONCE:
            pass
        if may_empty(self._catalog, tenant):
            self._delete_batch_files(tenant, count)
        self._collector.clean(tenant, _OURS, count)

    def _delete_batch_files(self, tenant: Tenant, count: Count) -> None:
        deletes = Deletes(self._store, count)
        newest_ms = self._clock.unix_ms() - self._grace_ms
        for info in self._store.list(buffer_prefix(tenant)):
            if info.modified_ms <= newest_ms:
                deletes.delete(info.key)
        deletes.settle()

    def _is_empty(self, tenant: Tenant) -> bool:
        return not any(next(iter(self._store.list(folder(tenant))), None) for folder in _OURS)
