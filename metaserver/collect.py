"""Deletes objects that nobody can need any more: those that were replaced, and orphans that never became visible.

    LIST a folder -> per key: no row, or a row that is not live -> tombstone row -> DELETE

Relations:

- the tombstone comes first. Whoever wanted to publish the key meets it and is fenced, so an object is deleted only
  when it can never become visible any more. No clock is part of this argument;
- every key is judged by its own row. That ids rise says nothing about the order in which they are published;
- a key whose row says dead is deleted again whenever it is seen: its PUT may arrive after its DELETE, and a collector
  may die between tombstone and DELETE;
- the grace period is for economy only: what was put a moment ago will mostly be published in a moment;
- what a compaction or retention replaced stays while a read lease may need it (`tistream.catalog.log.read_leases`).
  Files of compactions that came to nothing are orphans like any other;
- an object that cannot be deleted keeps no other from being deleted: the rest of its tenant goes first, then the
  tenant's collection is stopped with a problem that names it. Other tenants go on.

What it does not do: batch files (their dispatcher reclaims them), schema snapshots and histories, and finding rows
without an object. What a deleted tenant leaves is looked after by `deletion`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import structlog

from metaserver.contained import Contained
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.objects import ObjectState, object_states, superseded_objects, tombstone
from tistream.catalog.log.read_leases import drop_expired_leases, expired_leases
from tistream.catalog.tenancy.tenants import GIVEN_UP, TenantRow, every_tenant
from tistream.clock import Clock
from tistream.errors import BucketDiffers, StoreError, StoreRefused
from tistream.ids import Tenant
from tistream.objectstore.layout import bases_prefix, committed_prefix, compacted_prefix, snapshots_prefix
from tistream.objectstore.protocol import ObjectStore
from tistream.runtime.service import Problem

log = structlog.get_logger(__name__)

ROLE = "collection"
GRACE_MS = 3_600_000
_KEYS_AT_ONCE = 200
_FAILURES_IN_A_ROW = 10  #: the store is away rather than one object held; what it refuses does not count
_READ_LEASES = "expired read leases"

Folder = Callable[[Tenant], str]  #: the prefix of one kind of a tenant's objects
FOLDERS: tuple[Folder, ...] = (committed_prefix, compacted_prefix, bases_prefix, snapshots_prefix)


class Collector:
    """Looks after the committed files, compacted files, bases and task snapshots of all tenants. Used from one thread;
    several processes may run one each."""

    def __init__(
        self, catalog: Catalog, store: ObjectStore, clock: Clock, *, grace_ms: int = GRACE_MS, name: str = ""
    ) -> None:
        """`grace_ms`: younger objects are left alone, by the clocks of the store and of this machine. `name` of the
        process, in problems."""
        self._catalog, self._store, self._clock, self._grace_ms = catalog, store, clock, grace_ms
        self.tenants = Contained(catalog, clock, name, ROLE)

    def step(self, tenants: Sequence[TenantRow] | None = None) -> int:
        """One round over all tenants (as they were just read); how many objects were deleted. What fails is found again
        by the next round."""
        self.tenants.load()
        wanted = [row for row in (every_tenant(self._catalog) if tenants is None else tenants) if _is_collected(row)]
        self.tenants.keep_only(row.tenant for row in wanted)
        count = Count()
        for row in wanted:
            self.tenants.run(row.tenant, lambda t=row.tenant: self.clean(t, FOLDERS, count))  # type: ignore[misc]
        self.tenants.run(_READ_LEASES, self._drop_leases)
        self.tenants.sync()
        if count.deleted:
            log.info("objects collected", count=count.deleted)
        return count.deleted

    def problems(self) -> list[Problem]:
        """The tenants that cannot be collected."""
        return self.tenants.problems()

    def clean(self, tenant: Tenant, folders: Iterable[Folder], count: Count) -> None:
        """One round over a tenant and these folders of it. Raises when an object could not be deleted, in the end."""
        deletes = Deletes(self._store, count)
        self._replaced(tenant, deletes)
        self._orphans(tenant, folders, deletes)
        deletes.settle()

    def _drop_leases(self) -> None:
        if expired_leases(self._catalog):
            drop_expired_leases(self._catalog)

    def _replaced(self, tenant: Tenant, deletes: Deletes) -> None:
        while True:  # a buried key does not come again, so this ends
            keys = superseded_objects(self._catalog, tenant, grace_ms=self._grace_ms, limit=_KEYS_AT_ONCE)
            for key in keys:
                self._bury(tenant, key, deletes)
            if len(keys) < _KEYS_AT_ONCE:
                return

    def _orphans(self, tenant: Tenant, folders: Iterable[Folder], deletes: Deletes) -> None:
        for keys in self._old_keys(tenant, folders):
            states = object_states(self._catalog, keys)
            for key in keys:
                match states.get(key):
                    case ObjectState.DEAD:
                        deletes.delete(key)
                    case None:
                        self._bury(tenant, key, deletes)

    def _bury(self, tenant: Tenant, key: str, deletes: Deletes) -> None:
        if tombstone(self._catalog, tenant, key):  # else it became visible since we looked
            deletes.delete(key)

    def _old_keys(self, tenant: Tenant, folders: Iterable[Folder]) -> Iterator[list[str]]:
        """The keys of objects older than the grace period, some at a time."""
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
    """How many objects a round deleted, tenants that failed in the end included."""

    deleted: int = 0


class Deletes:
    """The DELETE requests of one tenant in one round: one that fails keeps no other from its turn."""

    def __init__(self, store: ObjectStore, count: Count) -> None:
        self._store, self._count = store, count
        self._failed: list[tuple[str, StoreError]] = []
        self._in_a_row = 0

    def delete(self, key: str) -> None:
        """Delete an object. Raises when so many failed one after the other that the store seems to be away."""
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
        """Raise when something failed: what the store refuses is for an operator, all else is tried again soon."""
        refused = [(key, e) for key, e in self._failed if isinstance(e, StoreRefused)]
        if refused:
            key, error = refused[0]
            raise BucketDiffers(
                f"{len(refused)} objects that nobody needs cannot be deleted, the first is {key}: {error.message}",
                object=key,
            ) from error
        if self._failed:
            raise self._failed[0][1]


def _is_collected(row: TenantRow) -> bool:
    return row.state not in GIVEN_UP
