"""The bucket as the pushers of a tenant see it when the service issues their credentials: they put, and that is all.

What a pusher must know of the bucket it asks the control plane:

    the key of a put is taken               is it my own earlier try? The control plane compares length and SHA-256
    a cluster's pusher starts again         which schema snapshot did the tenant begin with
    where to go on                          nothing: each life has a number of its own, and its files begin at 1

Anything else is refused here, before S3 would. A refusal by S3 names the tenant and its folder. Whether there are such
credentials is what the push bundle says; without them a pusher brings its own and reads for itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import NoReturn

from pusher.control import HttpControl, PushCredentials, SessionControl
from pusher.push_session import PushSession
from tistream.clock import Clock, SystemClock
from tistream.errors import InvalidInput, NotFound, ObjectConflict, ObjectNotFound, StoreRefused
from tistream.ids import Tenant
from tistream.objectstore.factory import open_session
from tistream.objectstore.layout import SchemaSnapKey, buffer_prefix, parse, schema_snap_prefix
from tistream.objectstore.metered import MeteredStore, open_metered
from tistream.objectstore.protocol import ObjectInfo, ObjectStore
from tistream.objectstore.session import SessionCredentials


def opening(control: HttpControl) -> Callable[[str], ObjectStore]:
    """Opens the bucket of a push bundle that `control` gave: with session credentials if the bundle says so."""

    def opened(url: str) -> ObjectStore:
        return MeteredStore(TenantStore(url, control)) if control.has_session else open_metered(url)

    return opened


class TenantStore:
    """An ObjectStore for one tenant's pushers. It opens the bucket with the first put."""

    def __init__(self, url: str, control: SessionControl, clock: Clock | None = None) -> None:
        self._url, self._control = url, control
        self._session = PushSession(control.push_credentials, clock or SystemClock())
        self._bucket: tuple[_Session, ObjectStore] | None = None

    def put(self, key: str, data: bytes | memoryview) -> None:
        credentials = self._session.current()
        try:
            self._opened(credentials).put(key, data)
        except StoreRefused as e:
            self._session.refused(credentials)
            raise self._told(key, e) from e

    def get(self, key: str) -> bytes:
        snapshot = parse(key)
        if not isinstance(snapshot, SchemaSnapKey) or snapshot.tenant != self._control.tenant:
            self._refuse("read", key)
        try:
            return self._control.pushed_schema(snapshot.ts)
        except NotFound as e:
            raise ObjectNotFound(key=key) from e

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        tenant = self._control.tenant
        if prefix != schema_snap_prefix(tenant):
            self._refuse("list", prefix)
        for found in self._control.pushed_schemas():
            key = str(SchemaSnapKey(tenant=tenant, ts=found.ts))
            if key > after:
                yield ObjectInfo(key=key, size=found.bytes, modified_ms=0)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        self._refuse("read", key)

    def size(self, key: str) -> int:
        self._refuse("read", key)

    def delete(self, key: str) -> None:
        self._refuse("delete", key)

    def _opened(self, credentials: PushCredentials) -> ObjectStore:
        bucket = self._bucket
        if bucket is None or bucket[0].kms_key_arn != credentials.kms_key_arn:
            session = _Session(self._control, credentials)
            bucket = self._bucket = (session, open_session(self._url, session))
        bucket[0].using = credentials
        return bucket[1]

    def _told(self, key: str, error: StoreRefused) -> StoreRefused:
        tenant = self._control.tenant
        return StoreRefused(
            f"the store refused a put of tenant {tenant} with its session credentials, which are for "
            f"{buffer_prefix(tenant)} and its seeds: {error.message}",
            key=key,
            tenant=str(tenant),
            prefix=buffer_prefix(tenant),
            determinate=True,
        )

    def _refuse(self, what: str, key: str) -> NoReturn:
        tenant: Tenant = self._control.tenant
        raise InvalidInput(
            f"the session credentials of tenant {tenant} may put objects below {buffer_prefix(tenant)}; "
            f"they may not {what} them",
            key=key,
        )


class _Session:
    """What the bucket is opened with."""

    def __init__(self, control: SessionControl, using: PushCredentials) -> None:
        self._control, self.using, self.kms_key_arn = control, using, using.kms_key_arn

    def credentials(self) -> SessionCredentials:
        return self.using.session

    def arrived(self, key: str, data: bytes | memoryview) -> bool:
        there = self._control.compare(key, len(data), hashlib.sha256(data).hexdigest())
        if there == "other":
            raise ObjectConflict(key=key, bytes_mine=len(data))
        return there == "same"
