"""Finds the batch files behind the positions of a tenant's tasks.

The newest incarnation of each store is read before its folders are listed. An older incarnation therefore ends at its
last contiguous file, as for a dispatcher that has learned of a newer one (see `dispatcher.tail`). The newest is taken
up to its last contiguous file and stays open: later files are left to the live sorter. A file missing from a LIST is
not taken and stays in the bucket.
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
    """The files of one incarnation of a store, from the task that is furthest behind."""

    store_id: int
    incarnation: int
    after_seq: int
    sizes: tuple[int, ...]  #: of the files after_seq + 1, + 2, ..., bytes
    closes: bool  #: a newer incarnation exists: no more files follow

    def steps(self) -> list[tuple[Step, int]]:
        """(step, size of its file)"""
        begin = Step(store_id=self.store_id, incarnation=self.incarnation, seq=self.after_seq)
        found = [(replace(begin, seq=seq), size) for seq, size in enumerate(self.sizes, self.after_seq + 1)]
        last = replace(begin, seq=self.after_seq + len(self.sizes), closes=True)
        return [*found, (last, 0)] if self.closes else found


def find_backlog(
    catalog: Catalog, store: ObjectStore, tenant: Tenant, positions: Mapping[int, Positions]
) -> dict[int, list[Stream]]:
    """store id -> its streams, oldest first. `positions` of each task. FeedGap when files that a task has not consumed
    were reclaimed."""
    found: dict[int, list[Stream]] = {}
    for row in list_stores(catalog, tenant):
        reclaimed_seqs = reclaimed(catalog, tenant, row.store_id)
        forgotten_below = min(reclaimed_seqs, default=1)  # every task had closed these incarnations
        found[row.store_id] = []
        consumed = [of_task.get(row.store_id, {}) for of_task in positions.values()]
        for incarnation in range(min((min(of, default=1) for of in consumed), default=1), row.incarnation + 1):
            at = [position_of(of, incarnation) for of in consumed]
            open_seqs = [position.seq for position in at if not position.closed]
            if not open_seqs:
                continue
            after = min(open_seqs)
            gone = ALL_CONSUMED if incarnation < forgotten_below else reclaimed_seqs.get(incarnation, 0)
            if after < gone:
                raise FeedGap(
                    "a task has not consumed files that were reclaimed: its snapshot is lost",
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
    """The sizes of the files behind `after`, up to the first missing one."""
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
