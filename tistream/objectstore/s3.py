"""Object store in an S3 bucket, through obstore.

Credentials come from the usual AWS_* variables, from the machine's role, or from a session (`objectstore.session`) that
is asked before each request. Retries are obstore's: at most four within 30 s, for throttling, server errors and broken
connections. A retried put may meet its own first try, and a server may answer 409 while another put of the key is
undecided. Both look like "already exists", so the put then reads the object back (or its session checks): equal bytes
are its own, other bytes are a conflict, and no object means retry.

A missing bucket answers 404 like a missing object, but must not look like one (a reader would wait forever): it is
StoreUnavailable wherever the server distinguishes the two, which is everywhere but in `size`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotFoundError,
    NotModifiedError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import S3Store as _Bucket

from tistream.errors import ConfigError, InvalidInput, ObjectNotFound, StoreRefused, StoreUnavailable, TiStreamError
from tistream.objectstore.keys import admit_size, check_key, check_prefix, check_range, settle, too_short
from tistream.objectstore.protocol import Admit, ObjectInfo
from tistream.objectstore.session import WriteSession

if TYPE_CHECKING:
    from obstore.store import RetryConfig

_RETRY: RetryConfig = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(seconds=5), "base": 2},
}
_REQUEST_TIMEOUT = "60s"
_CONNECT_TIMEOUT = "5s"
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
_PUT_TRIES_MAX = 5
_LIST_PAGE = 1000

#: Refusals: the request certainly did not happen.
_REFUSED = (PreconditionError, NotModifiedError)
_MAY_NOT = (PermissionDeniedError, UnauthenticatedError, PermissionError)
_CODE = re.compile(r"<Code>(\w+)</Code>")
#: what S3 says of credentials with status 400, and of listings, which obstore gives no class of their own
_MAY_NOT_CODES = re.compile(r"<Code>(ExpiredToken|InvalidToken|TokenRefreshRequired|AccessDenied)</Code>")


class S3Store:
    """An ObjectStore in a bucket, below an optional prefix."""

    def __init__(
        self,
        bucket: str,
        *,
        prefix: str = "",
        endpoint: str | None = None,
        region: str | None = None,
        path_style: bool = False,
        session: WriteSession | None = None,
    ) -> None:
        """`endpoint` for servers other than AWS; plain HTTP only with `http://`. `session` gives credentials; None =
        the environment's."""
        config: dict[str, Any] = {"virtual_hosted_style_request": not path_style}
        self._session = session
        if session is not None:
            config["credential_provider"] = lambda: _asked(session)
            if session.kms_key_arn:
                config |= {"server_side_encryption": "aws:kms", "sse_kms_key_id": session.kms_key_arn}
        if endpoint is not None:
            config["endpoint"] = endpoint
        if region is not None:
            config["region"] = region
        allow_http = endpoint is not None and endpoint.startswith("http://")
        try:
            self._bucket = _Bucket(
                bucket,
                prefix=prefix or None,
                client_options={
                    "timeout": _REQUEST_TIMEOUT,
                    "connect_timeout": _CONNECT_TIMEOUT,
                    "allow_http": allow_http,
                },
                retry_config=_RETRY,
                **config,
            )
        except (BaseError, ValueError) as e:
            raise ConfigError(f"not an S3 bucket: {_first_line(e)}", bucket=bucket) from e

    def put(self, key: str, data: bytes | memoryview) -> None:
        check_key(key)
        data = memoryview(data).cast("B")  # an Arrow buffer's view has another format, which obstore refuses
        for _ in range(_PUT_TRIES_MAX):
            try:
                obstore.put(self._bucket, key, data, mode="create", use_multipart=False)
                return
            except AlreadyExistsError:
                arrived = self._arrived(key, data)
            except (BaseError, OSError) as e:
                raise map_error(e, key, putting=True) from e
            if arrived:
                return
        raise StoreUnavailable("the store reports the object as existing and as missing", key=key, determinate=False)

    def get(self, key: str, admit: Admit | None = None) -> bytes:
        check_key(key)
        try:
            answer = obstore.get(self._bucket, key)
            admit_size(key, answer.meta["size"], admit)
            return bytes(answer.bytes())
        except (BaseError, OSError) as e:
            raise map_error(e, key) from e

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        check_range(key, offset, length)
        try:
            data = bytes(obstore.get_range(self._bucket, key, start=offset, length=length))
        except (BaseError, OSError) as e:
            if "status code: 416" in str(e):  # the range begins after the end
                raise too_short(key, offset, length, self.size(key)) from e
            raise map_error(e, key) from e
        if len(data) != length:
            raise too_short(key, offset, length, offset + len(data))
        return data

    def size(self, key: str) -> int:
        check_key(key)
        try:
            return int(obstore.head(self._bucket, key)["size"])
        except (BaseError, OSError) as e:
            raise map_error(e, key) from e

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        folder = prefix[: prefix.rfind("/") + 1]  # obstore's prefixes are whole folders
        pages = obstore.list(self._bucket, folder or None, offset=after or None, chunk_size=_LIST_PAGE)
        try:
            for page in pages:
                for meta in page:
                    key = meta["path"]
                    if key.startswith(prefix) and key > after:
                        modified_ms = int(meta["last_modified"].timestamp() * 1000)
                        yield ObjectInfo(key=key, size=meta["size"], modified_ms=modified_ms)
                    elif key > prefix and not key.startswith(prefix):
                        return
        except (BaseError, OSError) as e:
            raise map_error(e, prefix) from e

    def delete(self, key: str) -> None:
        check_key(key)
        try:  # a DeleteObjects request succeeds for a missing object
            obstore.delete(self._bucket, key)
        except (BaseError, OSError) as e:
            raise map_error(e, key) from e

    def _arrived(self, key: str, data: bytes | memoryview) -> bool:
        """Whether this existing key holds these bytes; False when it no longer exists. ObjectConflict: other bytes."""
        try:
            if self._session is not None:
                return self._session.arrived(key, data)
            there = self.get(key)
        except ObjectNotFound:
            return False
        except StoreUnavailable as e:
            raise StoreUnavailable(e.message, key=key, determinate=False) from e
        settle(key, there, data)
        return True


