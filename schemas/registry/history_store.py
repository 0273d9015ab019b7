"""Stores schema histories in the object store: a base, and increments with what changed since the object before.

Saving costs what changed. The newest row of the catalog's `schema_versions` names the end of the chain, whose head
names all objects before it. An increment holds the changes after that row's timestamp. A base is written again when the
increments have grown to half of it, or to 32 objects, so opening a history takes few requests.

Relations:

- the object is put before its row, so a row never names a missing object;
- several servers may save at once. What is written depends only on the newest row and the history, so servers that saw
  the same row write the same bytes under the same key. Two that saw different rows may want one key for different
  bytes: the store keeps the first, and the second server adopts it, as it does with an object that a restored catalog
  has no row of: it reads all of the chain, and adds the missing rows if the history is the same as its own;
- a chain is self-contained, whether or not another server published in between;
- tables are fetched from the base on demand, so a replaced object may be deleted only after a grace period.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from schemas.agreement import contradiction
from schemas.history import History
from schemas.saved import Chain, Fetch, Increment, increment_of, open_object
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.schema_versions import add_schema_version, has_schema_version, latest_schema_version
from tistream.errors import CorruptObject, ObjectConflict, ObjectNotFound
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
        return self._opened(tenant, version[1], self._fetch)[0]

    def _opened(self, tenant: Tenant, key: str, fetch_of: Callable[[str], Fetch]) -> tuple[History, tuple[int, ...]]:
        """The history that ends with this object, and the timestamps of the objects before it."""
        fetch = fetch_of(key)
        opening = open_object(key, fetch)
        last = increment_of(opening)
        if last is None:
            return History.open(opening, fetch), ()
        base_key = _key(tenant, last.chain.base)
        fetch = fetch_of(base_key)
        history = History.open(open_object(base_key, fetch), fetch)
        for ts in last.chain.increments:
            history.extend(self._increment(_key(tenant, ts)))
        history.extend(last)
        return history, (last.chain.base, *last.chain.increments)

    def save(self, tenant: Tenant, history: History, *, changed_only: bool = False) -> None:
        """Save what is not saved yet: nothing if the newest saved history reaches as far or, with `changed_only`, if no
        job changed anything since."""
        newest = latest_schema_version(self._catalog, tenant)
        if newest is None:
            self._publish(tenant, history, history.dump())
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
        self._publish(tenant, history, data)

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

    def _publish(self, tenant: Tenant, history: History, data: bytes) -> None:
        key = _key(tenant, history.resolved_ts)
        try:
            self._store.put(key, data)
        except ObjectConflict:
            if not has_schema_version(self._catalog, tenant, history.resolved_ts):
                self._adopt(tenant, history)
            return
        add_schema_version(self._catalog, tenant, history.resolved_ts, key, len(data))

    def _adopt(self, tenant: Tenant, history: History) -> None:
        """Add the rows of the object that is in the place of this history, and of those that it builds on: another
        server has put it and not added its row yet, or the catalog was restored and has lost it. CorruptObject when it
        is damaged or is another history."""
        key = _key(tenant, history.resolved_ts)
        try:
            there, before = self._opened(tenant, key, self._whole)
            fault = contradiction(history, there)
        except (CorruptObject, ObjectNotFound) as error:
            raise _not_adopted(key, str(error)) from error
        if fault:
            raise _not_adopted(key, fault)
        for ts in (*before, history.resolved_ts):
            name = _key(tenant, ts)
            add_schema_version(self._catalog, tenant, ts, name, self._store.size(name))

    def _whole(self, key: str) -> Fetch:
        data = self._store.get(key)
        return lambda offset, length: data[offset : offset + length]

    def _increment(self, key: str) -> Increment:
        increment = increment_of(open_object(key, self._fetch(key)))
        if increment is None:
            raise CorruptObject("a saved schema history names a base as an increment", object_key=key)
        return increment

    def _fetch(self, key: str) -> Fetch:
        return functools.partial(self._store.get_range, key)


def _key(tenant: Tenant, ts: int) -> str:
    return str(SchemasKey(tenant=tenant, ts=ts))


def _not_adopted(key: str, cause: str) -> CorruptObject:
    return CorruptObject(
        "the bucket has an object of this timestamp that is not the tenant's schema history. It was not overwritten, "
        "and the catalog has no row of it. Keep a copy and delete it: the history is saved anew",
        object_key=key,
        cause=cause,
    )
