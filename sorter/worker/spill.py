"""Rows for which a sorter has no memory left: their bytes and numbers on the local disk, mapped back.

What a run holds never changes, so it is written once and read where it lies. A file never has a name: the disk gets its
space back when the last row in it has left or the process has ended, however it ended. Nothing durable rests on it.
Pages that were read count as memory of the process until `release` gives them back; the system's cache may keep them.
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

ALIGNED = 64  #: bytes; where an array or a batch may begin
MEMORY_SHARE = 4  #: unless told otherwise, the tasks may hold one part in so many of the memory there is
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


class Spill:
    """Where bytes go that exceed the memory of a sorter's tasks."""

    def __init__(self, budget_bytes: int, folder: Path | None = None) -> None:
        """`budget_bytes`: what the tasks may hold in memory together; `folder`: None = the system's for temporary
        files."""
        self.budget_bytes = budget_bytes
        self._folder = folder
        self._maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()

    def write(self, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The same rows, on disk, in one file. StoreUnavailable when the disk does not take them."""
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
        """The same arrays, on disk, in one file. They are of the same type to compiled loops, and must not be written
        to. StoreUnavailable when the disk does not take them."""
        starts: list[int] = []

        def fill(file: IO[bytes]) -> None:
            for array in arrays:
                starts.append(_pad(file))
                file.write(array.view(np.uint8).data)

        data = self._mapped(fill, mmap.ACCESS_COPY)
        return [np.frombuffer(data, a.dtype, len(a), at) for a, at in zip(arrays, starts, strict=True)]

    def release(self) -> None:
        """Give back the memory of pages that were read. They are read again when needed."""
        for mapped in list(self._maps):
            mapped.madvise(mmap.MADV_DONTNEED)

    def _mapped(self, fill: Callable[[IO[bytes]], None], access: int) -> mmap.mmap:
        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                fill(file)
                file.flush()
                mapped = mmap.mmap(file.fileno(), 0, access=access)
        except OSError as e:
            raise StoreUnavailable("the disk takes no rows", folder=str(self._folder), cause=str(e)) from e
        mapped.madvise(mmap.MADV_RANDOM)  # a flush takes rows from all over: what lies beside them is not wanted
        self._maps.add(mapped)
        return mapped


def default_budget_bytes() -> int:
    """A quarter of the memory that this process may use: the machine's, or less where a container says so."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # not there, or "max"
            limits.append(int(path.read_text()))
    return min(limits) // MEMORY_SHARE


def _pad(file: IO[bytes]) -> int:
    """Go on at an aligned place; where that is."""
    file.write(b"\0" * (-file.tell() % ALIGNED))
    return file.tell()
