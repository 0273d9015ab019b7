"""Upload spill: a bounded folder for encoded files that wait to be uploaded and do not fit in memory.

    park(data) -> Parked | None      None: the folder is full, or the disk fails
    Parked.take() -> data            read once, checked, and deleted

Nothing survives the process: a parked file belongs to one incarnation and can be read from the cluster again. So
nothing is synced, and a new process clears the folder. A file that cannot be read back ends the pusher with an error;
its successor starts at the frontier.
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
    path: Path
    size: int
    crc: int

    def take(self) -> bytes:
        """Read and delete the file. TiStreamError when it is unreadable or damaged."""
        try:
            data = self.path.read_bytes()
            self.path.unlink()
        except OSError as e:
            raise TiStreamError("a parked file cannot be read", path=str(self.path), cause=e) from e
        if len(data) != self.size or crc32c.crc32c(data) != self.crc:
            raise TiStreamError("a parked file is damaged", path=str(self.path))
        return data

    def drop(self) -> None:
        self.path.unlink(missing_ok=True)


class UploadSpill:
    """The folder of one store. `park` is called from one thread."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        """ConfigError when the folder cannot be created."""
        self._folder, self._bytes_max = folder, bytes_max
        self._numbers = count(1)
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        except OSError as e:
            raise ConfigError(f"The spill folder cannot be created: {e}") from e

    def park(self, data: bytes, parked_bytes: int) -> Parked | None:
        """Write the bytes; `parked_bytes` are in the folder already. None when they do not fit or cannot be written."""
        if parked_bytes + len(data) > self._bytes_max:
            return None
        path = self._folder / f"{next(self._numbers):012d}"
        try:
            path.write_bytes(data)
        except OSError as e:
            log.warning("parking a file failed", path=str(path), error=str(e))
            path.unlink(missing_ok=True)
            return None
        return Parked(path, len(data), crc32c.crc32c(data))

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
