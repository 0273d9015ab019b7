"""Turns a waiting tenant into an active one when its first usable schema snapshot is there.

The folder of pushed snapshots is listed for waiting tenants only, with growing pauses. The first snapshot (by ts) that
can be read decides: its timestamp becomes `start_ts` and the `upper` of every task, in one transaction, once. One that
cannot be read is a problem that names the object; the tenant keeps waiting for another. Nothing is ever guessed from a
damaged one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson
import structlog

from metaserver.tiles import lay_out
from schemas.saved import decompress
from schemas.snapshot import PushedSchema, parse_pushed
from tistream.catalog.engine import Catalog
from tistream.catalog.tenants import TenantState, activate_tenant, list_tenants
from tistream.clock import Clock
from tistream.errors import CorruptObject
from tistream.ids import Tenant
from tistream.layout import SchemaSnapKey, parse, schema_snap_prefix
from tistream.objectstore.protocol import ObjectStore
from tistream.service import Backoff, Problem

log = structlog.get_logger(__name__)

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0


@dataclass(slots=True)
class _Waiting:
    backoff: Backoff
    look_at: float = 0.0
    corrupt: dict[str, CorruptObject] = field(default_factory=dict)  # object key -> what is wrong with it


class Activation:
    """Looks after the tenants that await their schema snapshot. Used from one thread."""

    def __init__(self, catalog: Catalog, store: ObjectStore, clock: Clock, data_tasks: int) -> None:
        self._catalog, self._store, self._clock, self._data_tasks = catalog, store, clock, data_tasks
        self._waiting: dict[Tenant, _Waiting] = {}

    def step(self) -> None:
        """Look once at every tenant whose turn it is."""
        rows = list_tenants(self._catalog, TenantState.AWAITING_SNAPSHOT)
        fresh = {
            row.tenant: _Waiting(Backoff(first_s=_FIRST_PAUSE_S, max_s=_LONGEST_PAUSE_S))
            for row in rows
            if row.tenant not in self._waiting
        }
        known = {row.tenant for row in rows}
        self._waiting = {t: w for t, w in (self._waiting | fresh).items() if t in known}
        for tenant, waiting in self._waiting.items():
            if self._clock.monotonic() >= waiting.look_at:
                self._look(tenant, waiting)
                waiting.look_at = self._clock.monotonic() + waiting.backoff.next_s()

    def problems(self, source: str) -> list[Problem]:
        """Every pushed snapshot that cannot be read and whose tenant still waits."""
        waiting = dict(self._waiting)
        return [Problem.of(f"{source}/{t}", error) for t, w in waiting.items() for error in tuple(w.corrupt.values())]

    def _look(self, tenant: Tenant, waiting: _Waiting) -> None:
        for info in self._store.list(schema_snap_prefix(tenant)):
            key = parse(info.key)
            if not isinstance(key, SchemaSnapKey):
                continue
            try:
                pushed = read_snapshot(key, self._store.get(info.key))
            except CorruptObject as e:
                if info.key not in waiting.corrupt:
                    log.warning("schema snapshot cannot be read; the tenant keeps waiting", error=str(e))
                waiting.corrupt[info.key] = e
                continue
            tasks = lay_out(pushed, self._data_tasks)
            if activate_tenant(self._catalog, tenant, key.ts, tasks):
                log.info("tenant activated", tenant=str(tenant), start_ts=key.ts, tasks=len(tasks))
            return


def read_snapshot(key: SchemaSnapKey, data: bytes) -> PushedSchema:
    """A pushed schema snapshot. CorruptObject when it is not one, or not the one its key names."""
    try:
        pushed = parse_pushed(orjson.loads(decompress(data)))
    except orjson.JSONDecodeError as e:
        raise CorruptObject("the schema snapshot is not JSON", object=str(key), reason=str(e)) from e
    except CorruptObject as e:
        raise CorruptObject(e.message, object=str(key), **e.facts) from e
    if pushed.snapshot.ts != key.ts:
        raise CorruptObject("the schema snapshot was taken at another ts", object=str(key), found=pushed.snapshot.ts)
    return pushed
