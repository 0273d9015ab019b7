"""Folders and buckets as destinations: objects appear whole, and are created or replaced.

The log's own object store (`tistream.objectstore`) is write-once and takes few characters in keys; a storage sink
replaces its index and checkpoint files, and its keys have the names of tables. Its data files are only created.

Calls to the file system of a folder may never return, as on a network disk whose server is away. Each has its own
thread, which is no longer waited for when its time is over: so a turn of a lane ends. The thread ends as soon as the
file system answers. Calls are counted by folder; above CALLS_MAX no other begins.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import obstore
import structlog
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store as _Bucket

from destinations.protocol import Allowed, DestinationUnavailable, LeaseOver
from destinations.storage.settings import FilePlace, S3Settings
from tistream.clock import Clock
from tistream.errors import InvalidInput, ObjectNotFound, TiStreamError
from tistream.objectstore.s3 import map_error
from tistream.outbound.gate import open_pass
from tistream.outbound.policy import Policy

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

T = TypeVar("T")
CALL_S = 20.0  #: of one call
CALLS_MAX = 16  #: of a folder: a disk is not faster with more
_PAUSE_S = 0.02
_LOCK = threading.Lock()
_RUNNING: Counter[Path] = Counter()


async def apart(root: Path, call: Callable[[], T]) -> T:
    """The result of the call. DestinationUnavailable when the folder does not answer in time."""
    loop = asyncio.get_running_loop()
    until = loop.time() + CALL_S
    while not _begin(root):
        if loop.time() >= until:
            raise _silent(root)
        await asyncio.sleep(_PAUSE_S)
    answer: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = call()
        except BaseException as e:  # noqa: BLE001 - raised where the answer is awaited
            error = e
        finally:
            _end(root)
        with suppress(RuntimeError):  # the turn has ended, and its loop is closed
            loop.call_soon_threadsafe(_settle, answer, result, error)

    threading.Thread(target=run, name=f"folder {root}", daemon=True).start()
    try:
        return await asyncio.wait_for(answer, max(0.0, until - loop.time()))
    except TimeoutError as error:
        raise _silent(root) from error


def _settle(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)


def _begin(root: Path) -> bool:
    with _LOCK:
        if _RUNNING[root] >= CALLS_MAX:
            return False
        _RUNNING[root] += 1
        return True


def _end(root: Path) -> None:
    with _LOCK:
        _RUNNING[root] -= 1
        if not _RUNNING[root]:
            del _RUNNING[root]


def _silent(root: Path) -> DestinationUnavailable:
    return DestinationUnavailable(f"file://{root} does not answer", place=f"file://{root}")


log = structlog.get_logger(__name__)

AT_ONCE = 16  #: requests of one lane
REQUEST_S = 60.0
_TMP = ".tmp"
_LEFTOVER_MS = 3_600_000
_RETRY: RetryConfig = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}
_PAGE = 1000
_REGION = "us-east-1"
_CODE = re.compile(r"<Code>(\w+)</Code>")
_BODY = re.compile(r"(status code: \d+[\w ]*).*")
_TOLD = frozenset(
    {
        "AccessDenied", "AllAccessDisabled", "AuthorizationHeaderMalformed", "ExpiredToken", "InternalError",
        "InvalidAccessKeyId", "InvalidBucketName", "InvalidToken", "NoSuchBucket", "NotImplemented",
        "PermanentRedirect", "RequestTimeTooSkewed", "ServiceUnavailable", "SignatureDoesNotMatch", "SlowDown",
    }
)  # fmt: skip


class _Exists(Exception):
    """There is an object of that name."""


class Files(Protocol):
    """Objects below a prefix. Errors: DestinationUnavailable."""

    async def put(self, key: str, data: bytes | memoryview) -> None:
        """Write the object, in place of an earlier one; durable when this returns."""

    async def create(self, key: str, data: bytes | memoryview) -> bool:
        """Write the object unless there is one, whatever it has; durable when this returns. Whether it was written."""

    async def get(self, key: str) -> bytes | None:
        """The object; None when there is none."""

    def list(self, folder: str, after: str) -> AsyncIterator[str]:
        """Keys below the folder that are greater than `after`, in any order."""

    async def delete(self, key: str) -> None:
        """Delete the object, if it is there."""


def open_files(settings: FilePlace, clock: Clock, policy: Policy) -> Files:
    """The folder or the bucket, without a request. InvalidInput for a bucket that none can be, TargetRefused for what
    the policy refuses."""
    settings.admit(policy)
    if settings.s3 is not None:
        return BucketFiles(settings.s3, settings.place, policy)
    return FolderFiles(Path(settings.folder), clock.unix_ms())


async def probe(files: Files, place: str, key: str, data: bytes) -> None:
    """Whether objects can be written, read, and created without a loss. DestinationUnavailable; InvalidInput for a
    service that replaces an object although it was asked not to."""
    await asyncio.wait_for(files.put(key, data), REQUEST_S)
    if await asyncio.wait_for(files.get(key), REQUEST_S) != data:
        raise DestinationUnavailable(f"{place} does not return what was written")
    was_created = await asyncio.wait_for(files.create(key, data + b"\n"), REQUEST_S)
    if was_created or await asyncio.wait_for(files.get(key), REQUEST_S) != data:
        raise InvalidInput(
            f"{place} replaces an object that it was asked to create: its service ignores If-None-Match. A late "
            "request of a worker that has lost its lane would replace the files of the next one.",
            place=place,
            option="sink-uri",
        )
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
    """Files below a folder: written to a temporary name, synced, then renamed. Each call has its own thread: the file
    system may not answer."""

    def __init__(self, root: Path, now_ms: int) -> None:
        self._root, self._now_ms = root, now_ms
        self._is_open = False

    async def put(self, key: str, data: bytes | memoryview) -> None:
        await self._apart(lambda: self._write(key, data, lambda tmp, path: tmp.replace(path)))

    async def create(self, key: str, data: bytes | memoryview) -> bool:
        try:
            await self._apart(lambda: self._write(key, data, _link))
        except _Exists:
            await self._apart(lambda: _sync((self._root / key).parent))  # its writer may have been killed before this
            return False
        return True

    async def get(self, key: str) -> bytes | None:
        def read() -> bytes | None:
            try:
                return (self._root / key).read_bytes()
            except FileNotFoundError:
                return None

        return await self._apart(read)

    async def list(self, folder: str, after: str) -> AsyncIterator[str]:
        def found() -> Sequence[str]:
            paths = ((path.relative_to(self._root).as_posix(), path) for path in (self._root / folder).glob("**/*"))
            return [key for key, path in paths if key > after and path.is_file()]

        for key in await self._apart(found):
            yield key

    async def delete(self, key: str) -> None:
        await self._apart(lambda: (self._root / key).unlink(missing_ok=True))

    async def _apart(self, call: Callable[[], T]) -> T:
        def run() -> T:
            with _folder_errors(self._root):
                if not self._is_open:
                    self._open()
                return call()

        return await apart(self._root, run)

    def _open(self) -> None:
        (self._root / _TMP).mkdir(parents=True, exist_ok=True)
        for entry in os.scandir(self._root / _TMP):  # of processes that were killed
            with suppress(FileNotFoundError):
                if entry.stat().st_mtime * 1000 < self._now_ms - _LEFTOVER_MS:
                    os.unlink(entry.path)
        self._is_open = True

    def _write(self, key: str, data: bytes | memoryview, name: Callable[[Path, Path], object]) -> None:
        path, tmp = self._root / key, self._root / _TMP / uuid.uuid4().hex
        try:
            with tmp.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            new = [folder for folder in path.parents if not folder.is_dir()]
            path.parent.mkdir(parents=True, exist_ok=True)
            name(tmp, path)
        finally:
            tmp.unlink(missing_ok=True)
        for folder in (path.parent, *(folder.parent for folder in new)):
            _sync(folder)


class BucketFiles:
    """Files in a bucket."""

    def __init__(self, settings: S3Settings, place: str, policy: Policy) -> None:
        self._place, self._policy = place, policy
        # another server than AWS is reached through the gate: it does not send its client elsewhere
        self._pass = open_pass(policy, settings.target) if settings.endpoint and not policy.is_operated else None
        config: dict[str, Any] = {"endpoint": settings.endpoint, "region": settings.region}
        if settings.access_key:  # nothing of the environment's credentials goes with them, and no address of its store
            config["credential_provider"] = partial(_given, settings)
            config["region"] = region = settings.region or os.environ.get("AWS_REGION", _REGION)
            host = f"{settings.bucket}.s3" if not settings.path_style else "s3"
            config["endpoint"] = settings.endpoint or f"https://{host}.{region}.amazonaws.com"
        via: ClientConfig = {} if self._pass is None else {"proxy_url": self._pass.url}
        try:
            self._bucket = _Bucket(
                settings.bucket,
                prefix=settings.prefix or None,
                client_options={
                    "timeout": f"{REQUEST_S:g}s",
                    "connect_timeout": "5s",
                    "allow_http": settings.endpoint.startswith("http://"),
                    **via,
                },
                retry_config=_RETRY,
                virtual_hosted_style_request=not settings.path_style,
                **{name: value for name, value in config.items() if value},
            )
        except (BaseError, ValueError) as error:
            raise InvalidInput(f"{place} is no bucket: {error}", option="sink-uri") from error

    async def put(self, key: str, data: bytes | memoryview) -> None:
        await self._write(key, data, "overwrite")

    async def create(self, key: str, data: bytes | memoryview) -> bool:
        try:
            await self._write(key, data, "create")
        except _Exists:
            return False
        return True

    async def _write(self, key: str, data: bytes | memoryview, mode: Literal["create", "overwrite"]) -> None:
        try:
            await obstore.put_async(self._bucket, key, memoryview(data).cast("B"), mode=mode, use_multipart=False)
        except AlreadyExistsError as error:
            raise _Exists from error
        except (BaseError, OSError) as error:
            raise self._unavailable(error, key) from error

    async def get(self, key: str) -> bytes | None:
        try:
            answer = await obstore.get_async(self._bucket, key)
            return bytes(await answer.bytes_async())
        except (BaseError, OSError) as error:
            if isinstance(map_error(error, key), ObjectNotFound):
                return None
            raise self._unavailable(error, key) from error

    async def list(self, folder: str, after: str) -> AsyncIterator[str]:
        try:
            async for page in obstore.list(self._bucket, folder, offset=after or None, chunk_size=_PAGE):
                for meta in page:
                    yield meta["path"]
        except (BaseError, OSError) as error:
            raise self._unavailable(error, folder) from error

    async def delete(self, key: str) -> None:
        try:
            await obstore.delete_async(self._bucket, key)
        except (BaseError, OSError) as error:
            raise self._unavailable(error, key) from error

    def _unavailable(self, cause: Exception, key: str) -> TiStreamError:
        """The error for callers; the log has the cause."""
        if self._pass is not None and self._pass.refusal is not None:
            return self._pass.refusal
        log.info("a destination cannot be used", place=self._place, key=key, cause=str(cause).split("\n", 1)[0])
        said = _said(str(cause), is_operated=self._policy.is_operated)
        return DestinationUnavailable(f"{self._place} cannot be used now: {said}", place=self._place)


def _said(text: str, *, is_operated: bool) -> str:
    """What a caller learns of an error of obstore: never the body of an answer, which may be that of anything. One of
    S3's own codes, and for operators what happened to the request."""
    code = _CODE.search(text)
    if code is not None and code[1] in _TOLD:
        return "the bucket is not there" if code[1] == "NoSuchBucket" else f"S3 answers {code[1]}"
    if is_operated:
        return _BODY.sub(r"\1", text.split("\n", 1)[0])
    return "no S3 server answers there"


def _given(settings: S3Settings) -> dict[str, Any]:
    """The credentials of a URI, as obstore takes them."""
    return {
        "access_key_id": settings.access_key,
        "secret_access_key": settings.secret_access_key,
        "token": settings.session_token or None,
        "expires_at": None,
    }


@contextmanager
def _folder_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DestinationUnavailable(f"file://{root} cannot be used now: {error}", place=f"file://{root}") from error


def _link(tmp: Path, path: Path) -> None:
    try:
        path.hardlink_to(tmp)
    except FileExistsError as error:
        raise _Exists from error


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
