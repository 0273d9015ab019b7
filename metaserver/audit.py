"""Compares catalog and bucket: lost objects, and objects without a row.

    live rows, in order of key ──────┐
                                     ├─> mismatches are checked again before they count
    LIST of the tenant's folders ────┘

The audit only reads, and runs beside all other work. Objects are stored before their rows and tombstoned before they
are deleted, so a row that is live *before* its object is looked up and *after* it was not found names a lost object. An
object without a row is no fault: its writer died, or has not committed yet. After the grace period it is an orphan,
which the collector deletes (except seeds and schema histories).

Batch files and pushed schema snapshots, which have no rows, and the contents of objects are not checked.
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
from tistream.model.problem import Problem
from tistream.objectstore.layout import (
    bases_prefix,
    committed_prefix,
    compacted_prefix,
    schemas_prefix,
    seeds_prefix,
    snapshots_prefix,
)
from tistream.objectstore.protocol import ObjectStore

ROLE = "audit"
_KEYS_AT_ONCE = 200
_ROWS_AT_ONCE = 10_000
_NAMED_MAX = 20  # faults that one problem names
FOLDERS = (committed_prefix, compacted_prefix, bases_prefix, snapshots_prefix, seeds_prefix, schemas_prefix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A live row whose object does not match."""

    object_key: str
    bytes: int  #: in the catalog
    found_bytes: int | None  #: in the bucket; None = missing


@dataclass(slots=True, kw_only=True)
class Audit:
    """Result of one tenant."""

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
    result = Audit(tenant=tenant, objects=len(rows), bytes=sum(rows.values()))
    suspects = dict(rows)
    strangers: dict[str, int] = {}
    for prefix_of in FOLDERS:
        for info in store.list(prefix_of(tenant)):
            if suspects.get(info.key) == info.size:
                del suspects[info.key]
            elif info.key not in rows and info.modified_ms <= newest_ms:
                strangers[info.key] = info.size
    result.faults = sorted(_confirmed(catalog, store, suspects), key=lambda fault: fault.object_key)
    for keys in _some(list(strangers)):
        states = object_states(catalog, keys)
        for key in keys:
            if key not in states:
                result.orphans += 1
                result.orphan_bytes += strangers[key]
    return result


class Auditor:
    """Audits all tenants, and keeps the latest results. Used from one thread."""

    def __init__(self, catalog: Catalog, store: ObjectStore, clock: Clock, *, name: str = "") -> None:
        """`name` of the process, for problems."""
        self._catalog, self._store, self._clock = catalog, store, clock
        self.tenants = Contained(catalog, clock, name, ROLE)
        self._found: dict[Tenant, Audit] = {}

    def step(self) -> int:
        """One round; the number of faults. An error of one tenant does not affect the others."""
        self.tenants.load()
        tenants = [row.tenant for row in list_tenants(self._catalog)]
        self.tenants.keep_only(tenants)
        self._found = {tenant: audited for tenant, audited in self._found.items() if tenant in set(tenants)}
        newest_ms = self._clock.unix_ms() - GRACE_MS
        for tenant in tenants:
            self.tenants.run(tenant, lambda t=tenant: self._audit(t, newest_ms))  # type: ignore[misc]
        self.tenants.sync()
        return sum(len(result.faults) for result in self._found.values())

    def problems(self) -> list[Problem]:
        """A problem for each tenant with faults, or that could not be audited."""
        problems = [problem_of(result) for result in list(self._found.values()) if result.faults]
        return problems + self.tenants.problems()

    def _audit(self, tenant: Tenant, newest_ms: int) -> None:
        self._found[tenant] = audit_tenant(self._catalog, self._store, tenant, newest_ms=newest_ms)


def problem_of(result: Audit) -> Problem:
    """The faults as a problem."""
    named = ", ".join(fault.object_key for fault in result.faults[:_NAMED_MAX])
    error = BucketDiffers(f"{len(result.faults)} objects do not match the catalog.", objects=named)
    return Problem.of(f"audit/{result.tenant}", error)


def _confirmed(catalog: Catalog, store: ObjectStore, suspects: dict[str, int]) -> Iterator[Fault]:
    for keys in _some(list(suspects)):
        sizes: dict[str, int | None] = {}
        for key in keys:
            try:
                sizes[key] = store.size(key)
            except ObjectNotFound:
                sizes[key] = None
        states = object_states(catalog, keys)  # read afterwards: objects collected meanwhile are no longer live
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
