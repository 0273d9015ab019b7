"""Folders and buckets as destinations: objects appear whole and can be replaced.

The log's own object store (`tistream.objectstore`) is write-once and takes few characters in keys; a storage sink
replaces its index and checkpoint files, and its keys have the names of tables.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store as _Bucket

from destinations.protocol import Allowed, DestinationUnavailable, LeaseOver
from destinations.storage.settings import FilePlace, S3Settings
from tistream.clock import Clock
from tistream.errors import InvalidInput, ObjectNotFound
from tistream.objectstore.s3 import map_error

AT_ONCE = 16  #: requests of one lane
REQUEST_S = 60.0
_TMP = ".tmp"
_LEFTOVER_MS = 3_600_000
_RETRY = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}
_PAGE = 1000

T = TypeVar("T")


class Files(Protocol):
    """Objects below a prefix. Errors: DestinationUnavailable."""

    async def put(self, key: str, data: bytes | memoryview) -> None:
        """Write the object, in place of an earlier one; durable when this returns."""

    async def get(self, key: str) -> bytes | None:
        """The object; None when there is none."""

    def list(self, folder: str, after: str) -> AsyncIterator[str]:
        """Keys below the folder that are greater than `after`, in any order."""

    async def delete(self, key: str) -> None:
        """Delete the object, if it is there."""


def open_files(settings: FilePlace, clock: Clock) -> Files:
    """The folder or the bucket, without a request. DestinationUnavailable for a folder that cannot
    be made, InvalidInput for a bucket that none can be."""
    if settings.s3 is not None:
        return BucketFiles(settings.s3, settings.place)
    return FolderFiles(Path(settings.folder), clock.unix_ms())


async def probe(files: Files, place: str, key: str, data: bytes) -> None:
    """Whether objects can be written and read. DestinationUnavailable."""
    await asyncio.wait_for(files.put(key, data), REQUEST_S)
    if await asyncio.wait_for(files.get(key), REQUEST_S) != data:
        raise DestinationUnavailable(f"{place} does not return what was written")
    with suppress(DestinationUnavailable):  # what cannot be deleted stays; nothing else needs the permission
        await files.delete(key)


async def each_within(
    items: Iterable[T], work: Callable[[T], Awaitable[None]], allowed: Allowed, at_once: int = AT_ONCE
) -> None:
    """Do the work for all items, some at a time, each within the time that is allowed. LeaseOver when none is left."""
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            left = allowed()
            if left <= 0:
                raise LeaseOver
            try:
                await asyncio.wait_for(work(item), min(left, REQUEST_S))
            except TimeoutError as error:
                if allowed() <= 0:
                    raise LeaseOver from error
                raise DestinationUnavailable("The destination did not answer in time") from error

    workers = [asyncio.ensure_future(worker()) for _ in range(at_once)]
    try:
        await asyncio.gather(*workers)
    finally:
        for each in workers:
            each.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


class FolderFiles:
    """Files below a folder: written beside, synced, then renamed into place."""

    def __init__(self, root: Path, now_ms: int) -> None:
        self._root = root
        with _folder_errors(root):
            (root / _TMP).mkdir(parents=True, exist_ok=True)
            for entry in os.scandir(root / _TMP):  # of processes that were killed
                with suppress(FileNotFoundError):
                    if entry.stat().st_mtime * 1000 < now_ms - _LEFTOVER_MS:
                        os.unlink(entry.path)

    async def put(self, key: str, data: bytes | memoryview) -> None:
        path, tmp = self._root / key, self._root / _TMP / uuid.uuid4().hex
        with _folder_errors(self._root):
            try:
                with tmp.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                new = [folder for folder in path.parents if not folder.is_dir()]
                path.parent.mkdir(parents=True, exist_ok=True)
                tmp.replace(path)
            finally:
                tmp.unlink(missing_ok=True)
            for folder in (path.parent, *(folder.parent for folder in new)):
                _sync(folder)

    async def get(self, key: str) -> bytes | None:
        with _folder_errors(self._root):
            try:
                return (self._root / key).read_bytes()
            except FileNotFoundError:
                return None

    async def list(self, folder: str, after: str) -> AsyncIterator[str]:
        with _folder_errors(self._root):
            found = [path.relative_to(self._root).as_posix() for path in (self._root / folder).glob("**/*")]
        for key in found:
            if key > after and (self._root / key).is_file():
                yield key

    async def delete(self, key: str) -> None:
        with _folder_errors(self._root):
            (self._root / key).unlink(missing_ok=True)


class BucketFiles:
    """Files in a bucket."""

    def __init__(self, settings: S3Settings, place: str) -> None:
        self._place = place
        config: dict[str, Any] = {
            "endpoint": settings.endpoint,
            "region": settings.region,
            "access_key_id": settings.access_key,
            "secret_access_key": settings.secret_access_key,
            "session_token": settings.session_token,
        }
        try:
            self._bucket = _Bucket(
                settings.bucket,
                prefix=settings.prefix or None,
                client_options={
                    "timeout": f"{REQUEST_S:g}s",
                    "connect_timeout": "5s",
                    "allow_http": settings.endpoint.startswith("http://"),
                },
                retry_config=_RETRY,
                virtual_hosted_style_request=not settings.path_style,
                **{name: value for name, value in config.items() if value},
            )
        except (BaseError, ValueError) as error:
            raise InvalidInput(f"{place} is no bucket: {error}", option="sink-uri") from error

    async def put(self, key: str, data: bytes | memoryview) -> None:
        try:
            await obstore.put_async(self._bucket, key, memoryview(data).cast("B"), use_multipart=False)
        except (BaseError, OSError) as error:
            raise self._unavailable(map_error(error, key, putting=True)) from error

    async def get(self, key: str) -> bytes | None:
        try:
            found = await obstore.get_async(self._bucket, key)
            return bytes(await found.bytes_async())
        except (BaseError, OSError) as error:
            mapped = map_error(error, key)
            if isinstance(mapped, ObjectNotFound):
                return None
            raise self._unavailable(mapped) from error

    async def list(self, folder: str, after: str) -> AsyncIterator[str]:
        try:
            async for page in obstore.list(self._bucket, folder, offset=after or None, chunk_size=_PAGE):
                for meta in page:
                    yield meta["path"]
        except (BaseError, OSError) as error:
            raise self._unavailable(map_error(error, folder)) from error

    async def delete(self, key: str) -> None:
        try:
            await obstore.delete_async(self._bucket, key)
        except (BaseError, OSError) as error:
            raise self._unavailable(map_error(error, key)) from error

    def _unavailable(self, cause: Exception) -> DestinationUnavailable:
        return DestinationUnavailable(f"{self._place} cannot be used now: {cause}", place=self._place)


@contextmanager
def _folder_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DestinationUnavailable(f"file://{root} cannot be used now: {error}", place=f"file://{root}") from error


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
