"""Saved histories in the object store: a base, and increments that hold what changed since the object before.

Saving costs what changed. The newest row of the catalog's `schema_versions` says which object is the end of the chain;
its head names all objects before it. An increment holds the changes after that row's timestamp. A base is written anew
when the increments have grown to half of it, or to 32 objects, so a history opens with few requests.

Relations:

- the object is put before its row: a row never names an object that is not there;
- several servers may save at once. What is written depends only on the newest row and the history, so two that saw the
  same write the same bytes under the same key. Two that saw different rows may want one key for different bytes: the
  store keeps the first, and the second gives up, because that key's history is on its way already;
- a chain is complete by itself: it does not matter whether another server published in between;
- tables are fetched from the base when they are asked for, so an object that a newer base replaced must outlive the
  servers that opened it by a grace period before it may be deleted.
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


class KeptHistories:
    """See the module."""

    def __init__(self, catalog: Catalog, store: ObjectStore) -> None:
        self._catalog = catalog
        self._store = store

    def newest(self, tenant: Tenant) -> History | None:
        """The newest saved history; None when none was ever saved. CorruptObject for a chain that does not hold."""
        found = latest_schema_version(self._catalog, tenant)
        if found is None:
            return None
        opening = open_object(found[1], self._fetch(found[1]))
        last = increment_of(opening)
        if last is None:
            return History.open(opening, self._fetch(found[1]))
        base_key = _key(tenant, last.chain.base)
        history = History.open(open_object(base_key, self._fetch(base_key)), self._fetch(base_key))
        for ts in last.chain.increments:
            history.extend(self._increment(_key(tenant, ts)))
        history.extend(last)
        return history

    def save(self, tenant: Tenant, history: History, *, news_only: bool = False) -> None:
        """Save what is not saved yet: nothing when the newest saved history reaches as far or, with `news_only`, when
        no job changed anything since."""
        newest = latest_schema_version(self._catalog, tenant)
        if newest is None:
            self._publish(tenant, history.resolved_ts, history.dump())
            return
        saved_ts, key = newest
        if saved_ts >= history.resolved_ts or (news_only and not history.changes_since(saved_ts)):
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
            return  # another server's history up to the same moment, built on another row
        add_schema_version(self._catalog, tenant, ts, key, len(data))

    def _increment(self, key: str) -> Increment:
        found = increment_of(open_object(key, self._fetch(key)))
        if found is None:
            raise CorruptObject("a saved schema history names a base as an increment", object_key=key)
        return found

    def _fetch(self, key: str) -> Fetch:
        return functools.partial(self._store.get_range, key)


def _key(tenant: Tenant, ts: int) -> str:
    return str(SchemasKey(tenant=tenant, ts=ts))
