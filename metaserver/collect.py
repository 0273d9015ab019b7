"""Deletes objects that nobody can need any more: those that were replaced, and orphans that never became visible.

    LIST a folder -> per key: no row, or a row that is not live -> tombstone row -> DELETE

Relations:

- the tombstone comes first. Whoever wanted to publish the key meets it and is fenced, so an object is deleted only
  when it can never become visible any more. No clock is part of this argument;
- every key is judged by its own row. That ids rise says nothing about the order in which they are published;
- a key whose row says dead is deleted again whenever it is seen: its PUT may arrive after its DELETE, and a collector
  may die between tombstone and DELETE;
- the grace period is for economy only: what was put a moment ago will mostly be published in a moment;
- what a compaction or retention replaced stays while a reader's pin may need it (`tistream.catalog.pins`). Files of
  compactions that came to nothing are orphans like any other.

What it does not do: batch files (their dispatcher reclaims them), schema snapshots and histories, and finding rows
without an object. What a deleted tenant leaves is looked after by `deletion`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import structlog

from tistream.catalog.engine import Catalog
from tistream.catalog.objects import ObjectState, object_states, superseded_objects, tombstone
from tistream.catalog.pins import drop_expired_pins, expired_pins
from tistream.catalog.tenants import GIVEN_UP, TenantRow, every_tenant
from tistream.clock import Clock
from tistream.ids import Tenant
from tistream.layout import bases_prefix, committed_prefix, compacted_prefix, snapshots_prefix
from tistream.objectstore.protocol import ObjectStore

log = structlog.get_logger(__name__)

GRACE_MS = 3_600_000
_KEYS_AT_ONCE = 200

Folder = Callable[[Tenant], str]  #: the prefix of one kind of a tenant's objects
FOLDERS: tuple[Folder, ...] = (committed_prefix, compacted_prefix, bases_prefix, snapshots_prefix)


class Collector:
    """Looks after the committed files, compacted files, bases and task snapshots of all tenants. Used from one thread;
    several processes may run one each."""

    def __init__(self, catalog: Catalog, store: ObjectStore, clock: Clock, *, grace_ms: int = GRACE_MS) -> None:
        """`grace_ms`: younger objects are left alone, by the clocks of the store and of this machine."""
        self._catalog, self._store, self._clock, self._grace_ms = catalog, store, clock, grace_ms

    def step(self, tenants: Sequence[TenantRow] | None = None) -> int:
        """One round over all tenants (as they were just read); how many objects were deleted. Errors of store and
        catalog end it: the next round begins anew and finds what was left."""
        deleted = 0
        for row in every_tenant(self._catalog) if tenants is None else tenants:
            if row.state not in GIVEN_UP:
                deleted += self.clean(row.tenant, FOLDERS)
        if expired_pins(self._catalog):
            drop_expired_pins(self._catalog)
        if deleted:
            log.info("objects collected", count=deleted)
        return deleted

    def clean(self, tenant: Tenant, folders: Iterable[Folder]) -> int:
        """One round over a tenant and these folders of it; how many objects were deleted."""
        return self._replaced(tenant) + self._orphans(tenant, folders)

    def _replaced(self, tenant: Tenant) -> int:
        deleted = 0
        while True:  # a buried key does not come again, so this ends
            keys = superseded_objects(self._catalog, tenant, grace_ms=self._grace_ms, limit=_KEYS_AT_ONCE)
            deleted += sum(self._bury(tenant, key) for key in keys)
            if len(keys) < _KEYS_AT_ONCE:
                return deleted

    def _orphans(self, tenant: Tenant, folders: Iterable[Folder]) -> int:
        deleted = 0
        for keys in self._old_keys(tenant, folders):
            states = object_states(self._catalog, keys)
            for key in keys:
                match states.get(key):
                    case ObjectState.DEAD:
                        self._store.delete(key)
                        deleted += 1
                    case None:
                        deleted += self._bury(tenant, key)
        return deleted

    def _bury(self, tenant: Tenant, key: str) -> bool:
        if not tombstone(self._catalog, tenant, key):
            return False  # it became visible since we looked
        self._store.delete(key)
        return True

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
