"""What is served of a tenant at a moment, shared by everybody who follows it.

Readers that are woken by the same move of a watermark need the same facts: the tenant, its schema history, the served
timestamp. They are asked for once a move. With them comes which tables the log had segments of since the last moment,
so a follower of a quiet table knows from memory that there is nothing for it: no catalog query, no thread.

What is remembered errs on the side of looking: segments name an interval of table ids, a long step is "anything".
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from reading.cursor import Scope
from reading.deps import Services
from schemas.history import History
from schemas.model import DdlEvent
from tistream.catalog.log import committed
from tistream.catalog.tenancy.tenants import TenantRow
from tistream.ids import Tenant

_SEGMENTS_MAX = 64  # of one step; more is "anything"
_STEPS_KEPT = 128
_TENANTS_KEPT = 256
_SCOPES_KEPT = 1024  # of one tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What is served of a tenant."""

    row: TenantRow
    history: History | None
    resolved: int
    covers: int  #: asking again makes sense when the watermark is above this


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What the log got in (after, upto]."""

    after: int
    upto: int
    spans: tuple[tuple[int, int], ...] | None  #: intervals of table ids; None = anything


@dataclass(slots=True)
class _Held:
    lock: threading.Lock = field(default_factory=threading.Lock)
    moment: Moment | None = None
    steps: deque[_Step] = field(default_factory=lambda: deque(maxlen=_STEPS_KEPT))
    ids: dict[Scope, tuple[History, int, list[int]]] = field(default_factory=dict)


class Moments:
    """The newest moment of each followed tenant. Safe to use from several threads."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lock = threading.Lock()
        self._held: OrderedDict[Tenant, _Held] = OrderedDict()

    def known(self, tenant: Tenant, watermark: int) -> Moment | None:
        """The moment that covers `watermark`, if it is known; never blocks. A tenant that has lost its tasks (-1) is
        deleted: nothing that was known of it covers that."""
        held = self._held.get(tenant)
        moment = None if held is None else held.moment
        return moment if moment is not None and moment.covers >= watermark >= 0 else None

    def at(self, tenant: Tenant, watermark: int) -> Moment:
        """A moment that covers `watermark`, read now unless somebody else has."""
        held = self._of(tenant)
        with held.lock:
            return self.known(tenant, watermark) or self._read(tenant, held, watermark)

    def now(self, tenant: Tenant) -> Moment:
        """The moment of now; who follows from here on knows what comes."""
        held = self._of(tenant)
        with held.lock:
            return self._read(tenant, held, 0)

    def _read(self, tenant: Tenant, held: _Held, watermark: int) -> Moment:
        row, history, resolved = self._services.served(tenant)
        last = held.moment
        if last is not None and 0 < last.resolved < resolved:
            held.steps.append(self._step(tenant, last.resolved, resolved))
        elif last is None or last.resolved != resolved:
            held.steps.clear()
        held.moment = Moment(row=row, history=history, resolved=resolved, covers=max(resolved, watermark))
        return held.moment

    def is_quiet(self, scope: Scope, after: int, moment: Moment, concerns: Callable[[DdlEvent, Scope], bool]) -> bool:
        """Whether there is surely nothing for the scope in (after, moment.resolved]; never blocks."""
        held, history = self._held.get(scope.tenant), moment.history
        if held is None or history is None:
            return False
        steps = [step for step in list(held.steps) if step.upto > after]
        if not steps or steps[0].after > after or steps[-1].upto < moment.resolved:
            return after >= moment.resolved
        if any(concerns(event, scope) for event in history.events(after, moment.resolved)):
            return False
        if scope.database is None:
            return all(step.spans == () for step in steps)
        ids = self._ids(held, scope, history, after, moment.resolved)
        return all(step.spans is not None and not _meet(step.spans, ids) for step in steps)

    def _ids(self, held: _Held, scope: Scope, history: History, after: int, upto: int) -> Sequence[int]:
        """The ids that the scope had in (after, upto], or more of them."""
        found = held.ids.get(scope)
        # A history that learns something is a new object, so the names are those of the last time.
        if found is None or found[0] is not history or found[1] > after:
            ids = sorted(history.physical_ids(scope.database or "", scope.table, after, upto))
            if len(held.ids) >= _SCOPES_KEPT:
                held.ids.clear()
            held.ids[scope] = found = (history, after, ids)
        return found[2]

    def _of(self, tenant: Tenant) -> _Held:
        with self._lock:
            held = self._held.setdefault(tenant, _Held())
            self._held.move_to_end(tenant)
            while len(self._held) > _TENANTS_KEPT:
                self._held.popitem(last=False)
            return held

    def _step(self, tenant: Tenant, after: int, upto: int) -> _Step:
        segments = committed.find_segments(
            self._services.catalog, tenant, after_ts=after, upto_ts=upto, limit=_SEGMENTS_MAX
        )
        if len(segments) == _SEGMENTS_MAX:
            return _Step(after=after, upto=upto, spans=None)
        return _Step(after=after, upto=upto, spans=tuple((s.table_lo, s.table_hi) for s in segments))


def _meet(spans: Sequence[tuple[int, int]], ids: Sequence[int]) -> bool:
    return any(bisect_left(ids, lo) < len(ids) and ids[bisect_left(ids, lo)] <= hi for lo, hi in spans)
