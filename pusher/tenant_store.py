"""A tenant's bucket for pushers with session credentials, which may put objects and nothing else.

What a pusher needs to know of the bucket it asks the control plane:

    a put finds its key taken               by an earlier attempt of its own? The service compares length and SHA-256
    a cluster's pusher restarts             which schema snapshot did the tenant start with
    where to continue                       nothing: each incarnation has its own number, and its files start at 1

Any other operation is refused here. A refusal by S3 is reported with tenant and folder. The push bundle says whether
there are session credentials; without them a pusher uses its own and reads the bucket itself.
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
from tistream.objectstore.keys import admit_size
from tistream.objectstore.layout import SchemaSnapKey, buffer_prefix, parse, schema_snap_prefix
from tistream.objectstore.metered import MeteredStore, open_metered
from tistream.objectstore.protocol import Admit, ObjectInfo, ObjectStore
from tistream.objectstore.session import SessionCredentials


def opening(control: HttpControl) -> Callable[[str], ObjectStore]:
    """A function that opens the bucket of `control`'s push bundle, with session credentials if the bundle offers
    them."""

    def opened(url: str) -> ObjectStore:
        return MeteredStore(TenantStore(url, control)) if control.has_session else open_metered(url)

    return opened


class TenantStore:
    """An ObjectStore for one tenant's pushers. Opens the bucket on the first put."""

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
            raise self._refusal(key, e) from e

    def get(self, key: str, admit: Admit | None = None) -> bytes:
        snapshot = parse(key)
        if not isinstance(snapshot, SchemaSnapKey) or snapshot.tenant != self._control.tenant:
            self._not_allowed("read", key)
        try:
            data = self._control.pushed_schema(snapshot.ts)
        except NotFound as e:
            raise ObjectNotFound(key=key) from e
        admit_size(key, len(data), admit)
        return data

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        tenant = self._control.tenant
        if prefix != schema_snap_prefix(tenant):
            self._not_allowed("list", prefix)
        for pushed in self._control.pushed_schemas():
            key = str(SchemaSnapKey(tenant=tenant, ts=pushed.ts))
            if key > after:
                yield ObjectInfo(key=key, size=pushed.bytes, modified_ms=0)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        self._not_allowed("read", key)

    def size(self, key: str) -> int:
        self._not_allowed("read", key)

    def delete(self, key: str) -> None:
        self._not_allowed("delete", key)

    def _opened(self, credentials: PushCredentials) -> ObjectStore:
        bucket = self._bucket
        if bucket is None or bucket[0].kms_key_arn != credentials.kms_key_arn:
            session = _Session(self._control, credentials)
            bucket = self._bucket = (session, open_session(self._url, session))
        bucket[0].using = credentials
        return bucket[1]

    def _refusal(self, key: str, error: StoreRefused) -> StoreRefused:
        tenant = self._control.tenant
        return StoreRefused(
            f"the store refused a put of tenant {tenant} with session credentials for "
            f"{buffer_prefix(tenant)} and its seeds: {error.message}",
            key=key,
            tenant=str(tenant),
            prefix=buffer_prefix(tenant),
            determinate=True,
        )

    def _not_allowed(self, what: str, key: str) -> NoReturn:
        tenant: Tenant = self._control.tenant
        raise InvalidInput(
            f"the session credentials of tenant {tenant} may put objects below {buffer_prefix(tenant)}; "
            f"they may not {what} them",
            key=key,
        )


class _Session:
    """The session that the bucket is opened with."""

    def __init__(self, control: SessionControl, using: PushCredentials) -> None:
        self._control, self.using, self.kms_key_arn = control, using, using.kms_key_arn

    def credentials(self) -> SessionCredentials:
        return self.using.session

    def arrived(self, key: str, data: bytes | memoryview) -> bool:
        result = self._control.compare(key, len(data), hashlib.sha256(data).hexdigest())
        if result == "other":
            raise ObjectConflict(key=key, bytes_mine=len(data))
        return result == "same"
