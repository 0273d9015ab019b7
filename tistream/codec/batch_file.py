"""The batch file: the rows and watermarks of one store in one tick, as a segment file.

    head      cluster, tenant, store, incarnation, seq (as in the object key), cut_ts, write_id
    rows      schema change.ROWS, clustered by subscription
    regions   schema change.REGIONS: one watermark row per subscription, with its slice of the rows

Relations, checked by writer and reader:

- the head's identity is the object key: a file under another key is refused;
- the slices of the regions tile the rows exactly: each row belongs to exactly one subscription;
- every `kind` and `op` is known; `commit_ts` is 0 for prewrites and rollbacks and only for them;
- a region's range is not empty; `subscription_ready_ts` is 0 or not below `subscription_open_ts`;
- timestamps are below 2**63. `cut_ts` was fetched after everything else in the file, so no row has a larger start_ts or
  commit_ts, and no region a larger resolved_ts or subscription_ready_ts;
- a COMMIT comes after its `start_ts`. A COMMITTED row may have equal ones: imports write rows like that;
- a RAW row has an operation and one timestamp, or FLAG_SCANNED and a `start_ts` at or below it; its key begins with the
  mode and a keyspace and lies in the range of its subscription;
- several rows have at most BATCH_ROWS_BYTES_MAX bytes unpacked, a single one ROW_BYTES_MAX; regions are bounded, too.
  The sizes in the footer are checked before a segment is unpacked, and unpacking must yield exactly them.

A checkpoint_ts may be above the same region's resolved_ts, which an old lock holds back, and above `cut_ts`: it comes
from the published frontier. Whether timestamps lie ahead of the service's time is checked where files are read
(`latest_ts`), and whether they keep the upstream contract in the sorter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tistream.codec.arrow_stream import single_batch
from tistream.codec.raw.keys import PREFIX_BYTES, KeyMode
from tistream.codec.segment_file import FOOTER_PART, FileBounds, SegmentFile, SegmentFileWriter, SegmentInfo
from tistream.errors import CorruptObject, InvalidInput
from tistream.limits import (
    BATCH_FILE_BYTES_MAX,
    BATCH_FOOTER_BYTES_MAX,
    BATCH_REGIONS_BYTES_MAX,
    BATCH_REGIONS_MAX,
    BATCH_ROWS_BYTES_MAX,
    ROW_BYTES_MAX,
)
from tistream.model import change
from tistream.model.change import FLAG_SCANNED, Op, RowKind
from tistream.objectstore.layout import BatchKey
from tistream.objectstore.protocol import Admit
from tistream.ts import TSO_END

_REGION_TIMESTAMPS = ("subscription_open_ts", "subscription_ready_ts", "checkpoint_ts", "resolved_ts")

ROWS_SEGMENT = 0
REGIONS_SEGMENT = 1

_BOUNDS = FileBounds(
    file_bytes=BATCH_FILE_BYTES_MAX, footer_bytes=BATCH_FOOTER_BYTES_MAX, segments=2, raw_bytes=ROW_BYTES_MAX
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFile:
    """One decoded batch file. Both batches are single chunks whose buffers belong to this file."""

    key: BatchKey
    cut_ts: int  #: TSO fetched after the file's last record
    write_id: str  #: random, makes the bytes of each write unique
    rows: pa.RecordBatch  #: schema change.ROWS
    regions: pa.RecordBatch  #: schema change.REGIONS

    @property
    def latest_ts(self) -> int:
        """The largest timestamp in the file."""
        return _latest_ts(self.cut_ts, self.regions)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWatermarks:
    cut_ts: int
    regions: pa.RecordBatch  #: schema change.REGIONS

    @property
    def latest_ts(self) -> int:
        """The largest timestamp in the file, its rows included."""
        return _latest_ts(self.cut_ts, self.regions)


def encode_batch_file(
    key: BatchKey, *, cut_ts: int, rows: pa.RecordBatch | pa.Table, regions: pa.RecordBatch | pa.Table, write_id: str
) -> bytes:
    """The file's bytes. InvalidInput when a relation of this module does not hold."""
    if not rows.schema.equals(change.ROWS) or not regions.schema.equals(change.REGIONS):
        raise InvalidInput("the columns are not those of a batch file", object=str(key))
    try:
        rows, regions = single_batch(rows), single_batch(regions)
    except ValueError as e:
        raise InvalidInput("the data does not fit a batch file", object=str(key), cause=e) from e
    if (
        fault := _cut_fault(cut_ts)
        or _rows_fault(rows, cut_ts)
        or _regions_fault(regions, rows.num_rows, cut_ts)
        or _place_fault(rows, regions)
    ):
        raise InvalidInput(f"not a valid batch file: {fault}", object=str(key))
    writer = SegmentFileWriter({**_identity(key), "cut_ts": cut_ts, "write_id": write_id})
    for info in (writer.add("rows", rows), writer.add("regions", regions)):
        if fault := _size_fault(info):
            raise InvalidInput(f"not a valid batch file: {fault}", object=str(key))
    return writer.finish()


