"""Activates a waiting tenant when its first usable schema snapshot is in the bucket.

The folder of pushed snapshots is listed for waiting tenants only, with growing pauses, and at once after a notification
(`tistream.feed.hints`). The first usable snapshot (by ts) decides: its timestamp becomes `start_ts` and the
`durable_ts` of every task, in one transaction, once. An unusable snapshot stops the activation of its tenant alone,
with a problem that names the object; a snapshot pushed under another ts replaces it within seconds. Nothing is ever
guessed from a damaged snapshot. A snapshot ahead of the service's time is held until that time has come: else the log
would begin after changes that are yet to come. Of many snapshots the newest SNAPSHOTS_READ_MAX count.

A large snapshot is parsed aside (`schemas.registry.pushed`), one of a tenant at a time, while other tenants are
activated.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import structlog

from metaserver.background import Background
from metaserver.contained import Contained
from metaserver.initial_ranges import lay_out
from schemas.history import History
from schemas.registry.pushed import history_of, is_small
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.service_time import service_time
from tistream.catalog.rows.tenants import TenantState
from tistream.catalog.tenancy.tenants import activate_tenant, list_tenants
from tistream.catalog.work.stopped_items import ACTIVATION
from tistream.clock import Clock
from tistream.errors import CorruptObject, TiStreamError, TooLarge
from tistream.ids import Tenant
from tistream.limits import CLOCK_SKEW_MAX_MS, SNAPSHOT_BYTES_MAX, SNAPSHOTS_READ_MAX
from tistream.model.problem import Problem
from tistream.objectstore.bounded import check_size
from tistream.objectstore.layout import SchemaSnapKey, parse, schema_snap_prefix
from tistream.objectstore.protocol import ObjectInfo, ObjectStore
from tistream.runtime.service import Backoff
from tistream.ts import TSO_END

log = structlog.get_logger(__name__)

_FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0
_REREAD_S = 600.0  #: between two reads of a refused snapshot: a newer version may understand it


@dataclass(slots=True)
class _Waiting:
    backoff: Backoff
    hints: int = 0  #: notifications of its snapshot that were followed
    due_s: float = 0.0
    #: object key -> (error, time of the read)
    refused: dict[str, tuple[TiStreamError, float]] = field(default_factory=dict)
    parsing: tuple[str, Background[History]] | None = None  #: the key of a large snapshot, and what becomes of it


class Activation:
    """Activates the tenants that await their schema snapshot. Used from one thread."""

    def __init__(
        self,
        catalog: Catalog,
        store: ObjectStore,
        clock: Clock,
        data_tasks: int,
        name: str = "",
        skew_max_ms: int = CLOCK_SKEW_MAX_MS,
        *,
        pause_max_s: float = LONGEST_PAUSE_S,
    ) -> None:
        """`name` of the process, for problems. `skew_max_ms`: how far a snapshot may be ahead of the service's time.
        `pause_max_s`: between two listings for a tenant without a notification."""
        self._skew_max_ms = skew_max_ms
        self._catalog, self._store, self._clock, self._data_tasks = catalog, store, clock, data_tasks
        self.tenants = Contained(
            catalog, clock, name, ACTIVATION, stopped_first_s=_FIRST_PAUSE_S, stopped_max_s=LONGEST_PAUSE_S
        )
        self._pause_max_s = pause_max_s
        self._source = f"{name}/{ACTIVATION}" if name else ACTIVATION
        self._waiting: dict[Tenant, _Waiting] = {}

    def step(self) -> None:
        """Check every due tenant once."""
        self.tenants.load()
        rows = list_tenants(self._catalog, TenantState.AWAITING_SNAPSHOT)
        fresh = {
            row.tenant: _Waiting(Backoff(first_s=_FIRST_PAUSE_S, max_s=self._pause_max_s))
            for row in rows
            if row.tenant not in self._waiting
        }
        tenants_now = {row.tenant for row in rows}
        self._waiting = {t: w for t, w in (self._waiting | fresh).items() if t in tenants_now}
        self.tenants.keep_only(tenants_now)
        for row in rows:
            waiting = self._waiting[row.tenant]
            if waiting.hints != row.schema_hints:
                waiting.hints, waiting.due_s = row.schema_hints, 0.0
        for tenant, waiting in self._waiting.items():
            if self._clock.monotonic() >= waiting.due_s and self.tenants.is_due(tenant):
                self.tenants.run(tenant, lambda t=tenant, w=waiting: self._activate(t, w))  # type: ignore[misc]
                waiting.due_s = self._clock.monotonic() + waiting.backoff.next_s()
        self.tenants.sync()

    def resume(self) -> None:
        """Retry stopped tenants now, as an operator asked: read refused snapshots again."""
        for waiting in list(self._waiting.values()):
            waiting.due_s = 0.0
            waiting.refused = {}

    def problems(self) -> list[Problem]:
        """Every unusable snapshot, and other errors of activation."""
        waiting = dict(self._waiting)
        refused = [
            Problem.of(f"{self._source}/{tenant}", error, fatal=True, contained=True)
            for tenant, w in waiting.items()
            for error, _ in tuple(w.refused.values())
        ]
        named = {(p.source, p.message, str(p.facts.get("object"))) for p in refused}
        rest = [p for p in self.tenants.problems() if (p.source, p.message, str(p.facts.get("object"))) not in named]
        return refused + rest

    def _activate(self, tenant: Tenant, waiting: _Waiting) -> None:
        """Activate the tenant by the first usable snapshot; without one, raise the error of a refused one."""
        for key, info in self._newest(tenant, waiting):
            if key.ts < TSO_END:
                time = service_time(self._catalog, self._clock, self._skew_max_ms)
                if ahead := time.ahead(key.ts, "schema snapshot", object=info.key, tenant=str(tenant)):
                    raise ahead  # as are all that follow: they are listed by ts
            history = self._usable(key, info, waiting)
            if waiting.parsing is not None and waiting.parsing[0] == info.key:
                waiting.backoff.reset()
                return
            if history is None:
                continue
            tasks = lay_out(history, self._data_tasks)
            if activate_tenant(self._catalog, tenant, key.ts, tasks):
                log.info("tenant activated", tenant=str(tenant), start_ts=key.ts, tasks=len(tasks))
            waiting.refused = {}
            return
        if waiting.refused:
            raise list(waiting.refused.values())[-1][0]

    def _newest(self, tenant: Tenant, waiting: _Waiting) -> list[tuple[SchemaSnapKey, ObjectInfo]]:
        """The snapshots that count, oldest first. Others are forgotten."""
        listed = ((parse(info.key), info) for info in self._store.list(schema_snap_prefix(tenant)))
        snapshots = ((key, info) for key, info in listed if isinstance(key, SchemaSnapKey))
        newest = list(deque(snapshots, SNAPSHOTS_READ_MAX))
        known = {info.key for _, info in newest}
        waiting.refused = {key: error for key, error in waiting.refused.items() if key in known}
        return newest

    def _usable(self, key: SchemaSnapKey, info: ObjectInfo, waiting: _Waiting) -> History | None:
        """The history that begins with the snapshot, or None when it is refused or still being parsed; a known one is
        not read again."""
        now_s = self._clock.monotonic()
        known = waiting.refused.get(info.key)
        if known is not None and now_s - known[1] < _REREAD_S:
            return None
        try:
            history = self._read(key, info.key, waiting)
        except (CorruptObject, TooLarge) as e:
            if known is None:
                log.warning("schema snapshot refused, the tenant keeps waiting", error=str(e))
            waiting.refused[info.key] = e, now_s
            return None
        waiting.refused.pop(info.key, None)
        return history

    def _read(self, key: SchemaSnapKey, name: str, waiting: _Waiting) -> History | None:
        """The history, or None while it is being parsed."""
        if waiting.parsing is None or waiting.parsing[0] != name:
            data = self._store.get(name, lambda size: check_size(name, size, SNAPSHOT_BYTES_MAX))
            if is_small(data):
                return read_snapshot(key, data)
            waiting.parsing = name, Background(lambda: read_snapshot(key, data), f"parse {name}")
        background = waiting.parsing[1]
        if not background.done:
            return None
        waiting.parsing = None
        return background.result()


def read_snapshot(key: SchemaSnapKey, data: bytes) -> History:
    """The history that begins with a pushed schema snapshot. CorruptObject with object and position when it is damaged
    or does not match its key."""
    try:
        history = history_of(data)
    except CorruptObject as e:
        raise CorruptObject(e.message, **{**e.facts, "object": str(key)}) from e
    if key.ts >= TSO_END:
        raise CorruptObject("the ts of the schema snapshot is no TSO", object=str(key))
    if history.start_ts != key.ts:
        raise CorruptObject("the schema snapshot was taken at another ts", object=str(key), found=history.start_ts)
    return history
