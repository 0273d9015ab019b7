"""Storage sinks of tests: lanes that are killed and tried again, and what stands in the folder afterwards."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from destinations.protocol import Share, Stretch
from destinations.storage.destination import StorageDestination
from destinations.storage.files import Files
from destinations.storage.settings import StorageSettings, read_settings
from destinations.uri import parse_sink_uri
from schemas.history import History
from tistream.ids import Tenant

CANAL = "protocol=canal-json&enable-tidb-extension=true"
SHARE = Share(tenant=Tenant(1, 1), changefeed_id="feed", number=0, of=1)


def settings_of(options: str, place: str = "file:///unused", **changed: Any) -> StorageSettings:
    """The settings of a sink URI with these options, some of them changed."""
    return replace(read_settings(parse_sink_uri(f"{place}?{options}")), **changed)


class Killed(BaseException):
    """The process ended here."""


@dataclass
class MemoryFiles:
    """Files in memory. `until`: puts that still succeed before the process is killed; None = all."""

    objects: dict[str, bytes] = field(default_factory=dict)
    until: int | None = None
    puts: int = 0

    async def put(self, key: str, data: bytes | memoryview) -> None:
        if self.until is not None and self.puts >= self.until:
            raise Killed
        self.puts += 1
        self.objects[key] = bytes(data)

    async def create(self, key: str, data: bytes | memoryview) -> bool:
        if key in self.objects:
            return False
        await self.put(key, data)
        return True

    async def get(self, key: str) -> bytes | None:
        return self.objects.get(key)

    async def list(self, folder: str, after: str) -> AsyncIterator[str]:
        for key in sorted(self.objects):
            if key.startswith(folder + "/") and key > after:
                yield key

    async def delete(self, key: str) -> None:
        self.objects.pop(key, None)


class CutOff:
    """Wraps other files. The process is killed after its first `until` puts."""

    def __init__(self, files: Files, until: int) -> None:
        self._files, self._left = files, until
        self.get, self.list, self.delete = files.get, files.list, files.delete

    async def put(self, key: str, data: bytes | memoryview) -> None:
        if self._left <= 0:
            raise Killed
        self._left -= 1
        await self._files.put(key, data)

    async def create(self, key: str, data: bytes | memoryview) -> bool:
        if self._left <= 0:
            raise Killed
        self._left -= 1
        return await self._files.create(key, data)


def stretches(history: History, rows: pa.Table, bounds: Sequence[int]) -> Iterator[Stretch]:
    """The stretches between these timestamps."""
    ts = rows["commit_ts"].to_numpy()
    for after, upto in itertools.pairwise(bounds):
        first, end = np.searchsorted(ts, np.array([after, upto], np.uint64), side="right")
        yield Stretch(
            after=after,
            upto=upto,
            rows=rows.slice(int(first), int(end - first)),
            events=history.events(max(after, history.start_ts), upto),
            history=history,
        )


def forever() -> float:
    """The lease never ends."""
    return 60.0


def write_all(settings: StorageSettings, files: Files, planned: Sequence[Stretch]) -> None:
    """One process writes them all."""
    destination = StorageDestination(settings, SHARE, files)
    for stretch in planned:
        destination.write(destination.plan(stretch, ""), forever)
    destination.close()


def write_killed(
    settings: StorageSettings,
    files: Files,
    stretch: Stretch,
    until: int,
    retry: StorageSettings | None = None,
    *,
    record_of: Callable[[str], str] = lambda record: record,
) -> None:
    """A process is killed after `until` puts of the stretch; another one, perhaps with other settings, tries again."""
    first = StorageDestination(settings, SHARE, CutOff(files, until))
    plan = first.plan(stretch, "")
    with contextlib.suppress(Killed):
        first.write(plan, forever)
    first.close()
    second = StorageDestination(retry or settings, SHARE, files)
    second.write(second.plan(stretch, record_of(plan.record)), forever)
    second.close()


def objects_of(root: Path) -> dict[str, bytes]:
    """Every object of a folder, by key."""
    files = (path for path in root.rglob("*") if path.is_file() and ".tmp" not in path.parts)
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}