def decode_batch_file(key: BatchKey, data: bytes | memoryview, admit: Admit | None = None) -> BatchFile:
    """The file stored under `key`. CorruptObject when it is damaged, belongs to another key or breaks a relation.

    `admit` is called with the bytes that unpacking takes, before it takes them."""
    file = SegmentFile.open(str(key), data, _BOUNDS)
    cut_ts, write_id = _checked_head(key, file)
    if admit is not None:
        admit(sum(segment.raw_length for segment in file.segments))
    rows = file.read_batch(ROWS_SEGMENT, change.ROWS).replace_schema_metadata(None)
    regions = file.read_batch(REGIONS_SEGMENT, change.REGIONS).replace_schema_metadata(None)
    if fault := _rows_fault(rows, cut_ts):
        raise _broken(file, ROWS_SEGMENT, fault)
    if fault := _regions_fault(regions, rows.num_rows, cut_ts) or _place_fault(rows, regions):
        raise _broken(file, REGIONS_SEGMENT, fault)
    return BatchFile(key=key, cut_ts=cut_ts, write_id=write_id, rows=rows, regions=regions)


def decode_watermarks(key: BatchKey, end: bytes | memoryview, size: int) -> BatchWatermarks | None:
    """The watermarks of the file of `size` bytes stored under `key`, from its last bytes; None when these are too few.
    CorruptObject as `decode_batch_file`; rows are not checked."""
    file = SegmentFile.open_end(str(key), end, size, _BOUNDS)
    if file is None:
        return None
    cut_ts, _ = _checked_head(key, file)
    if not file.holds(REGIONS_SEGMENT):
        return None
    regions = file.read_batch(REGIONS_SEGMENT, change.REGIONS).replace_schema_metadata(None)
    if fault := _regions_fault(regions, file.segments[ROWS_SEGMENT].rows, cut_ts):
        raise _broken(file, REGIONS_SEGMENT, fault)
    return BatchWatermarks(cut_ts=cut_ts, regions=regions)


def _checked_head(key: BatchKey, file: SegmentFile) -> tuple[int, str]:
    """(cut_ts, write id) of a file that belongs to this key and has the segments of a batch file."""
    name = str(key)
    footer = {"object": name, "segment": FOOTER_PART, "offset": file.footer_at}
    for fact, expected in _identity(key).items():
        value = file.head.get(fact)
        if type(value) is not type(expected) or value != expected:
            raise CorruptObject("the file belongs under another key", **footer, field=fact, found=value)
    cut_ts, write_id = file.head.get("cut_ts"), file.head.get("write_id")
    if type(cut_ts) is not int or not 0 <= cut_ts < TSO_END or not isinstance(write_id, str):
        raise CorruptObject("the head lacks cut_ts or write_id, or cut_ts is no TSO", **footer, head=file.head)
    if [s.kind for s in file.segments] != ["rows", "regions"]:
        raise CorruptObject("not the segments of a batch file", **footer, found=[s.kind for s in file.segments])
    for segment in file.segments:
        if fault := _size_fault(segment):
            raise _broken(file, segment.number, fault)
    return cut_ts, write_id


