"""Cache of what is served per tenant, shared by all followers of that tenant.

Followers woken by the same watermark need the same things: the tenant, its schema history, the served timestamp. These
are read once per watermark. The cache also keeps which table ids got segments with each watermark, so a follower of an
idle table knows without a catalog query or a thread that there is nothing for it.

The cache is conservative: a segment counts for an interval of table ids, and a large step counts for every table.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from reading.rows.scope import Scope, concerns
from reading.served.position import Served
from reading.served.services import Services
from schemas.history import History
from tistream.catalog.log import committed
from tistream.ids import Tenant

_SEGMENTS_MAX = 64  # of one step; with more, the step counts for every table
_STEPS_KEPT = 128
_TENANTS_KEPT = 256
_SCOPES_KEPT = 1024  # of one tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """The table ids with segments in (after, upto]."""

    after: int
    upto: int
    spans: tuple[tuple[int, int], ...] | None  #: intervals of table ids; None = every table


@dataclass(slots=True)
class _Entry:
    lock: threading.Lock = field(default_factory=threading.Lock)
    served: Served | None = None
    steps: deque[_Step] = field(default_factory=lambda: deque(maxlen=_STEPS_KEPT))
    ids: dict[Scope, tuple[History, int, list[int]]] = field(default_factory=dict)


class ServedCache:
    """The newest served state of each followed tenant. Safe to use from several threads."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lock = threading.Lock()
        self._entries: OrderedDict[Tenant, _Entry] = OrderedDict()

    def known(self, tenant: Tenant, watermark: int) -> Served | None:
        """The cached state if it covers `watermark`; never blocks. None for watermark -1, a deleted tenant."""
        entry = self._entries.get(tenant)
        served = None if entry is None else entry.served
        return served if served is not None and served.covers >= watermark >= 0 else None

    def at(self, tenant: Tenant, watermark: int) -> Served:
        """A state that covers `watermark`: cached, or read now."""
        entry = self._entry(tenant)
        with entry.lock:
            return self.known(tenant, watermark) or self._read(tenant, entry, watermark)

    def now(self, tenant: Tenant) -> Served:
        """The newest state, read now."""
        entry = self._entry(tenant)
        with entry.lock:
            return self._read(tenant, entry, 0)

    def _read(self, tenant: Tenant, entry: _Entry, watermark: int) -> Served:
        served, last = self._services.served(tenant), entry.served
        resolved = served.resolved
        if last is not None and 0 < last.resolved < resolved:
            entry.steps.append(self._step(tenant, last.resolved, resolved))
        elif last is None or last.resolved != resolved:
            entry.steps.clear()
        entry.served = replace(served, covers=max(resolved, watermark))
        return entry.served

    def is_idle(self, scope: Scope, after: int, served: Served) -> bool:
        """Whether there is surely nothing for the scope in (after, served.resolved]; never blocks."""
        entry, history = self._entries.get(scope.tenant), served.history
        if entry is None or not served.row.has_log:
            return False
        steps = [step for step in list(entry.steps) if step.upto > after]
        if not steps or steps[0].after > after or steps[-1].upto < served.resolved:
            return after >= served.resolved
        if history is not None and any(concerns(event, scope) for event in history.events(after, served.resolved)):
            return False
        if scope.database is None or history is None:
            return all(step.spans == () for step in steps)
        ids = self._ids(entry, scope, history, after, served.resolved)
        return all(step.spans is not None and not _overlap(step.spans, ids) for step in steps)

    def _ids(self, entry: _Entry, scope: Scope, history: History, after: int, upto: int) -> Sequence[int]:
        """The ids that the scope had in (after, upto], or a superset."""
        cached = entry.ids.get(scope)
        # a history that changes is a new object, so the same object means the same names
        if cached is None or cached[0] is not history or cached[1] > after:
            ids = sorted(history.physical_ids(scope.database or "", scope.table, after, upto))
            if len(entry.ids) >= _SCOPES_KEPT:
                entry.ids.clear()
            entry.ids[scope] = cached = (history, after, ids)
        return cached[2]

    def _entry(self, tenant: Tenant) -> _Entry:
        with self._lock:
            entry = self._entries.setdefault(tenant, _Entry())
            self._entries.move_to_end(tenant)
            while len(self._entries) > _TENANTS_KEPT:
                self._entries.popitem(last=False)
            return entry

    def _step(self, tenant: Tenant, after: int, upto: int) -> _Step:
        segments = committed.find_segments(
            self._services.catalog, tenant, after_ts=after, upto_ts=upto, limit=_SEGMENTS_MAX
        )
        if len(segments) == _SEGMENTS_MAX:
            return _Step(after=after, upto=upto, spans=None)
        return _Step(after=after, upto=upto, spans=tuple((s.table_lo, s.table_hi) for s in segments))


def _overlap(spans: Sequence[tuple[int, int]], ids: Sequence[int]) -> bool:
    return any(bisect_left(ids, lo) < len(ids) and ids[bisect_left(ids, lo)] <= hi for lo, hi in spans)
