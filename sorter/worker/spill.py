"""Spill files: rows that exceed a sorter's memory budget, on the local disk and memory-mapped.

Runs are immutable, so they are written once and read in place. A file has no name: its space is freed when its last row
leaves or the process ends in any way. Nothing durable depends on it. Pages that were read count as memory of the
process until `release` gives them back; the system's cache may keep them.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tistream.errors import StoreUnavailable

ALIGNED = 64  #: bytes; alignment of arrays and batches
MEMORY_SHARE = 4  #: by default the tasks may hold 1 / MEMORY_SHARE of the memory
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


class Spill:
    def __init__(self, budget_bytes: int, folder: Path | None = None) -> None:
        """`budget_bytes`: memory that the tasks may hold together; `folder`: None = the system's temporary folder."""
        self.budget_bytes = budget_bytes
        self._folder = folder
        self._maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()

    def write(self, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The same rows in one file on disk. StoreUnavailable when the disk rejects them."""
        bounds: list[tuple[int, int]] = []

        def fill(file: IO[bytes]) -> None:
            for batch in batches:
                start = _pad(file)
                with pa.ipc.new_stream(file, batch.schema) as writer:
                    writer.write_batch(batch)
                bounds.append((start, file.tell() - start))

        data = pa.py_buffer(self._mapped(fill, mmap.ACCESS_READ))
        return [pa.ipc.open_stream(data.slice(*at)).read_next_batch() for at in bounds]

    def write_arrays(self, arrays: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """The same arrays in one file on disk. They have the same type for compiled loops, and are read only.
        StoreUnavailable when the disk rejects them."""
        starts: list[int] = []

        def fill(file: IO[bytes]) -> None:
            for array in arrays:
                starts.append(_pad(file))
                file.write(array.view(np.uint8).data)

        data = self._mapped(fill, mmap.ACCESS_COPY)
        return [np.frombuffer(data, a.dtype, len(a), at) for a, at in zip(arrays, starts, strict=True)]

    def release(self) -> None:
        """Give back the memory of pages that were read; they are read again when needed."""
        for mapped in list(self._maps):
            mapped.madvise(mmap.MADV_DONTNEED)

    def _mapped(self, fill: Callable[[IO[bytes]], None], access: int) -> mmap.mmap:
        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                fill(file)
                file.flush()
                mapped = mmap.mmap(file.fileno(), 0, access=access)
        except OSError as e:
            raise StoreUnavailable("cannot write spilled rows", folder=str(self._folder), cause=str(e)) from e
        mapped.madvise(mmap.MADV_RANDOM)  # a flush reads scattered rows: read-ahead is useless
        self._maps.add(mapped)
        return mapped


def default_budget_bytes() -> int:
    """A quarter of the memory of the machine, or of the container's limit if lower."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # missing, or "max"
            limits.append(int(path.read_text()))
    return min(limits) // MEMORY_SHARE


def _pad(file: IO[bytes]) -> int:
    file.write(b"\0" * (-file.tell() % ALIGNED))
    return file.tell()