def _asked(session: WriteSession) -> dict[str, Any]:
    """The session's credentials for obstore, marked as expired so that it asks each time."""
    credentials = session.credentials()
    return {
        "access_key_id": credentials.access_key_id,
        "secret_access_key": credentials.secret_access_key,
        "token": credentials.session_token,
        "expires_at": _LONG_AGO,
    }


def map_error(error: Exception, key: str, *, putting: bool = False) -> TiStreamError:
    """Convert an error of obstore. `determinate` is False when a put may have happened."""
    cause = _first_line(error)
    match error:
        case FileNotFoundError() | NotFoundError():
            if putting or "NoSuchBucket" in str(error):
                return StoreUnavailable(f"the bucket is not there: {cause}", key=key, determinate=True)
            return ObjectNotFound(key=key)
        case InvalidPathError():
            return InvalidInput(f"not an object key: {cause}", key=key)
        case UnknownConfigurationKeyError() | NotSupportedError():
            return ConfigError(f"the store cannot do this: {cause}", key=key)
        case AlreadyExistsError():  # only puts are conditional, and they handle this
            return StoreUnavailable(cause, key=key, determinate=False)
        case _ if isinstance(error, _MAY_NOT) or _MAY_NOT_CODES.search(str(error)):
            said = _CODE.search(str(error))
            return StoreRefused(f"the store refused: {said[1] if said else cause}", key=key, determinate=True)
        case _ if isinstance(error, _REFUSED):
            return StoreUnavailable(f"the store refused: {cause}", key=key, determinate=True)
    return StoreUnavailable(cause, key=key, determinate=not putting)  # GenericError, JoinError, OSError


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
