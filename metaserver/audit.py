"""Compares catalog and bucket: every live row has its object with its size, and which objects have no row.

    rows that are live, in order of key ──┐
                                          ├─> what does not match is looked at again before it counts
    LIST of the tenant's folders ─────────┘

It reads only, and runs while everything else does. Objects are put before their rows and buried before they go, so a
row that is live *before* its object is looked for and *after* it was not found names an object that is lost: nothing
makes that true for a moment. An object without a row is no fault: a writer died, or has not come to its row yet; when
it is older than the grace period it is an orphan, which the collector takes (of seeds and schema histories it does
not).

What it does not do: batch files and pushed schema snapshots, which have no rows, and the bytes inside of objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from metaserver.collect import GRACE_MS
from metaserver.contained import Contained
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.objects import ObjectState, live_objects, object_states
from tistream.catalog.tenancy.tenants import list_tenants
from tistream.clock import Clock
from tistream.errors import BucketDiffers, ObjectNotFound
from tistream.ids import Tenant
from tistream.objectstore.layout import (
    bases_prefix,
    committed_prefix,
    compacted_prefix,
    schemas_prefix,
    seeds_prefix,
    snapshots_prefix,
)
from tistream.objectstore.protocol import ObjectStore
from tistream.runtime.service import Problem

ROLE = "audit"
_KEYS_AT_ONCE = 200
_ROWS_AT_ONCE = 10_000
_NAMED_MAX = 20  # faults that one problem names
FOLDERS = (committed_prefix, compacted_prefix, bases_prefix, snapshots_prefix, seeds_prefix, schemas_prefix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A live row that its object does not match."""

    object_key: str
    bytes: int  #: as the catalog says
    found_bytes: int | None  #: None: there is no such object


@dataclass(slots=True, kw_only=True)
class Audit:
    """What was found in a tenant's folders."""

    tenant: Tenant
    objects: int = 0  #: live rows
    bytes: int = 0
    orphans: int = 0  #: objects without a row, older than the grace period
    orphan_bytes: int = 0
    faults: list[Fault] = field(default_factory=list)


def audit(catalog: Catalog, store: ObjectStore, clock: Clock, *, grace_ms: int = GRACE_MS) -> Iterator[Audit]:
    """One result per tenant. Store and catalog errors end it."""
    for row in list_tenants(catalog):
        yield audit_tenant(catalog, store, row.tenant, newest_ms=clock.unix_ms() - grace_ms)


def audit_tenant(catalog: Catalog, store: ObjectStore, tenant: Tenant, *, newest_ms: int) -> Audit:
    """Objects younger than `newest_ms` (by the store's clock) are no orphans."""
    rows = dict(_live(catalog, tenant))
    found = Audit(tenant=tenant, objects=len(rows), bytes=sum(rows.values()))
    suspects = dict(rows)
    strangers: dict[str, int] = {}
    for prefix_of in FOLDERS:
        for info in store.list(prefix_of(tenant)):
            if suspects.get(info.key) == info.size:
                del suspects[info.key]
            elif info.key not in rows and info.modified_ms <= newest_ms:
                strangers[info.key] = info.size
    found.faults = sorted(_confirmed(catalog, store, suspects), key=lambda fault: fault.object_key)
    for keys in _some(list(strangers)):
        states = object_states(catalog, keys)
        for key in keys:
            if key not in states:
                found.orphans += 1
                found.orphan_bytes += strangers[key]
    return found


class Auditor:
    """The audits of a service, round by round, and what the last of them found. Used from one thread."""

    def __init__(self, catalog: Catalog, store: ObjectStore, clock: Clock, *, name: str = "") -> None:
        """`name` of the process, in problems."""
        self._catalog, self._store, self._clock = catalog, store, clock
        self.tenants = Contained(catalog, clock, name, ROLE)
        self._found: dict[Tenant, Audit] = {}

    def step(self) -> int:
        """One round; how many faults. A tenant that cannot be looked at keeps no other from it."""
        self.tenants.load()
        tenants = [row.tenant for row in list_tenants(self._catalog)]
        self.tenants.keep_only(tenants)
        self._found = {tenant: found for tenant, found in self._found.items() if tenant in set(tenants)}
        newest_ms = self._clock.unix_ms() - GRACE_MS
        for tenant in tenants:
            self.tenants.run(tenant, lambda t=tenant: self._look(t, newest_ms))  # type: ignore[misc]
        self.tenants.sync()
        return sum(len(result.faults) for result in self._found.values())

    def problems(self) -> list[Problem]:
        """A problem for each tenant whose objects are not as the catalog says, or could not be looked at."""
        found = [problem_of(result) for result in list(self._found.values()) if result.faults]
        return found + self.tenants.problems()

    def _look(self, tenant: Tenant, newest_ms: int) -> None:
        self._found[tenant] = audit_tenant(self._catalog, self._store, tenant, newest_ms=newest_ms)


def problem_of(found: Audit) -> Problem:
    """What an operator is to see."""
    named = ", ".join(fault.object_key for fault in found.faults[:_NAMED_MAX])
    error = BucketDiffers(f"{len(found.faults)} objects are not as the catalog says.", objects=named)
    return Problem.of(f"audit/{found.tenant}", error)


def _confirmed(catalog: Catalog, store: ObjectStore, suspects: dict[str, int]) -> Iterator[Fault]:
    for keys in _some(list(suspects)):
        sizes: dict[str, int | None] = {}
        for key in keys:
            try:
                sizes[key] = store.size(key)
            except ObjectNotFound:
                sizes[key] = None
        states = object_states(catalog, keys)  # afterwards: what was collected meanwhile is live no more
        for key in keys:
            if states.get(key) is ObjectState.LIVE and sizes[key] != suspects[key]:
                yield Fault(object_key=key, bytes=suspects[key], found_bytes=sizes[key])


def _live(catalog: Catalog, tenant: Tenant) -> Iterator[tuple[str, int]]:
    after = ""
    while True:
        some = live_objects(catalog, tenant, after_key=after, limit=_ROWS_AT_ONCE)
        yield from some
        if len(some) < _ROWS_AT_ONCE:
            return
        after = some[-1][0]


def _some(keys: list[str]) -> Iterator[list[str]]:
    for at in range(0, len(keys), _KEYS_AT_ONCE):
        yield keys[at : at + _KEYS_AT_ONCE]