def _broken(file: SegmentFile, number: int, fault: str) -> CorruptObject:
    where = {"object": file.name, "segment": number, "offset": file.segments[number].offset}
    return CorruptObject(f"a batch file breaks its rules: {fault}", **where)


def _size_fault(segment: SegmentInfo) -> str:
    """Why a segment is too large, as text; empty when it is not."""
    if segment.number == ROWS_SEGMENT:
        allowed = ROW_BYTES_MAX if segment.rows == 1 else BATCH_ROWS_BYTES_MAX
    else:
        allowed = BATCH_REGIONS_BYTES_MAX
        if segment.rows > BATCH_REGIONS_MAX:
            return f"{segment.rows} region rows, more than {BATCH_REGIONS_MAX}"
    return "" if segment.raw_length <= allowed else f"{segment.raw_length} bytes unpacked, more than {allowed}"


def _identity(key: BatchKey) -> dict[str, object]:
    return {
        "file": "batch",
        "cluster": key.tenant.cluster_id,
        "tenant": key.tenant.tenant_id,
        "store": key.store_id,
        "incarnation": key.incarnation,
        "seq": key.seq,
    }


def _latest_ts(cut_ts: int, regions: pa.RecordBatch) -> int:
    """Every other timestamp is at or below `cut_ts`."""
    columns = ("subscription_open_ts", "checkpoint_ts")
    return max(cut_ts, *(int(_numbers(regions, name).max(initial=0)) for name in columns))


def _cut_fault(cut_ts: int) -> str:
    return "" if 0 <= cut_ts < TSO_END else f"cut_ts {cut_ts} is no TSO"


def _rows_fault(rows: pa.RecordBatch, cut_ts: int) -> str:
    """The first relation that the rows break, as text; empty when none."""
    kind, op, start_ts, commit_ts = (_numbers(rows, name) for name in ("kind", "op", "start_ts", "commit_ts"))
    if len(kind) and (kind.min() < min(RowKind) or kind.max() > max(RowKind)):
        return f"row {_first((kind < min(RowKind)) | (kind > max(RowKind)))} has an unknown kind"
    if len(op) and op.max() > max(Op):
        return f"row {_first(op > max(Op))} has an unknown op"
    decided = (kind == RowKind.COMMIT) | (kind == RowKind.COMMITTED) | (kind == RowKind.RAW)
    if (bad := decided != (commit_ts > 0)).any():
        return f"row {_first(bad)} has a commit_ts that does not fit its kind"
    if fault := _timestamp_fault(rows, "row", ("start_ts", "commit_ts")):
        return fault
    if (bad := (decided & (commit_ts < start_ts)) | ((kind == RowKind.COMMIT) & (commit_ts == start_ts))).any():
        return f"row {_first(bad)} was committed before its start_ts"
    if fault := _raw_fault(rows, kind, start_ts != commit_ts):
        return fault
    return _cut_short_fault(rows, "row", ("start_ts", "commit_ts"), cut_ts)


def _raw_fault(rows: pa.RecordBatch, kind: npt.NDArray[Any], two_times: npt.NDArray[np.bool_]) -> str:
    """The first relation that the RawKV rows break, as text; empty when none."""
    is_raw, flags = kind == RowKind.RAW, _numbers(rows, "flags")
    scanned = (flags & FLAG_SCANNED) != 0
    if (bad := scanned & ~is_raw).any():
        return f"row {_first(bad)} has the flag of a RawKV scan and is no RawKV row"
    if (bad := is_raw & two_times & ~scanned).any():
        return f"row {_first(bad)} is a RawKV row with two timestamps"
    if (bad := is_raw & (_numbers(rows, "op") == Op.NONE)).any():
        return f"row {_first(bad)} is a RawKV row without an operation"
    if not is_raw.any():
        return ""
    keys = rows.column("key")
    has_keyspace = pc.and_(
        pc.starts_with(keys, KeyMode.RAW.value), pc.greater_equal(pc.binary_length(keys), PREFIX_BYTES)
    )
    if (bad := is_raw & ~has_keyspace.to_numpy(zero_copy_only=False)).any():
        return f"row {_first(bad)} is a RawKV row whose key has no keyspace"
    return ""


