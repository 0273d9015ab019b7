"""Error containment in one role of the meta server: an error stops one tenant, and the catalog records it.

    tenants.load()                          start of a round: stops recorded before this process started
    tenants.keep_only(tenants of the round)
    for each: tenants.run(tenant, step)     see `tistream.runtime.containment`
    tenants.sync()                          end of a round: record the stops in the catalog

A job without a tenant ("prune events") is an item too, named by a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tistream.catalog.database.engine import Catalog
from tistream.catalog.work.stopped_items import Scope, StoppedItemRecords, StoppedItemRow
from tistream.clock import Clock
from tistream.ids import Tenant
from tistream.model.problem import Problem
from tistream.runtime.containment import STOPPED_FIRST_S, STOPPED_MAX_S, Containment

Item = Tenant | str  #: a tenant, or a job without one


class Contained:
    """The items of one role. `problems`, `stopped` and `take_resumed` are thread-safe; the rest is for one thread."""

    def __init__(
        self,
        catalog: Catalog,
        clock: Clock,
        name: str,
        role: str,
        *,
        stopped_first_s: float = STOPPED_FIRST_S,
        stopped_max_s: float = STOPPED_MAX_S,
    ) -> None:
        """`name` of the process; empty in a command that runs the role once."""
        self._items = Containment[Item](
            f"{name}/{role}" if name else role,
            clock,
            stopped_first_s=stopped_first_s,
            stopped_max_s=stopped_max_s,
            fenced_stops=True,
        )
        self._stops = StoppedItemRecords[Item](
            catalog, role, self._items, scope=_scope, item_of=_item_of, seconds=clock.monotonic
        )
        self.load, self.sync = self._stops.load, self._stops.sync
        self.take_resumed, self.forget = self._stops.take_resumed, self._stops.forget
        self.problems, self.failed, self.is_due = self._items.problems, self._items.failed, self._items.is_due

    def run(self, item: Item, step: Callable[[], object]) -> bool:
        """Run one step of an item, unless it waits; whether it ran and succeeded. Fenced is an error like any other:
        the meta server owns no tenant."""
        return self._items.run(item, step)

    def keep_only(self, tenants: Iterable[Tenant]) -> None:
        """Forget other tenants; jobs stay."""
        kept = set(tenants)
        for item in self._items.waiting():
            if isinstance(item, Tenant) and item not in kept:
                self._items.forget(item)

    def stopped(self) -> dict[Item, Problem]:
        """The items that an error has stopped."""
        return self._items.stopped()


def _scope(item: Item) -> tuple[Scope, Tenant | None, str]:
    return (Scope.TENANT, item, str(item)) if isinstance(item, Tenant) else (Scope.JOB, None, item)


def _item_of(row: StoppedItemRow) -> Item | None:
    return row.stopped.tenant or row.stopped.item
