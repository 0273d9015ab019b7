"""Stores schema histories in the object store: a base, and increments with what changed since the object before.

Saving costs what changed. The newest row of the catalog's `schema_versions` names the end of the chain, whose head
names all objects before it. An increment holds the changes after that row's timestamp. A base is written again when the
increments have grown to half of it, or to 32 objects, so opening a history takes few requests.

Relations:

- the object is put before its row, so a row never names a missing object;
- several servers may save at once. What is written depends only on the newest row and the history, so servers that saw
  the same row write the same bytes under the same key. Two that saw different rows may want one key for different
  bytes: the store keeps the first and the second server gives up, as a history up to that timestamp is already saved;
- a chain is self-contained, whether or not another server published in between;
- tables are fetched from the base on demand, so a replaced object may be deleted only after a grace period.
"""

from __future__ import annotations

import functools

from schemas.history import History
from schemas.saved import Chain, Fetch, Increment, increment_of, open_object
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.schema_versions import add_schema_version, latest_schema_version
from tistream.errors import CorruptObject, ObjectConflict
from tistream.ids import Tenant
from tistream.objectstore.layout import SchemasKey
from tistream.objectstore.protocol import ObjectStore

_INCREMENTS_MAX = 32
_INCREMENTS_SHARE_MAX = 0.5  # of the base's bytes


class HistoryStore:
    def __init__(self, catalog: Catalog, store: ObjectStore) -> None:
        self._catalog = catalog
        self._store = store

    def newest(self, tenant: Tenant) -> History | None:
        """The newest saved history; None when none was saved. CorruptObject for a broken chain."""
        version = latest_schema_version(self._catalog, tenant)
        if version is None:
            return None
        opening = open_object(version[1], self._fetch(version[1]))
        last = increment_of(opening)
        if last is None:
            return History.open(opening, self._fetch(version[1]))
        base_key = _key(tenant, last.chain.base)
        history = History.open(open_object(base_key, self._fetch(base_key)), self._fetch(base_key))
        for ts in last.chain.increments:
            history.extend(self._increment(_key(tenant, ts)))
        history.extend(last)
        return history

    def save(self, tenant: Tenant, history: History, *, changed_only: bool = False) -> None:
        """Save what is not saved yet: nothing if the newest saved history reaches as far or, with `changed_only`, if no
        job changed anything since."""
        newest = latest_schema_version(self._catalog, tenant)
        if newest is None:
            self._publish(tenant, history.resolved_ts, history.dump())
            return
        saved_ts, key = newest
        if saved_ts >= history.resolved_ts or (changed_only and not history.changes_since(saved_ts)):
            return
        chain = self._chain(saved_ts, key)
        grown = chain.increment_bytes > _INCREMENTS_SHARE_MAX * chain.base_bytes
        if grown or len(chain.increments) >= _INCREMENTS_MAX or history.start_ts > saved_ts:
            data = history.dump()
        else:
            data = history.dump_increment(chain, saved_ts)
        self._publish(tenant, history.resolved_ts, data)

    def _chain(self, saved_ts: int, key: str) -> Chain:
        """The chain whose last object is `key`."""
        size = self._store.size(key)
        last = increment_of(open_object(key, self._fetch(key)))
        if last is None:
            return Chain(base=saved_ts, base_bytes=size)
        return Chain(
            base=last.chain.base,
            increments=(*last.chain.increments, saved_ts),
            base_bytes=last.chain.base_bytes,
            increment_bytes=last.chain.increment_bytes + size,
        )

    def _publish(self, tenant: Tenant, ts: int, data: bytes) -> None:
        key = _key(tenant, ts)
        try:
            self._store.put(key, data)
        except ObjectConflict:
            return  # another server's history up to the same timestamp, built on another row
        add_schema_version(self._catalog, tenant, ts, key, len(data))

    def _increment(self, key: str) -> Increment:
        increment = increment_of(open_object(key, self._fetch(key)))
        if increment is None:
            raise CorruptObject("a saved schema history names a base as an increment", object_key=key)
        return increment

    def _fetch(self, key: str) -> Fetch:
        return functools.partial(self._store.get_range, key)


def _key(tenant: Tenant, ts: int) -> str:
    return str(SchemasKey(tenant=tenant, ts=ts))
