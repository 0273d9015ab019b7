"""A table as of a timestamp, as one Parquet file that can be read by ranges.

    rows as of ts (an Arrow stream) ─> row groups ─> an unnamed temporary file ─> ranges of it

The bytes depend only on the rows and the software version: row groups are cut by their content, not by the layout of
the log. So all servers make the same file, also after a compaction, and a reader may fetch ranges from several servers
or from a file that was made again. The ETag is the hash of the bytes.

A file is made at the first request and kept until KEPT_MS after the last one, in all at most ROWS_FILES_BYTES_MAX and
ROWS_FILES_MAX files.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import IO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reading.asof.output import without_durations
from reading.asof.read import RowsRequest, read_rows
from reading.served.services import Services
from tistream.clock import Clock
from tistream.errors import InvalidInput, StoreUnavailable
from tistream.limits import ROWS_FILES_BYTES_MAX, ROWS_FILES_MAX

KEPT_MS = 900_000
_GROUP_ROWS = 65_536
_GROUP_BYTES = 16 << 20  # of texts and bytes, after which a row group ends


class TableFile:
    """A complete file, deleted with its last reference. Safe to use from several threads."""

    def __init__(self, file: IO[bytes], size: int, etag: str) -> None:
        self._file, self.size, self.etag = file, size, etag
        weakref.finalize(self, file.close)

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`."""
        data = os.pread(self._file.fileno(), length, offset)
        if len(data) != length:
            raise StoreUnavailable("a temporary file was truncated", offset=str(offset), length=str(length))
        return data


class TableFiles:
    """The files of one process. Safe to use from several threads; concurrent requests for a file share its making."""

    def __init__(self, services: Services, *, bytes_max: int = ROWS_FILES_BYTES_MAX) -> None:
        self._services, self._clock, self._bytes_max = services, services.clock, bytes_max
        self._lock = threading.Lock()
        self._made: OrderedDict[RowsRequest, tuple[float, Future[TableFile]]] = OrderedDict()
        self._growing = 0  # bytes of the files that are being made

    def get(self, request: RowsRequest) -> TableFile:
        """The file of a read whose `as_of` is a TSO. Errors of `read_rows`; the next request retries."""
        with self._lock:
            self._forget(self._clock, ROWS_FILES_MAX - (request not in self._made))
            kept = self._made.pop(request, None)
            future = Future() if kept is None else kept[1]
            self._made[request] = self._clock.monotonic(), future
        if kept is not None:
            return future.result()
        try:
            future.set_result(self._make(request))
        except BaseException as e:
            with self._lock:
                self._made.pop(request, None)
            future.set_exception(e)
            raise
        return future.result()

    def _forget(self, clock: Clock, count_max: int = ROWS_FILES_MAX) -> None:
        """Drop expired files, and the least recently used ones above the limits."""
        now = clock.monotonic()
        held = self._growing + sum(future.result().size for _, future in self._made.values() if _complete(future))
        for request, (used, future) in list(self._made.items()):
            is_too_much = held > self._bytes_max or len(self._made) > count_max
            if _complete(future) and ((now - used) * 1000 > KEPT_MS or is_too_much):
                held -= future.result().size
                del self._made[request]

    def _grow(self, size: int, count: int) -> None:
        """Account for `count` more bytes of a file of `size` bytes; older files are dropped. InvalidInput when the file
        alone is too large, StoreUnavailable when unfinished files take the space."""
        if size + count > self._bytes_max:
            raise InvalidInput(
                "The table is too large for a file: read its rows as a stream.",
                bytes_max=str(self._bytes_max),
            )
        with self._lock:
            if self._growing + count > self._bytes_max:
                raise StoreUnavailable(
                    "Files of other tables take all the space. Try again later.",
                    bytes_max=str(self._bytes_max),
                )
            self._growing += count
            self._forget(self._clock)

    def _make(self, request: RowsRequest) -> TableFile:
        answer = read_rows(self._services, request)
        stream = pa.ipc.open_stream(_Body(answer.content))
        schema = without_durations(stream.schema)
        file = tempfile.TemporaryFile(prefix="tistream-rows-")  # noqa: SIM115 - lives as long as the TableFile
        hashed = _Hashed(file, self._grow)
        try:
            with pq.ParquetWriter(hashed, schema, compression="zstd", compression_level=3) as writer:
                for group in _groups(stream):
                    writer.write_table(group.cast(schema), row_group_size=_GROUP_ROWS)
            file.flush()
        except BaseException:
            file.close()
            raise
        finally:
            with self._lock:
                self._growing -= hashed.size
        return TableFile(file, hashed.size, f'"{hashed.digest}"')


def _complete(future: Future[TableFile]) -> bool:
    return future.done() and future.exception() is None


def _groups(stream: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """Row groups of _GROUP_ROWS rows, or fewer when they reach _GROUP_BYTES, however rows are batched."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in stream:
        sizes = _row_bytes(batch)
        while batch.num_rows:
            total = size + np.cumsum(sizes)
            count = min(int(np.searchsorted(total, _GROUP_BYTES)) + 1, _GROUP_ROWS - rows, batch.num_rows)
            held.append(batch.slice(0, count))
            rows, size = rows + count, int(total[count - 1])
            batch, sizes = batch.slice(count), sizes[count:]
            if rows == _GROUP_ROWS or size >= _GROUP_BYTES:
                yield _group(held)
                held, rows, size = [], 0, 0
    if held:
        yield _group(held)


def _group(held: list[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(held).unify_dictionaries().combine_chunks()


def _row_bytes(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Bytes of strings and binaries per row; other columns have a bounded size."""
    sizes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy()
        elif pa.types.is_list(column.type):
            sizes += pc.fill_null(pc.list_value_length(column), 0).to_numpy() * 4
    return sizes


class _Body(io.RawIOBase):
    """A body as a file object."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts, self._left = parts, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, into: object) -> int:
        target = memoryview(into).cast("B")  # type: ignore[arg-type]
        while not self._left.nbytes:
            part = next(self._parts, None)
            if part is None:
                return 0
            self._left = memoryview(part)
        count = min(len(target), self._left.nbytes)
        target[:count], self._left = self._left[:count], self._left[count:]
        return count


class _Hashed(io.RawIOBase):
    """A file object that hashes what it writes. `grow(size, count)` is called before each write."""

    def __init__(self, file: IO[bytes], grow: Callable[[int, int], None]) -> None:
        self._file, self._grow, self._hash, self.size = file, grow, hashlib.blake2b(digest_size=16), 0

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: object) -> int:
        part = memoryview(data).cast("B")  # type: ignore[arg-type]
        self._grow(self.size, part.nbytes)
        self.size += part.nbytes
        self._hash.update(part)
        return self._file.write(part)
