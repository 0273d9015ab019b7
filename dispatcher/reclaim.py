"""Deletes batch files that no task needs any more.

Order: the catalog first (`reclaimed_seq`, guarded by this dispatcher's epoch), the objects after it. A crash in between
leaves objects at or below `reclaimed_seq`; whoever owns the store next deletes them again when it takes over. A file is
never deleted on the strength of what a subscriber has received, only on durable positions read in one transaction.

A sweep lists the store's folder once, whatever the number of its incarnations: it begins with the oldest and ends
behind what has been given up of the newest. When it could delete every file of the ended incarnations, these are
forgotten (`tistream.catalog.work.stores`). A file of a forgotten one that arrives later is deleted by a later sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from itertools import islice

import structlog

from dispatcher.core.ack import EVERYTHING, Reclaim, reclaimable
from dispatcher.tail import Tail
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.snapshots import ALL_CONSUMED, durable_floor
from tistream.catalog.work.stores import StoreRow, forget_incarnations, reclaimed, set_reclaimed
from tistream.objectstore.layout import BatchKey, incarnation_prefix, parse, store_prefix
from tistream.objectstore.protocol import ObjectStore

log = structlog.get_logger(__name__)

_DELETES_AT_ONCE = 64

assert EVERYTHING == ALL_CONSUMED


class Reclaimer:
    """The reclaim arithmetic of `dispatcher.core.ack` carried out for one dispatcher's stores."""

    def __init__(self, catalog: Catalog, store: ObjectStore, pool: Executor, stopping: Callable[[], bool]) -> None:
        self._catalog, self._store, self._pool, self._stopping = catalog, store, pool, stopping

    def reclaim(self, row: StoreRow, tail: Tail) -> int:
        """Give up and delete what may go of one store. Returns how many objects were asked to be deleted."""
        floors = durable_floor(self._catalog, row.tenant, row.store_id)
        deleted = 0
        for part in reclaimable(floors, self.learn(row, tail), row.incarnation):
            if not self._give_up(row, part):
                log.warning("reclaim refused: the store has another dispatcher", store=row.store_id)
                break
            tail.set_reclaimed(part.incarnation, part.upto_seq)
            deleted += self._delete(self._keys(row, part))
        return deleted

    def learn(self, row: StoreRow, tail: Tail) -> dict[int, int]:
        """Read what has been given up, and tell the tail."""
        gone = reclaimed(self._catalog, row.tenant, row.store_id)
        for incarnation, seq in gone.items():
            tail.set_reclaimed(incarnation, seq)
        tail.set_oldest(min(gone, default=1))
        return gone

    def sweep(self, row: StoreRow, tail: Tail) -> int:
        """Delete what a predecessor gave up and could not delete, and late files of ended incarnations, and forget the
        incarnations that have no files left. Makes one LIST request."""
        gone = self.learn(row, tail)
        if len(gone) <= 1 and not any(gone.values()) and min(gone, default=1) == 1:
            return 0  # nothing was ever given up
        deleted = self._delete(self._given_up(row, gone))
        ended = next((i for i in sorted(gone) if gone[i] < EVERYTHING or i >= row.incarnation), row.incarnation)
        if ended > min(gone, default=ended) and not self._stopping():
            forget_incarnations(
                self._catalog, row.tenant, row.store_id, below=ended, dispatcher_epoch=row.dispatcher_epoch
            )
        return deleted

    def _given_up(self, row: StoreRow, gone: Mapping[int, int]) -> Iterator[str]:
        oldest = min(gone, default=1)
        for info in self._store.list(store_prefix(row.tenant, row.store_id)):
            key = parse(info.key)
            if not isinstance(key, BatchKey):
                continue
            upto = EVERYTHING if key.incarnation < oldest else gone.get(key.incarnation, 0)
            if key.seq <= upto:
                yield info.key
            elif key.incarnation >= row.incarnation:
                return

    def _give_up(self, row: StoreRow, part: Reclaim) -> bool:
        return set_reclaimed(
            self._catalog,
            row.tenant,
            row.store_id,
            part.incarnation,
            part.upto_seq,
            dispatcher_epoch=row.dispatcher_epoch,
        )

    def _keys(self, row: StoreRow, part: Reclaim) -> Iterable[str]:
        if part.whole:
            return self._listed(row, part.incarnation, EVERYTHING)
        return (
            str(BatchKey(tenant=row.tenant, store_id=row.store_id, incarnation=part.incarnation, seq=seq))
            for seq in range(part.after_seq + 1, part.upto_seq + 1)
        )

    def _listed(self, row: StoreRow, incarnation: int, upto_seq: int) -> Iterable[str]:
        for info in self._store.list(incarnation_prefix(row.tenant, row.store_id, incarnation)):
            key = parse(info.key)
            if isinstance(key, BatchKey):
                if key.seq > upto_seq:
                    return
                yield info.key

    def _delete(self, keys: Iterable[str]) -> int:
        """Delete in chunks, side by side. The first error ends it: what is left waits for the next sweep."""
        rest, deleted = iter(keys), 0
        while not self._stopping() and (chunk := list(islice(rest, _DELETES_AT_ONCE))):
            for _ in self._pool.map(self._store.delete, chunk):
                deleted += 1
        return deleted
