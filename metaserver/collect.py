"""Deletes objects that are no longer needed: replaced objects, and orphans that never became visible.

    LIST a folder -> per key: no row, or a row that is not live -> tombstone row -> an export that has it -> DELETE

Relations:

- The tombstone comes first. A late writer of the key violates it and is fenced, so an object is deleted only when it
  can never become visible. No clock is part of this argument.
- Then the decision must be in a verified export (`tistream.catalog.database.decisions`): a later round deletes it.
- Every key is judged by its own row: rising ids say nothing about the order of publication.
- A key whose row is dead is deleted again whenever it is listed: its PUT may arrive after its DELETE, and a collector
  may die between tombstone and DELETE.
- The grace period only saves work: a recent object will mostly be published soon. A file of a merge, a base or a replay
  may be published at any age, as long as its writer lives (`tistream.catalog.log.builds`).
- An object replaced by compaction or retention stays while a read lease may need it
  (`tistream.catalog.log.read_leases`). Files of failed compactions are orphans.
- When an object cannot be deleted, the rest of its tenant is deleted first; then the tenant's collection stops with a
  problem that names it. Other tenants continue.

Batch files (their dispatcher reclaims them), schema snapshots and histories are not collected here; the objects of
deleted tenants are deleted by `deletion`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import structlog

from metaserver.contained import Contained
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.builds import drop_expired_builds
from tistream.catalog.log.exclusions import drop_old_exclusions
from tistream.catalog.log.objects import deletable_objects, object_states, superseded_objects, tombstone
from tistream.catalog.log.read_leases import drop_expired_leases, expired_leases
from tistream.catalog.rows.tenants import TenantRow
from tistream.catalog.tenancy.tenants import GIVEN_UP, every_tenant
from tistream.clock import Clock
from tistream.errors import BucketDiffers, StoreError, StoreRefused
from tistream.ids import Tenant
from tistream.model.problem import Problem
from tistream.objectstore.layout import bases_prefix, committed_prefix, compacted_prefix, snapshots_prefix
from tistream.objectstore.protocol import ObjectStore

log = structlog.get_logger(__name__)

ROLE = "collection"
GRACE_MS = 3_600_000
_KEYS_AT_ONCE = 200
_FAILURES_IN_A_ROW = 10  #: then the store counts as unavailable; refusals do not count
_LEASES = "expired leases"

Folder = Callable[[Tenant], str]  #: the prefix of one kind of a tenant's objects
FOLDERS: tuple[Folder, ...] = (committed_prefix, compacted_prefix, bases_prefix, snapshots_prefix)


class Collector:
    """Collects committed files, compacted files, bases and task snapshots of all tenants. Used from one thread; several
    processes may run one each."""

    def __init__(
        self, catalog: Catalog, store: ObjectStore, clock: Clock, *, grace_ms: int = GRACE_MS, name: str = ""
    ) -> None:
        """`grace_ms`: younger objects are left alone, by the clocks of the store and of this machine. `name` of the
        process, for problems."""
        self._catalog, self._store, self._clock, self._grace_ms = catalog, store, clock, grace_ms
        self.tenants = Contained(catalog, clock, name, ROLE)

    def step(self, tenants: Sequence[TenantRow] | None = None) -> int:
        """One round over all tenants (or `tenants`, just read); the number of deleted objects. The next round retries
        failures."""
        self.tenants.load()
        wanted = [row for row in (every_tenant(self._catalog) if tenants is None else tenants) if _is_collected(row)]
        self.tenants.keep_only(row.tenant for row in wanted)
        count = Count()
        for row in wanted:
            self.tenants.run(row.tenant, lambda t=row.tenant: self.clean(t, FOLDERS, count))  # type: ignore[misc]
        self.tenants.run(_LEASES, self._drop_leases)
        self.tenants.sync()
        if count.deleted:
            log.info("objects collected", count=count.deleted)
        return count.deleted

    def problems(self) -> list[Problem]:
        """The tenants whose collection fails."""
        return self.tenants.problems()

    def clean(self, tenant: Tenant, folders: Iterable[Folder], count: Count) -> None:
        """One round over these folders of a tenant. Raises at the end when an object could not be deleted."""
        deletes = Deletes(self._store, count)
        self._replaced(tenant, deletes)
        self._orphans(tenant, folders, deletes)
        deletes.settle()

    def _drop_leases(self) -> None:
        if expired_leases(self._catalog):
            drop_expired_leases(self._catalog)
        drop_expired_builds(self._catalog, grace_ms=self._grace_ms)
        drop_old_exclusions(self._catalog)

    def _replaced(self, tenant: Tenant, deletes: Deletes) -> None:
        while True:  # a tombstoned key is not listed again, so this ends
            keys = superseded_objects(self._catalog, tenant, grace_ms=self._grace_ms, limit=_KEYS_AT_ONCE)
            for key in keys:
                if self._bury(tenant, key):
                    deletes.delete(key)
            if len(keys) < _KEYS_AT_ONCE:
                return

    def _orphans(self, tenant: Tenant, folders: Iterable[Folder], deletes: Deletes) -> None:
        for keys in self._old_keys(tenant, folders):
            states = object_states(self._catalog, keys)
            for key in keys:
                if key not in states:
                    self._bury(tenant, key)
            for key in sorted(deletable_objects(self._catalog, keys)):
                deletes.delete(key)

    def _bury(self, tenant: Tenant, key: str) -> bool:
        """False for an object that is visible, or may become so."""
        return tombstone(self._catalog, tenant, key, grace_ms=self._grace_ms)

    def _old_keys(self, tenant: Tenant, folders: Iterable[Folder]) -> Iterator[list[str]]:
        """Keys of objects older than the grace period, in lists of at most _KEYS_AT_ONCE."""
        newest_ms = self._clock.unix_ms() - self._grace_ms
        for prefix_of in folders:
            keys: list[str] = []
            for info in self._store.list(prefix_of(tenant)):
                if info.modified_ms > newest_ms:
                    continue
                keys.append(info.key)
                if len(keys) == _KEYS_AT_ONCE:
                    yield keys
                    keys = []
            if keys:
                yield keys


@dataclass(slots=True)
class Count:
    """Objects deleted in a round, including those of tenants that failed."""

    deleted: int = 0


class Deletes:
    """DELETE requests of one tenant in one round: after a failure the others are still sent."""

    def __init__(self, store: ObjectStore, count: Count) -> None:
        self._store, self._count = store, count
        self._failed: list[tuple[str, StoreError]] = []
        self._in_a_row = 0

    def delete(self, key: str) -> None:
        """Delete an object. Raises after _FAILURES_IN_A_ROW failures in a row: the store seems unavailable."""
        try:
            self._store.delete(key)
        except StoreError as e:
            self._failed.append((key, e))
            self._in_a_row += not isinstance(e, StoreRefused)
            if self._in_a_row >= _FAILURES_IN_A_ROW:
                raise
            return
        self._in_a_row = 0
        self._count.deleted += 1

    def settle(self) -> None:
        """Raise when a request failed: BucketDiffers (for an operator) after a refusal, else the retryable error."""
        refused = [(key, e) for key, e in self._failed if isinstance(e, StoreRefused)]
        if refused:
            key, error = refused[0]
            raise BucketDiffers(
                f"{len(refused)} objects cannot be deleted, the first is {key}: {error.message}",
                object=key,
            ) from error
        if self._failed:
            raise self._failed[0][1]


def _is_collected(row: TenantRow) -> bool:
    return row.state not in GIVEN_UP
