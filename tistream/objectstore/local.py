"""Object store in a folder, for one machine or an embedded TiStream.

    <root>/<key>            the objects, complete and durable once their name exists
    <root>/.tmp/<random>    objects being written; leftovers of killed processes are removed after an hour

A put writes a temporary file, syncs it, and gives it its name by `link`, which fails when the name exists: that is
create-if-absent, and no reader ever meets half an object. The folder is synced before the put returns. This order is
why it is not obstore's local store: that one links too, but syncs nothing, so that a power failure may leave an empty
file under a key that can never be written again, or lose an object whose catalog row survives.

Keys are names of files, so `a` and `a/b` cannot both exist. The file system must be
case-sensitive and support hard links.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tistream.errors import InvalidInput, ObjectNotFound, StoreUnavailable
from tistream.objectstore.keys import admit_size, check_key, check_prefix, check_range, settle, too_short
from tistream.objectstore.protocol import Admit, ObjectInfo

_TMP = ".tmp"
_LEFTOVER_S = 3600


class LocalStore:
    """An ObjectStore in the folder `root`, created if missing. Any number of processes may share it.

    `foreign`: read-only; nothing is created, cleaned up or put there."""

    def __init__(self, root: Path, *, foreign: bool = False) -> None:
        self._root = root
        self._foreign = foreign
        self._synced: set[Path] = set()  # folders that are known to be durable
        if foreign:
            return
        with _mapped("", determinate=True):
            (root / _TMP).mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._check_own(key)
        path = self._path(key)
        tmp = self._root / _TMP / uuid.uuid4().hex
        try:
            with _mapped(key, determinate=True):
                _write_synced(tmp, data)
                path.parent.mkdir(parents=True, exist_ok=True)
                taken = not _link(tmp, path)
            if taken:
                settle(key, self._read_back(key), data)
            with _mapped(key, determinate=False):
                self._sync_folders(path.parent)
        finally:
            with suppress(OSError):  # a leftover; see above
                tmp.unlink(missing_ok=True)

    def get(self, key: str, admit: Admit | None = None) -> bytes:
        with self._reading(key), self._path(key).open("rb") as file:
            admit_size(key, os.fstat(file.fileno()).st_size, admit)
            return file.read()

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        check_range(key, offset, length)
        with self._reading(key), self._path(key).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if offset + length > size:
                raise too_short(key, offset, length, size)
            file.seek(offset)
            return file.read(length)

    def size(self, key: str) -> int:
        path = self._path(key)
        with self._reading(key):
            if path.is_dir():
                raise IsADirectoryError
            return path.stat().st_size

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        yield from self._walk("", prefix, after)

    def delete(self, key: str) -> None:
        self._check_own(key)
        path = self._path(key)
        with suppress(ObjectNotFound), self._reading(key):
            if path.is_dir():  # unlink says "not permitted" on some systems
                raise IsADirectoryError
            path.unlink()

    def _check_own(self, key: str) -> None:
        if self._foreign:
            raise InvalidInput("this store is read-only", key=key)

    def _read_back(self, key: str) -> bytes:
        try:
            return self.get(key)
        except ObjectNotFound as e:
            raise StoreUnavailable("the object was deleted concurrently", key=key, determinate=True) from e

    def _path(self, key: str) -> Path:
        check_key(key)
        return self._root / key

    @contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        with _mapped(key, determinate=True):
            try:
                yield
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as e:
                if not self._root.is_dir():  # an unmounted disk is not an empty store
                    raise StoreUnavailable("the store's folder does not exist", key=key, determinate=True) from e
                raise ObjectNotFound(key=key) from e

    def _walk(self, folder: str, prefix: str, after: str) -> Iterator[ObjectInfo]:
        """Depth first, in the order of whole keys: a folder sorts as its name and a slash."""
        with _mapped(prefix, determinate=True):
            try:
                entries = [(e.name + "/" if e.is_dir() else e.name, e) for e in os.scandir(self._root / folder)]
            except FileNotFoundError:
                if not self._root.is_dir():
                    raise
                return
        for name, entry in sorted(entries, key=lambda pair: pair[0]):
            key = folder + name
            if name.startswith("."):
                continue
            if name.endswith("/"):
                wanted = key.startswith(prefix) or prefix.startswith(key)
                if wanted and (key > after or after.startswith(key)):
                    yield from self._walk(key, prefix, after)
            elif key.startswith(prefix) and key > after:
                with suppress(FileNotFoundError):  # deleted meanwhile
                    stat = entry.stat()
                    yield ObjectInfo(key=key, size=stat.st_size, modified_ms=stat.st_mtime_ns // 1_000_000)

    def _sync_folders(self, folder: Path) -> None:
        """Make a new name in `folder` durable, and the folders above it, the first time."""
        _sync_folder(folder)
        if folder not in self._synced:
            for above in folder.parents:
                if above == self._root.parent:
                    break
                _sync_folder(above)
            self._synced.add(folder)

    def _remove_leftovers(self) -> None:
        old = time.time() - _LEFTOVER_S
        for entry in os.scandir(self._root / _TMP):
            with suppress(FileNotFoundError):  # its writer, or another opener, was faster
                if entry.stat().st_mtime < old:
                    os.unlink(entry.path)


@contextmanager
def _mapped(key: str, *, determinate: bool) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise StoreUnavailable(str(e), key=key, determinate=determinate) from e


def _write_synced(path: Path, data: bytes | memoryview) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _link(tmp: Path, path: Path) -> bool:
    try:
        os.link(tmp, path)
    except FileExistsError:
        return False
    return True


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
