"""Rows for which a sorter has no memory left: their bytes on the local disk, mapped back.

The bytes of a run never change, so they are written once, as an Arrow file, and are read where they lie. The file never
has a name: the disk gets its space back when the last row has left or the process has ended, however it ended. Nothing
durable rests on it. What a row needs to be found (hashes, timestamps, flags) stays in memory.
"""

from __future__ import annotations

import mmap
import tempfile
from pathlib import Path

import pyarrow as pa

from tistream.errors import StoreUnavailable


class Spill:
    """Where bytes go that exceed the memory of a sorter's tasks."""

    def __init__(self, budget_bytes: int, folder: Path | None = None) -> None:
        """`budget_bytes`: what the tasks may hold in memory together; `folder`: None = the system's for temporary
        files."""
        self.budget_bytes = budget_bytes
        self._folder = folder

    def write(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows, on disk. StoreUnavailable when the disk does not take them."""
        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                with pa.ipc.new_file(file, batch.schema) as writer:
                    writer.write_batch(batch)
                file.flush()
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as e:
            raise StoreUnavailable("the disk takes no rows", folder=str(self._folder), cause=str(e)) from e
        return pa.ipc.open_file(pa.py_buffer(mapped)).get_batch(0)
