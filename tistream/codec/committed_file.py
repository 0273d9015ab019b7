"""The committed file: one flush of a sorter, for all its tasks of a tenant, as a segment file.

    head        cluster, tenant, sorter, incarnation, seq (as in the object key), write_id
    committed   schema change.COMMITTED; per task and piece, first the large tables, then the small ones together

A table with more than `SEGMENT_OWN_BYTES_MIN` gets its own segments, so a reader of it fetches nothing else; they
end at `SEGMENT_BYTES_TARGET`. All smaller ones share segments, which end between two tables, at
`SEGMENT_SHARED_BYTES_TARGET`: one table of a thousand is read with one range GET and little else.

Relations, checked by writer and reader:

- the rows of a segment ascend strictly by (table_id, commit_ts, start_ts, key); of one table, they are in the order in
  which they are served;
- `table_lo..table_hi`, `start_key..end_key` (inclusive) and `lo_ts..hi_ts` of a segment are exactly what it holds;
- the segments of one table in one file follow each other in that order, too.

A flush that does not fit one file takes several, which become visible together: rows of one commit_ts of one table may
then continue in the next file (by seq). A task's rows may be added in pieces, in order; each is cut separately.

A committed file is visible once its catalog row exists; readers find its segments in the catalog, not in the footer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tistream.codec.arrow_stream import single_batch
from tistream.codec.segment_file import SegmentFileWriter, SegmentInfo, decode_segment
from tistream.errors import CorruptObject, InvalidInput
from tistream.limits import SEGMENT_BYTES_TARGET, SEGMENT_OWN_BYTES_MIN, SEGMENT_SHARED_BYTES_TARGET
from tistream.model import change
from tistream.objectstore.layout import CommittedKey

KIND = "committed"


def build_committed_file(
    key: CommittedKey, flushes: Sequence[tuple[int, pa.Table]], write_id: str
) -> tuple[bytes, dict[int, list[SegmentInfo]]]:
    """The file's bytes, and each task's segments in file order (none for a task without rows).

    `flushes` holds one (task id, table of schema change.COMMITTED) per task, rows sorted as above.
    InvalidInput when they are not, or when a task occurs twice.
    """
    writer = CommittedFileWriter(key, write_id)
    for task_id, table in flushes:
        if task_id in writer.segments:
            raise InvalidInput("a task occurs twice", object=str(key), task=task_id)
        writer.add(task_id, table)
    return writer.finish(), writer.segments


class CommittedFileWriter:
    """Builds one file in memory. The rows of a task may be added in pieces; each is cut into segments separately."""

    def __init__(self, key: CommittedKey, write_id: str) -> None:
        self._name = str(key)
        self._writer = SegmentFileWriter(
            {
                "file": KIND,
                "cluster": key.tenant.cluster_id,
                "tenant": key.tenant.tenant_id,
                "sorter": key.sorter,
                "incarnation": key.incarnation,
                "seq": key.seq,
                "write_id": write_id,
            }
        )
        self._last: dict[int, pa.RecordBatch] = {}
        self.segments: dict[int, list[SegmentInfo]] = {}  #: of each task that was added, in file order
        self.raw_bytes = 0  #: of the rows that were added

    def add(self, task_id: int, rows: pa.Table | pa.RecordBatch) -> None:
        """The next rows of a task. InvalidInput when they are not in order or do not follow those added before."""
        facts = {"object": self._name, "task": task_id}
        if not rows.schema.equals(change.COMMITTED):
            raise InvalidInput("the rows of a flush have other columns", **facts)
        try:
            batch = single_batch(rows)
        except ValueError as e:
            raise InvalidInput("the data does not fit a segment", cause=e, **facts) from e
        fault = order_fault(batch)
        if not fault and batch.num_rows and task_id in self._last:
            fault = order_fault(pa.concat_batches([self._last[task_id], batch.slice(0, 1)])) and "between two pieces"
        if fault:
            raise InvalidInput(f"the rows of a flush are not in order: {fault}", **facts)
        added = (self._writer.add(KIND, part, task_id=task_id, **bounds_of(part)) for part in _parts(batch))
        self.segments.setdefault(task_id, []).extend(added)
        if batch.num_rows:
            self._last[task_id] = pa.concat_batches([batch.slice(batch.num_rows - 1)])
        self.raw_bytes += batch.nbytes

    def finish(self) -> bytes:
        """The whole file. InvalidInput when it is larger than a reader accepts."""
        return self._writer.finish()


def decode_committed_segment(
    name: str, number: int, data: bytes | memoryview, *, crc: int, rows: int, offset: int = 0
) -> pa.Table:
    """The rows of one segment from its stored bytes, as one chunk. CorruptObject when damaged."""
    table = decode_segment(name, number, data, crc=crc, schema=change.COMMITTED, rows=rows, offset=offset)
    if fault := order_fault(single_batch(table)):
        raise CorruptObject(f"the rows are not in order: {fault}", object=name, segment=number, offset=offset)
    return table


def order_fault(batch: pa.RecordBatch) -> str:
    """Where the rows do not ascend strictly by (table_id, commit_ts, start_ts, key), as text; empty when they do."""
    if batch.num_rows < 2:
        return ""
    falls, same = np.zeros(batch.num_rows - 1, np.bool_), np.ones(batch.num_rows - 1, np.bool_)
    for name in ("table_id", "commit_ts", "start_ts"):
        column = batch.column(name).to_numpy()
        falls |= same & (column[1:] < column[:-1])
        same &= column[1:] == column[:-1]
    ties = np.flatnonzero(same)
    if len(ties):
        keys = batch.column("key")
        rises = pc.less(keys.take(pa.array(ties)), keys.take(pa.array(ties + 1)))
        falls[ties] = ~rises.to_numpy(zero_copy_only=False)
    return f"row {int(falls.argmax()) + 1}" if falls.any() else ""


def bounds_of(part: pa.RecordBatch) -> dict[str, Any]:
    """The tables, keys and timestamps between which a segment's rows lie, as in SegmentInfo."""
    tables = part.column("table_id")
    keys, ts = (pc.min_max(part.column(name)).as_py() for name in ("key", "commit_ts"))
    places = {"start_key": keys["min"], "end_key": keys["max"], "lo_ts": ts["min"], "hi_ts": ts["max"]}
    return {"table_lo": tables[0].as_py(), "table_hi": tables[-1].as_py(), **places}


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a task's rows into segments: each large table alone, then the small ones together."""
    if not batch.num_rows:
        return
    ids = batch.column("table_id").to_numpy()
    bounds = np.concatenate([[0], np.flatnonzero(ids[1:] != ids[:-1]) + 1, [len(ids)]])
    bytes_before = raw_bytes_before(batch)
    sizes = np.diff(bytes_before[bounds])
    large = sizes > SEGMENT_OWN_BYTES_MIN
    for i in np.flatnonzero(large):
        yield from cut(batch, bytes_before, np.arange(bounds[i], bounds[i + 1] + 1), SEGMENT_BYTES_TARGET)
    # neighbouring small tables form a run; runs are joined, so that all small tables are adjacent
    edges = np.flatnonzero(np.diff(np.concatenate([[True], large, [True]])))
    runs = [batch.slice(bounds[a], bounds[b] - bounds[a]) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    if runs:
        shared = runs[0] if len(runs) == 1 else pa.concat_batches(runs)
        ends = np.cumsum(np.diff(bounds)[~large])
        places = np.concatenate([[0], ends])
        yield from cut(shared, raw_bytes_before(shared), places, SEGMENT_SHARED_BYTES_TARGET)


def cut(
    batch: pa.RecordBatch, bytes_before: npt.NDArray[np.int64], at: npt.NDArray[Any], bytes_target: int
) -> Iterator[pa.RecordBatch]:
    """Slices of `batch` from at[0] to at[-1], each as long as the target allows, cut only at places in `at`."""
    first, before = 0, bytes_before[at]
    while first < len(at) - 1:
        last = int(np.searchsorted(before, before[first] + bytes_target, side="right")) - 1
        last = max(last, first + 1)
        yield batch.slice(at[first], at[last] - at[first])
        first = last


def raw_bytes_before(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """For each row, and for the end, how many bytes of fixed columns, keys and values lie before it."""
    fixed = sum(f.type.byte_width for f in batch.schema if not pa.types.is_binary(f.type))
    total: npt.NDArray[np.int64] = np.arange(batch.num_rows + 1, dtype=np.int64) * np.int64(fixed)
    for name in ("key", "value", "old_value"):
        column = batch.column(name)
        offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + batch.num_rows + 1]
        total += offsets
        total -= int(offsets[0])
    return total
