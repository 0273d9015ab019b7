"""The seed: all rows that a tenant, or one of its tables, had at a timestamp, as segment files.

    {base:06d}.seg         the manifest, written last: where every segment of the seed lies
    {base + 1:06d}.seg ... rows, schema SEED; a segment holds one physical table, in key order

`base` is 0 for a seed of the whole tenant and `table_id * 1,000,000` for that of a single table, so that seeds of one
timestamp never share a key. A seed without a manifest is incomplete and never used. The bases that compaction writes
are such files of rows, too, under other keys and without a manifest.

Relations, checked by writer and reader:

- the keys of a seed ascend strictly, across its segments and files; all of them are record keys;
- no row was committed above the seed's timestamp;
- the same rows in the same pieces give the same bytes, so writing a seed again is harmless.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tistream.codec.segment_file import FileBounds, SegmentFile, SegmentFileWriter, SegmentInfo, decode_segment
from tistream.codec.table_key import is_record, table_ids
from tistream.errors import CorruptObject, InvalidInput
from tistream.ids import Tenant
from tistream.limits import (
    COMMITTED_FILE_BYTES_TARGET,
    HEAD_BYTES_MAX,
    MANIFEST_BYTES_MAX,
    MANIFEST_RAW_BYTES_MAX,
    ROW_BYTES_MAX,
    SEED_SEGMENT_BYTES_MAX,
    SEED_SEGMENT_BYTES_TARGET,
    SEED_SEGMENTS_MAX,
)
from tistream.objectstore.layout import BaseKey, SeedKey

KIND = "seed"
MANIFEST_KIND = "seed-manifest"
FILES_PER_SEED_MAX = 1_000_000

#: rows of a seed
SEED = pa.schema(
    [
        pa.field("key", pa.binary(), False),
        pa.field("start_ts", pa.uint64(), False),
        pa.field("commit_ts", pa.uint64(), False),
        pa.field("value", pa.binary(), False),
    ]
)

#: rows of a base of a key range (table id 0); a null value is a deletion at the base's timestamp itself
KEYS = pa.schema([*list(SEED)[:-1], pa.field("value", pa.binary()), pa.field("expire_ts", pa.uint64(), False)])


@dataclass(frozen=True, slots=True)
class SeedSegment:
    """One segment of a seed, as in manifest and catalog."""

    n: int  #: of the file
    segment_no: int
    table_id: int  #: physical
    start_key: bytes
    end_key: bytes  #: inclusive
    rows: int
    offset: int  #: bytes from the start of the object
    length: int  #: bytes in the object
    crc: int


_TYPES = {"start_key": pa.binary(), "end_key": pa.binary()}
_MANIFEST = pa.schema([pa.field(f.name, _TYPES.get(f.name, pa.int64()), nullable=False) for f in fields(SeedSegment)])


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedManifest:
    """A whole seed."""

    tenant: Tenant
    ts: int
    table_id: int  #: logical table; 0 = all tables of the tenant
    file_bytes: dict[int, int]  #: n -> size of each file of rows
    segments: tuple[SeedSegment, ...]

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.segments)

    def key_of(self, n: int) -> str:
        """Object key of a file."""
        return str(SeedKey(tenant=self.tenant, ts=self.ts, n=n))


_MANIFEST_BOUNDS = FileBounds(
    file_bytes=MANIFEST_BYTES_MAX,
    footer_bytes=HEAD_BYTES_MAX + (64 << 10),
    segments=1,
    raw_bytes=MANIFEST_RAW_BYTES_MAX,
)


def manifest_key(tenant: Tenant, ts: int, table_id: int) -> SeedKey:
    """Where the manifest of a seed lies."""
    return SeedKey(tenant=tenant, ts=ts, n=table_id * FILES_PER_SEED_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedFile:
    """A file of rows, ready to be written."""

    key: SeedKey | BaseKey
    n: int
    data: bytes
    segments: tuple[SegmentInfo, ...]


class SeedBuilder:
    """Cuts rows in key order into files. `add` all rows, then `finish`; both yield full files, to be written before the
    manifest."""

    def __init__(
        self, tenant: Tenant, ts: int, table_id: int = 0, key_of: Callable[[int], SeedKey | BaseKey] | None = None
    ) -> None:
        """`key_of` overrides the object key of each file, by its number."""
        self._tenant, self._ts, self._table_id = tenant, ts, table_id
        self._key_of = key_of or (lambda n: SeedKey(tenant=tenant, ts=ts, n=n))
        self._n = table_id * FILES_PER_SEED_MAX
        self._last_key = b""
        self._writer: SegmentFileWriter | None = None
        self._segments: list[SegmentInfo] = []

    def add(self, rows: pa.Table) -> Iterator[SeedFile]:
        """Rows of schema SEED or KEYS that follow those before. InvalidInput when they are out of order, not records
        (SEED), or newer than the seed."""
        rows = rows.combine_chunks()
        if not rows.num_rows:
            return
        fault = seed_fault(rows, self._ts, self._last_key)
        if fault:
            raise InvalidInput(f"these rows cannot be a seed: {fault}", ts=self._ts)
        self._last_key = rows["key"][rows.num_rows - 1].as_py()
        for table_id, part in _parts(rows):
            yield from self._put(table_id, part)

    def finish(self) -> Iterator[SeedFile]:
        """The last file."""
        if self._writer is not None:
            yield self._file(self._writer)

    def _put(self, table_id: int, part: pa.Table) -> Iterator[SeedFile]:
        if self._writer is None:
            self._n += 1
            head = {"file": KIND, "cluster": self._tenant.cluster_id, "tenant": self._tenant.tenant_id}
            self._writer = SegmentFileWriter({**head, "ts": self._ts, "n": self._n})
        commit_ts = part["commit_ts"].to_numpy()
        info = self._writer.add(
            KIND,
            part,
            table_lo=table_id,
            table_hi=table_id,
            start_key=part["key"][0].as_py(),
            end_key=part["key"][part.num_rows - 1].as_py(),
            lo_ts=int(commit_ts.min()),
            hi_ts=int(commit_ts.max()),
        )
        self._segments.append(info)
        if info.offset + info.length >= COMMITTED_FILE_BYTES_TARGET:
            yield self._file(self._writer)

    def _file(self, writer: SegmentFileWriter) -> SeedFile:
        segments, self._segments, self._writer = tuple(self._segments), [], None
        return SeedFile(key=self._key_of(self._n), n=self._n, data=writer.finish(), segments=segments)


def build_manifest(
    tenant: Tenant, ts: int, table_id: int, files: Sequence[tuple[int, int, Sequence[SegmentInfo]]]
) -> bytes:
    """The bytes of the manifest. `files` holds (n, bytes, segments) of each file of rows."""
    writer = SegmentFileWriter(
        {
            "file": MANIFEST_KIND,
            "cluster": tenant.cluster_id,
            "tenant": tenant.tenant_id,
            "ts": str(ts),
            "table_id": table_id,
            "file_bytes": {str(n): size for n, size, _ in files},
        }
    )
    segments = [_segment(n, info) for n, _, infos in files for info in infos]
    columns = [pa.array([getattr(s, f.name) for s in segments], f.type) for f in _MANIFEST]
    writer.add(MANIFEST_KIND, pa.Table.from_arrays(columns, schema=_MANIFEST))
    return writer.finish()


def read_manifest(name: str, data: bytes, tenant: Tenant, ts: int, table_id: int) -> SeedManifest:
    """The seed that a manifest describes. CorruptObject when it is not a manifest, or of another seed."""
    file = SegmentFile.open(name, data, _MANIFEST_BOUNDS)
    head = file.head
    try:
        said = (head["file"], head["cluster"], head["tenant"], int(head["ts"]), head["table_id"])
        file_bytes = {_count(n): _count(size) for n, size in head["file_bytes"].items()}
    except (KeyError, ValueError, TypeError, AttributeError) as e:
        raise CorruptObject("this is not the manifest of a seed", object=name, cause=repr(e)) from e
    if said != (MANIFEST_KIND, tenant.cluster_id, tenant.tenant_id, ts, table_id) or len(file.segments) != 1:
        raise CorruptObject("this is the manifest of another seed", object=name, found=orjson.dumps(said).decode())
    if file.segments[0].rows > SEED_SEGMENTS_MAX:
        raise CorruptObject(f"a seed of more than {SEED_SEGMENTS_MAX} segments", object=name)
    columns = [column.to_pylist() for column in file.read_batch(0, _MANIFEST).columns]
    segments = tuple(SeedSegment(*row) for row in zip(*columns, strict=True))
    if fault := next(filter(None, (_segment_fault(segment, file_bytes) for segment in segments)), ""):
        raise CorruptObject(f"the manifest of a seed contradicts itself: {fault}", object=name)
    starts = [segment.start_key for segment in segments[1:]]
    if any(a.end_key >= b for a, b in zip(segments, starts, strict=False)) or {s.n for s in segments} != set(
        file_bytes
    ):
        raise CorruptObject("the manifest of a seed contradicts itself", object=name)
    return SeedManifest(tenant=tenant, ts=ts, table_id=table_id, file_bytes=file_bytes, segments=segments)


def _count(value: str | int) -> int:
    number = int(value)
    if not 0 <= number < 1 << 63:
        raise ValueError(f"{number} is no count")
    return number


def decode_seed_segment(
    name: str,
    number: int,
    data: bytes | memoryview,
    *,
    ts: int,
    crc: int,
    rows: int,
    offset: int,
    schema: pa.Schema = SEED,
) -> pa.Table:
    """The rows of one segment from its stored bytes, as one chunk. CorruptObject when damaged."""
    raw_bytes_max = ROW_BYTES_MAX if rows == 1 else SEED_SEGMENT_BYTES_MAX
    table = decode_segment(
        name, number, data, crc=crc, schema=schema, rows=rows, raw_bytes_max=raw_bytes_max, offset=offset
    )
    if fault := seed_fault(table, ts, b""):
        raise CorruptObject(f"the rows are no seed: {fault}", object=name, segment=number, offset=offset)
    return table


def seed_fault(rows: pa.Table, ts: int, after: bytes) -> str:
    """The fault of these rows as text; empty when they may follow the key `after` in a seed of `ts`."""
    keys = rows["key"].combine_chunks()
    if rows.schema.equals(SEED) and not is_record(keys).all():
        return "a key is not that of a record"
    if rows.num_rows and keys[0].as_py() <= after:
        return "row 0 is not above the row before"
    rises = pc.less(keys.slice(0, max(len(keys) - 1, 0)), keys.slice(1))
    if pc.all(rises).as_py() is False:
        return f"row {pc.index(rises, False).as_py() + 1} is not above the row before"
    if rows.num_rows and pc.max(rows["commit_ts"]).as_py() > ts:
        return "a row was committed above the seed's timestamp"
    return ""


def _segment_fault(segment: SeedSegment, file_bytes: Mapping[int, int]) -> str:
    """Why a segment cannot be read from its file, as text; empty when it can."""
    end = segment.offset + segment.length
    if not (segment.offset >= 0 and 0 < segment.length <= ROW_BYTES_MAX and end <= file_bytes.get(segment.n, -1)):
        return f"a segment lies outside of its file {segment.n}"
    if segment.rows < 0 or segment.segment_no < 0 or not 0 <= segment.crc < 1 << 32:
        return f"a segment of file {segment.n} has an impossible count"
    return ""


def _segment(n: int, info: SegmentInfo) -> SeedSegment:
    return SeedSegment(
        n=n,
        segment_no=info.number,
        table_id=info.table_lo,
        start_key=info.start_key,
        end_key=info.end_key,
        rows=info.rows,
        offset=info.offset,
        length=info.length,
        crc=info.crc,
    )


def _parts(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """(physical table, its rows), each near the size of a segment."""
    ids = table_ids(rows["key"])
    lengths = pc.add(pc.binary_length(rows["key"]), pc.fill_null(pc.binary_length(rows["value"]), 0))
    sizes = lengths.to_numpy().astype(np.int64) + 16
    before: npt.NDArray[Any] = np.concatenate([[0], np.cumsum(sizes)])
    bounds = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), len(ids)]
    for start, end in itertools.pairwise(bounds):
        while start < end:
            stop = int(np.searchsorted(before, before[start] + SEED_SEGMENT_BYTES_TARGET, side="right")) - 1
            stop = min(max(stop, start + 1), end)
            yield int(ids[start]), rows.slice(start, stop - start)
            start = stop
