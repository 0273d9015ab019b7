"""Objects in an S3 bucket, through obstore.

Credentials come from the usual AWS_* variables, or from the machine's role. Retries are obstore's: at most four within
30 s, for throttling, server errors and broken connections. A retried put may meet its own first try; and a server may
answer 409 while another put of the key is undecided. Both look like "already exists", so a put that is told so reads
the object back: equal bytes are its own, other bytes are a conflict, and none at all means try again.

A missing bucket answers 404 like a missing object, but must not look like one (a reader would wait for ever): it is
StoreUnavailable wherever the server says which of the two it was, which is everywhere but in `size`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

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

from tistream.errors import ConfigError, InvalidInput, ObjectNotFound, StoreUnavailable, TiStreamError
from tistream.objectstore.keys import check_key, check_prefix, check_range, check_size, settle, too_short
from tistream.objectstore.protocol import ObjectInfo

_RETRY = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(seconds=5), "base": 2},
}
_REQUEST_TIMEOUT = "60s"
_CONNECT_TIMEOUT = "5s"
_PUT_TRIES_MAX = 5
_LIST_PAGE = 1000

#: Refusals: the request did not happen, whatever it was.
_REFUSED = (PermissionDeniedError, UnauthenticatedError, PreconditionError, NotModifiedError)


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
    ) -> None:
        """`endpoint` for other servers than AWS; plain HTTP only when it says `http://`."""
        config: dict[str, Any] = {"virtual_hosted_style_request": not path_style}
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
        for _ in range(_PUT_TRIES_MAX):
            try:
                obstore.put(self._bucket, key, data, mode="create", use_multipart=False)
                return
            except AlreadyExistsError:
                there = self._read_back(key)
            except (BaseError, OSError) as e:
                raise map_error(e, key, putting=True) from e
            if there is not None:
                settle(key, there, data)
                return
        raise StoreUnavailable("the store says that the object exists and that it does not", key=key, determinate=False)

    def get(self, key: str) -> bytes:
        check_key(key)
        try:
            found = obstore.get(self._bucket, key)
            check_size(key, found.meta["size"])
            return bytes(found.bytes())
        except (BaseError, OSError) as e:
            raise map_error(e, key) from e

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        check_range(key, offset, length)
        try:
            data = bytes(obstore.get_range(self._bucket, key, start=offset, length=length))
        except (BaseError, OSError) as e:
            if "status code: 416" in str(e):  # the range begins behind the end
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
        try:  # a DeleteObjects request, which does not mind a missing object
            obstore.delete(self._bucket, key)
        except (BaseError, OSError) as e:
            raise map_error(e, key) from e

    def _read_back(self, key: str) -> bytes | None:
        try:
            return self.get(key)
        except ObjectNotFound:
            return None
        except StoreUnavailable as e:
            raise StoreUnavailable(e.message, key=key, determinate=False) from e


def map_error(error: Exception, key: str, *, putting: bool = False) -> TiStreamError:
    """What an error of obstore means. `determinate` is False when a put may have happened all the same."""
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
        case AlreadyExistsError():  # only a put asks for absence, and it settles this itself
            return StoreUnavailable(cause, key=key, determinate=False)
        case PermissionError():
            return StoreUnavailable(f"the store refused: {cause}", key=key, determinate=True)
        case _ if isinstance(error, _REFUSED):
            return StoreUnavailable(f"the store refused: {cause}", key=key, determinate=True)
    return StoreUnavailable(cause, key=key, determinate=not putting)  # GenericError, JoinError, OSError


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
