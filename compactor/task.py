"""What a worker does with one row of the plan: read, merge, sort, write, look whether it is the same.

`compact_range` depends on nothing but its plan row and the store, so whoever runs it (Spark, threads, a test) may run
it twice, at once or again after a crash: each try writes under a key that contains its own `attempt`, and none is
visible until the driver's swap names it. What loses is an orphan and goes to the collector.

The file is checked before it is stored: it is decoded again, row group by row group, and must have the rows, the
commit_ts range and the fingerprint of the inputs. The fingerprint is the sum of a 64-bit hash of each row: it does not
depend on the order, and a row that is missing, doubled or changed changes it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from compactor.core.plan import PlanRow
from tistream.codec.compacted_file import CompactedFile, Footer, build_compacted_file, decode_row_group, read_footer
from tistream.codec.segment_file import SegmentInfo
from tistream.errors import ErrorKind, TiStreamError, invariant
from tistream.log.committed_log import SegmentSource
from tistream.model import change
from tistream.objectstore.layout import CompactedKey
from tistream.objectstore.protocol import ObjectStore

_SEED = 17
_MESSAGE_MAX = 2000
_IN_ORDER = [(name, "ascending") for name in ("table_id", "commit_ts", "start_ts", "key")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What must be the same before and after."""

    rows: int
    lo_ts: int
    hi_ts: int
    fingerprint: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeResult:
    """A file that lies in the store and is not visible yet."""

    range_id: int
    task_id: int
    object_key: str
    object_bytes: int
    groups: tuple[SegmentInfo, ...]
    footer: Footer
    before: Contents  #: of the inputs, as they were read
    after: Contents  #: of the file, as it was decoded again
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeFailed:
    """A plan row that cannot be merged into a file."""

    range_id: int
    task_id: int
    code: str
    message: str
    object: str = ""  #: that the error names; empty when it names none


def compact_range(store: ObjectStore, row: PlanRow, attempt: str) -> RangeResult:
    """Write the file of one plan row. `attempt` is a name that no other try uses.

    CorruptObject for an input that is not what the catalog says; ObjectNotFound for one that was collected since it was
    planned; TiStreamError when the file would not be the same rows, and then nothing is written.
    """
    begun = time.monotonic()
    tables = read_inputs(store, row)
    merged = merge(tables)
    file = build_compacted_file(merged, task_id=row.task_id)
    before, after = contents(tables), contents(_decoded(file))
    if before != after:
        raise TiStreamError("a compacted file differs from its inputs", job=row.job, before=before, after=after)
    key = CompactedKey(
        tenant=row.tenant, job=f"{row.job:08d}-{attempt}", range_id=row.range_id, lo_ts=before.lo_ts, hi_ts=before.hi_ts
    )
    store.put(str(key), memoryview(file.data))
    return RangeResult(
        range_id=row.range_id,
        task_id=row.task_id,
        object_key=str(key),
        object_bytes=file.data.size,
        groups=file.groups,
        footer=file.footer,
        before=before,
        after=after,
        seconds=time.monotonic() - begun,
    )


def try_range(store: ObjectStore, row: PlanRow, attempt: str) -> RangeResult | RangeFailed:
    """As `compact_range`; what another try cannot help is a result, so that the other rows of the plan go on."""
    try:
        return compact_range(store, row, attempt)
    except Exception as e:
        if may_pass(e):
            raise
        code, message, about = told(e)
        return RangeFailed(range_id=row.range_id, task_id=row.task_id, code=code, message=message, object=about)


def may_pass(error: Exception) -> bool:
    """Whether the same work may succeed later as it is."""
    return isinstance(error, TiStreamError) and error.kind is ErrorKind.RETRY


def told(error: Exception) -> tuple[str, str, str]:
    """(code, message, object) of an error; the object is empty when it names none."""
    if not isinstance(error, TiStreamError):
        return TiStreamError.code, repr(error)[:_MESSAGE_MAX], ""
    about = error.facts.get("object", error.facts.get("key", ""))
    return error.code, str(error)[:_MESSAGE_MAX], str(about)


def read_inputs(store: ObjectStore, row: PlanRow) -> list[pa.Table]:
    """The rows of each input segment."""
    source = SegmentSource(store)
    return [source.rows(segment) for segment in row.segments]


def merge(tables: Sequence[pa.Table]) -> pa.Table:
    """All rows in (table_id, commit_ts, start_ts, key) order."""
    whole = pa.concat_tables(tables).combine_chunks()
    batches = whole.to_batches()
    invariant(len(batches) == 1, "the inputs of one file fit one record batch", batches=len(batches))
    order = pc.sort_indices(batches[0], sort_keys=_IN_ORDER)
    return pa.Table.from_batches([batches[0].take(order)])


def contents(tables: Iterable[pa.Table]) -> Contents:
    """The figures of all these rows, whatever their order."""
    rows, lo_ts, hi_ts, total = 0, (1 << 64) - 1, 0, np.uint64(0)
    for table in tables:
        if not table.num_rows:
            continue
        ts = table["commit_ts"].to_numpy()
        rows += table.num_rows
        lo_ts, hi_ts = min(lo_ts, int(ts.min())), max(hi_ts, int(ts.max()))
        frame = pl.from_arrow(table)
        invariant(isinstance(frame, pl.DataFrame), "a table is a frame")
        with np.errstate(over="ignore"):
            total += frame.hash_rows(seed=_SEED).to_numpy().sum(dtype=np.uint64)
    return Contents(rows=rows, lo_ts=lo_ts, hi_ts=hi_ts, fingerprint=int(total))


def _decoded(file: CompactedFile) -> Iterable[pa.Table]:
    data, name = memoryview(file.data), "the file that was built"
    metadata = read_footer(name, data[file.footer.offset :], file.footer)
    for group in file.groups:
        stored = data[group.offset : group.offset + group.length]
        yield decode_row_group(
            name, group.number, stored, metadata, crc=group.crc, rows=group.rows, offset=group.offset
        ).cast(change.COMMITTED)
