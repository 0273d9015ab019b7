"""Compacts one plan row: reads, merges, sorts and writes its segments, and verifies the file.

`compact_range` depends on its plan row and the store only, so it may run twice, at once or after a crash: each attempt
writes under a key that contains its `attempt`, and none is visible until the driver's swap names it. The others are
orphans, and are collected.

Before it is stored, the file is decoded again, row group by row group, and must have the rows, the commit_ts range and
the fingerprint of the inputs, without the versions of keys that garbage collection removes from them
(`compactor.core.collection`; only tenants without tables). The fingerprint is the sum of a 64-bit hash of each row:
independent of the order, and changed by every missing, repeated or modified row.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from compactor.core.collection import counted, is_worth_collecting, kept
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
    """Figures that inputs and output share."""

    rows: int
    lo_ts: int
    hi_ts: int
    fingerprint: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeResult:
    """A stored file that is not visible yet."""

    range_id: int
    task_id: int
    object_key: str
    object_bytes: int
    groups: tuple[SegmentInfo, ...]
    footer: Footer
    before: Contents  #: of the inputs
    after: Contents  #: of the file, decoded again
    seconds: float
    collected: int = 0  #: rows of the inputs that garbage collection removed; `before` is without them


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A plan row that a retry cannot help."""

    range_id: int
    code: str
    message: str
    object: str = ""  #: that the error names; empty when it names none


class HasRange(Protocol):
    @property
    def range_id(self) -> int: ...


RowT = TypeVar("RowT", bound=HasRange)
ResultT = TypeVar("ResultT")


def compact_range(store: ObjectStore, row: PlanRow, attempt: str) -> RangeResult:
    """Write the file of one plan row. `attempt` is a unique name.

    CorruptObject for an input that does not match the catalog; ObjectNotFound for one collected since it was planned;
    TiStreamError when the file would not hold the same rows: then nothing is written.
    """
    begun = time.monotonic()
    inputs = read_inputs(store, row)
    tables = without_obsolete(inputs, row.safe_ts)
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
        collected=sum(table.num_rows for table in inputs) - before.rows,
    )


def attempt(build: Callable[[ObjectStore, RowT, str], ResultT], store: ObjectStore, row: RowT) -> ResultT | Failed:
    """`compact_range` or `build_bases` under a new name. An error that a retry cannot help becomes a result, so that
    the other rows continue."""
    try:
        return build(store, row, secrets.token_hex(8))
    except TiStreamError as e:
        if e.kind is ErrorKind.RETRY:
            raise
        about = e.facts.get("object", e.facts.get("key", ""))
        return Failed(range_id=row.range_id, code=e.code, message=str(e)[:_MESSAGE_MAX], object=str(about))
    except Exception as e:  # noqa: BLE001 - a defect concerns this row
        return Failed(range_id=row.range_id, code=TiStreamError.code, message=repr(e)[:_MESSAGE_MAX])


def read_inputs(store: ObjectStore, row: PlanRow) -> list[pa.Table]:
    """The rows of each input segment."""
    source = SegmentSource(store)
    return [source.rows(segment) for segment in row.segments]


def without_obsolete(tables: list[pa.Table], safe_ts: int) -> list[pa.Table]:
    """The inputs of a file without the obsolete versions of keys, if removing them is worth it. A log is never the
    bottom: a base lies below it."""
    if not safe_ts or not is_worth_collecting([counted(table, safe_ts) for table in tables], bottom=False):
        return tables
    whole = pa.concat_tables(tables)
    return [whole.filter(pa.array(kept(whole, safe_ts, bottom=False)))]


def merge(tables: Sequence[pa.Table]) -> pa.Table:
    """All rows in (table_id, commit_ts, start_ts, key) order."""
    whole = pa.concat_tables(tables).combine_chunks()
    batches = whole.to_batches()
    invariant(len(batches) == 1, "the inputs of one file fit one record batch", batches=len(batches))
    order = pc.sort_indices(batches[0], sort_keys=_IN_ORDER)
    return pa.Table.from_batches([batches[0].take(order)])


def contents(tables: Iterable[pa.Table]) -> Contents:
    """The figures of these rows, independent of their order."""
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