def _place_fault(rows: pa.RecordBatch, regions: pa.RecordBatch) -> str:
    """The first subscription with a RawKV row outside of its range, as text; empty when none."""
    kind, keys = _numbers(rows, "kind"), rows.column("key")
    if not (kind == RowKind.RAW).any():
        return ""
    count = _numbers(regions, "row_count")
    for at in np.flatnonzero(count):
        first = int(regions.column("row_offset")[at].as_py())
        bounds = pc.min_max(keys.slice(first, int(count[at]))).as_py()
        start, end = (regions.column(name)[at].as_py() for name in ("start_key", "end_key"))
        if bounds["min"] < start or (end and bounds["max"] >= end):
            return f"region row {at} has rows with keys outside of its range"
    return ""


def _regions_fault(regions: pa.RecordBatch, rows: int, cut_ts: int) -> str:
    """The first relation that the regions of a file with `rows` rows break, as text; empty when none."""
    open_ts, ready_ts = _numbers(regions, "subscription_open_ts"), _numbers(regions, "subscription_ready_ts")
    if (bad := (ready_ts > 0) & (ready_ts < open_ts)).any():
        return f"region row {_first(bad)} was ready before it was opened"
    end = regions.column("end_key")
    bounded = pc.not_equal(end, pa.scalar(b"", pa.binary()))
    if pc.any(pc.and_(bounded, pc.less_equal(end, regions.column("start_key")))).as_py():
        return "a region row has an empty key range"
    if fault := _timestamp_fault(regions, "region row", _REGION_TIMESTAMPS):
        return fault
    if fault := _cut_short_fault(regions, "region row", ("subscription_ready_ts", "resolved_ts"), cut_ts):
        return fault
    return _tiling_fault(_numbers(regions, "row_offset"), _numbers(regions, "row_count"), rows)


def _timestamp_fault(data: pa.RecordBatch, what: str, columns: Sequence[str]) -> str:
    """The first number that is no TSO. It would end the catalog's arithmetic for every tenant."""
    for name in columns:
        if (bad := _numbers(data, name) >= TSO_END).any():
            return f"{what} {_first(bad)} has a {name} of 2**63 or more"
    return ""


def _cut_short_fault(data: pa.RecordBatch, what: str, columns: Sequence[str], cut_ts: int) -> str:
    """The first timestamp above cut_ts, which was fetched last."""
    for name in columns:
        if (bad := _numbers(data, name) > cut_ts).any():
            return f"{what} {_first(bad)} has a {name} above the file's cut_ts {cut_ts}"
    return ""


def _tiling_fault(offset: npt.NDArray[Any], count: npt.NDArray[Any], rows: int) -> str:
    """Whether the slices cover [0, rows) without gap or overlap, in any order of regions."""
    if (bad := (offset > rows) | (count > rows)).any():
        return f"region row {_first(bad)} lies outside of the {rows} rows"
    filled = np.flatnonzero(count)
    filled = filled[np.argsort(offset[filled], kind="stable")]
    ends = np.cumsum(count[filled].astype(np.int64))
    starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    if (bad := offset[filled].astype(np.int64) != starts).any():
        return f"region row {filled[_first(bad)]} leaves a gap in the rows or overlaps"
    covered = int(ends[-1]) if len(ends) else 0
    return "" if covered == rows else f"the regions cover {covered} of {rows} rows"


def _numbers(data: pa.RecordBatch, name: str) -> npt.NDArray[Any]:
    numbers: npt.NDArray[Any] = data.column(name).to_numpy()
    return numbers


def _first(bad: npt.NDArray[np.bool_]) -> int:
    return int(bad.argmax())
