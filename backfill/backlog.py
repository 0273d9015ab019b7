"""Which batch files lie in the bucket behind the positions of a tenant's tasks.

The newest incarnation of each store is read before its folders are listed. So an older incarnation ends at its last
contiguous file, as it does for a dispatcher that looked once more after it had learned of a newer one, and any
contiguous end is safe (see `dispatcher.tail`). The newest is taken up to its last contiguous file and stays open: what
comes later is the live sorter's.

LIST may find work here because nothing is missed by it: a file that is not listed is not taken, and stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import structlog

from backfill.core.plan import Step
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.snapshots import ALL_CONSUMED
from tistream.catalog.work.stores import list_stores, reclaimed
from tistream.errors import FeedGap
from tistream.ids import Tenant
from tistream.model.positions import Positions, position_of
from tistream.objectstore.layout import BatchKey, incarnation_prefix, parse
from tistream.objectstore.protocol import ObjectStore

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One life of a store, from the task that is furthest behind."""

    store_id: int
    incarnation: int
    after_seq: int
    sizes: tuple[int, ...]  #: of the files after_seq + 1, + 2, ..., bytes
    closes: bool  #: a newer incarnation is known, nothing more comes

    def steps(self) -> list[tuple[Step, int]]:
        """Each step, with the size of its file."""
        begin = Step(store_id=self.store_id, incarnation=self.incarnation, seq=self.after_seq)
        found = [(replace(begin, seq=seq), size) for seq, size in enumerate(self.sizes, self.after_seq + 1)]
        last = replace(begin, seq=self.after_seq + len(self.sizes), closes=True)
        return [*found, (last, 0)] if self.closes else found


def find_backlog(
    catalog: Catalog, store: ObjectStore, tenant: Tenant, positions: Mapping[int, Positions]
) -> dict[int, list[Stream]]:
    """store id -> its streams, oldest first. `positions` of each task. FeedGap when files that a task has not consumed
    were given up."""
    found: dict[int, list[Stream]] = {}
    for row in list_stores(catalog, tenant):
        given_up = reclaimed(catalog, tenant, row.store_id)
        forgotten = min(given_up, default=1)  # those before: every task had ended them
        found[row.store_id] = []
        lives = [of_task.get(row.store_id, {}) for of_task in positions.values()]
        for incarnation in range(min((min(of, default=1) for of in lives), default=1), row.incarnation + 1):
            places = [position_of(of, incarnation) for of in lives]
            left = [place.seq for place in places if not place.closed]
            if not left:
                continue
            after = min(left)
            gone = ALL_CONSUMED if incarnation < forgotten else given_up.get(incarnation, 0)
            if after < gone:
                raise FeedGap(
                    "a task has not consumed files that were given up; it has lost its snapshot",
                    store=row.store_id,
                    incarnation=incarnation,
                    seq=after + 1,
                    reclaimed_seq=gone,
                )
            sizes = _contiguous(store, tenant, row.store_id, incarnation, after)
            closes = incarnation < row.incarnation
            found[row.store_id].append(
                Stream(
                    store_id=row.store_id, incarnation=incarnation, after_seq=after, sizes=tuple(sizes), closes=closes
                )
            )
    return found


def _contiguous(store: ObjectStore, tenant: Tenant, store_id: int, incarnation: int, after: int) -> list[int]:
    """The sizes of the files behind `after`, up to the first that is not there."""
    sizes: list[int] = []
    first = BatchKey(tenant=tenant, store_id=store_id, incarnation=incarnation, seq=after)
    for info in store.list(incarnation_prefix(tenant, store_id, incarnation), after=str(first)):
        key = parse(info.key)
        if not isinstance(key, BatchKey):
            continue
        if key.seq != after + len(sizes) + 1:
            log.warning("files behind a missing one are not replayed", behind=info.key, seq=after + len(sizes) + 1)
            break
        sizes.append(info.size)
    return sizes
