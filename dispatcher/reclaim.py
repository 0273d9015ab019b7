"""Deletes batch files that no task needs any more.

Order: first the catalog (`reclaimed_seq`, guarded by this dispatcher's epoch), then an export of the catalog that has
it (`tistream.catalog.database.decisions`), then the objects. A dispatcher that ends in between leaves objects at or
below `reclaimed_seq`, which the next sweep deletes. Only durable positions read in one transaction permit a deletion,
never what a subscriber has received.

A sweep lists the store's folder once, whatever the number of incarnations, from the oldest file to the last reclaimed
one of the newest incarnation. Once it has deleted every file of the ended incarnations, these are forgotten
(`tistream.catalog.work.stores`). A late file of a forgotten incarnation is deleted by a later sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

import structlog

from dispatcher.core.ack import EVERYTHING, Reclaim, reclaimable
from dispatcher.tail import Tail
from dispatcher.tenant_pool import TenantPool
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.snapshots import ALL_CONSUMED, durable_floor
from tistream.catalog.work.stores import Reclaimed, StoreRow, forget_incarnations, reclaims, set_reclaimed
from tistream.ids import Tenant
from tistream.objectstore.layout import BatchKey, incarnation_prefix, parse, store_prefix
from tistream.objectstore.protocol import ObjectStore

log = structlog.get_logger(__name__)

_DELETES_AT_ONCE = 64

assert EVERYTHING == ALL_CONSUMED


class Reclaimer:
    """Carries out `dispatcher.core.ack` for a dispatcher's stores."""

    def __init__(self, catalog: Catalog, store: ObjectStore, pool: TenantPool, stopping: Callable[[], bool]) -> None:
        self._catalog, self._store, self._pool, self._stopping = catalog, store, pool, stopping
        self.waiting: dict[tuple[Tenant, int], dict[int, Reclaim]] = {}  #: store -> incarnation -> what an export lacks

    def reclaim(self, row: StoreRow, tail: Tail) -> int:
        """Delete what one store no longer needs. Returns the number of objects deleted."""
        floors = durable_floor(self._catalog, row.tenant, row.store_id)
        waiting = self.waiting.setdefault((row.tenant, row.store_id), {})
        reclaimed_seqs = {incarnation: part.seq for incarnation, part in self.refresh(row, tail).items()}
        for part in reclaimable(floors, reclaimed_seqs, row.incarnation):
            if part.incarnation in waiting:
                continue  # one decision at a time
            if not self._record(row, part):
                log.warning("reclaim refused, another dispatcher owns the store", store=row.store_id)
                break
            tail.set_reclaimed(part.incarnation, part.upto_seq)
            waiting[part.incarnation] = part
        if not waiting:
            return 0
        deleted = 0
        for incarnation, known in self.refresh(row, tail).items():
            if known.deletable and incarnation in waiting:
                deleted += self._delete(row.tenant, self._keys(row, waiting[incarnation]))
                del waiting[incarnation]
        return deleted

    def refresh(self, row: StoreRow, tail: Tail) -> dict[int, Reclaimed]:
        """Read the reclaimed positions and pass them to the tail."""
        known = reclaims(self._catalog, row.tenant, row.store_id)
        for incarnation, part in known.items():
            tail.set_reclaimed(incarnation, part.seq)
        tail.set_oldest(min(known, default=1))
        return known

    def sweep(self, row: StoreRow, tail: Tail) -> int:
        """Delete what a predecessor could not delete and late files of ended incarnations, and forget incarnations
        without files. Makes one LIST request."""
        done = {i: part.seq if part.deletable else 0 for i, part in self.refresh(row, tail).items()}
        if len(done) <= 1 and not any(done.values()) and min(done, default=1) == 1:
            return 0  # nothing was ever reclaimed
        deleted = self._delete(row.tenant, self._reclaimed_files(row, done))
        ended = next((i for i in sorted(done) if done[i] < EVERYTHING or i >= row.incarnation), row.incarnation)
        if ended > min(done, default=ended) and not self._stopping():
            forget_incarnations(
                self._catalog, row.tenant, row.store_id, below=ended, dispatcher_epoch=row.dispatcher_epoch
            )
        return deleted

    def _reclaimed_files(self, row: StoreRow, done: Mapping[int, int]) -> Iterator[str]:
        oldest = min(done, default=1)
        for info in self._store.list(store_prefix(row.tenant, row.store_id)):
            key = parse(info.key)
            if not isinstance(key, BatchKey):
                continue
            upto = EVERYTHING if key.incarnation < oldest else done.get(key.incarnation, 0)
            if key.seq <= upto:
                yield info.key
            elif key.incarnation >= row.incarnation:
                return

    def _record(self, row: StoreRow, part: Reclaim) -> bool:
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

    def _delete(self, tenant: Tenant, keys: Iterable[str]) -> int:
        """Delete in parallel chunks. The first error ends it; the rest waits for the next sweep."""
        remaining, deleted = iter(keys), 0
        while not self._stopping() and (chunk := list(islice(remaining, _DELETES_AT_ONCE))):
            self._pool.of(tenant).each(self._store.delete, chunk)
            deleted += len(chunk)
        return deleted
