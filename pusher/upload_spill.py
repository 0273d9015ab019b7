"""A bounded folder for encoded files that wait to be uploaded and do not fit the memory for it.

    park(data) -> Parked | None      None: the folder is full, or the disk takes nothing
    Parked.take() -> data            read once, compared with its checksum, and deleted

Nothing here survives the process: what is parked belongs to one incarnation, which ends with it, and is read from the
cluster again. So nothing is synced, and whoever begins in a folder clears what an earlier life has left. A file that
cannot be read again ends the pusher with an error; its successor begins at the service's frontier.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import crc32c
import structlog

from tistream.errors import ConfigError, TiStreamError

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Parked:
    """One file's bytes on the disk."""

    path: Path
    size: int
    crc: int

    def take(self) -> bytes:
        """The bytes, which are here no longer. TiStreamError when they are not what was parked."""
        try:
            data = self.path.read_bytes()
            self.path.unlink()
        except OSError as e:
            raise TiStreamError("a file that waited on the disk cannot be read", path=str(self.path), cause=e) from e
        if len(data) != self.size or crc32c.crc32c(data) != self.crc:
            raise TiStreamError("a file that waited on the disk is damaged", path=str(self.path))
        return data

    def drop(self) -> None:
        """Forget the bytes."""
        self.path.unlink(missing_ok=True)


class UploadSpill:
    """The folder of one store. `park` is called from one thread."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        """ConfigError when the folder cannot be made."""
        self._folder, self._bytes_max = folder, bytes_max
        self._numbers = count(1)
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        except OSError as e:
            raise ConfigError(f"The folder for files that wait cannot be used: {e}") from e

    def park(self, data: bytes, parked_bytes: int) -> Parked | None:
        """Write the bytes; `parked_bytes` are there already."""
        if parked_bytes + len(data) > self._bytes_max:
            return None
        path = self._folder / f"{next(self._numbers):012d}"
        try:
            path.write_bytes(data)
        except OSError as e:
            log.warning("the disk takes no files that wait", path=str(path), error=str(e))
            path.unlink(missing_ok=True)
            return None
        return Parked(path, len(data), crc32c.crc32c(data))

    def close(self) -> None:
        """Delete everything."""
        shutil.rmtree(self._folder, ignore_errors=True)
