"""The segment file: the one container of batch files, committed files and snapshots.

    magic (8 bytes) | segment* | footer | footer length u32 | crc32c of the footer u32 | magic (8 bytes)

Little endian; the last byte of the magic is the format version. A segment is one Arrow IPC stream of one record batch,
compressed as a whole. The footer is an Arrow IPC stream, not compressed: one row per segment (`SegmentInfo`), and a
small JSON head in the schema metadata. The byte layout is drawn in docs/formats/segment-file.md.

`SegmentFile` and `decode_segment` guarantee to a reader:

- the segments of a file are contiguous from the magic to the footer, so every byte is covered by a check;
- each segment has the crc32c, the length, the unpacked length and the number of rows in the footer (or the
  catalog), and its columns are those of the requested schema;
- sizes are compared with `tistream.limits` before anything of that size is allocated;
- otherwise CorruptObject is raised with the object, the segment (its number, or "footer" or "frame" when none is at
  fault) and the offset, and nothing is returned.

A reader of one segment needs `decode_segment` and one range GET; it never sees the footer. The meaning of rows
is defined by batch_file and committed_file. Sealing is reserved (`sealed`, head `wrapped_key`) and refused here.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import crc32c
import orjson
import pyarrow as pa
import zstandard

from tistream.codec.arrow_stream import read_batch, single_batch, write_batch
from tistream.errors import CorruptObject, InvalidInput, invariant
from tistream.limits import FILE_BYTES_MAX, FOOTER_BYTES_MAX, HEAD_BYTES_MAX, SEGMENT_BYTES_MAX

FORMAT = 1
MAGIC = b"TiStrSg" + bytes([FORMAT])
ZSTD_LEVEL = 1

#: what an error names in place of a segment's number when no segment is at fault
FOOTER_PART = "footer"
FRAME_PART = "frame"  # magic, trailer, size

_TRAILER = struct.Struct("<II8s")  # footer length, crc32c of the footer, magic
_HEAD = b"head"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """One footer row: where a segment lies and what it holds. Ids, keys and timestamps are 0 or empty where they mean
    nothing for the kind."""

    number: int  #: from 0, in file order
    kind: str
    task_id: int = 0
    table_lo: int = 0  #: smallest physical table id
    table_hi: int = 0  #: largest physical table id
    start_key: bytes = b""  #: smallest key
    end_key: bytes = b""  #: largest key, inclusive
    lo_ts: int = 0  #: smallest commit_ts
    hi_ts: int = 0  #: largest commit_ts
    rows: int
    offset: int  #: in the file, bytes
    length: int  #: stored bytes
    raw_length: int = 0  #: bytes of the Arrow stream; 0 = not known
    crc: int  #: crc32c of the stored bytes
    sealed: bool = False  #: encrypted with the tenant's data key


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBounds:
    """How large the files of a kind may be. A larger one is refused before memory of that size is taken."""

    file_bytes: int = FILE_BYTES_MAX
    footer_bytes: int = FOOTER_BYTES_MAX  #: with the head
    segments: int = FOOTER_BYTES_MAX >> 6
    raw_bytes: int = SEGMENT_BYTES_MAX  #: of one segment, unpacked


OWN_FILES = FileBounds()  #: files that only TiStream writes

_FOOTER_TYPES = {"number": pa.uint32(), "crc": pa.uint32(), "kind": pa.string(), "sealed": pa.bool_()}
_FOOTER_TYPES |= {"table_lo": pa.int64(), "table_hi": pa.int64(), "start_key": pa.binary(), "end_key": pa.binary()}

#: columns of the footer, in the order of SegmentInfo's fields
FOOTER = pa.schema(
    [pa.field(f.name, _FOOTER_TYPES.get(f.name, pa.uint64()), nullable=False) for f in dataclasses.fields(SegmentInfo)]
)


class SegmentFileWriter:
    """Builds one file in memory: `add` segments, then `finish` once. The same input gives the same bytes."""

    def __init__(self, head: Mapping[str, object]) -> None:
        self._head = orjson.dumps({**head, "format": FORMAT}, option=orjson.OPT_SORT_KEYS)
        if len(self._head) > HEAD_BYTES_MAX:
            raise InvalidInput("the head of a segment file is too large", head_bytes=len(self._head))
        self._parts: list[bytes] = [MAGIC]
        self._size = len(MAGIC)
        self._segments: list[SegmentInfo] = []
        self._zstd = zstandard.ZstdCompressor(level=ZSTD_LEVEL)

    def add(
        self,
        kind: str,
        data: pa.Table | pa.RecordBatch,
        *,
        task_id: int = 0,
        table_lo: int = 0,
        table_hi: int = 0,
        start_key: bytes = b"",
        end_key: bytes = b"",
        lo_ts: int = 0,
        hi_ts: int = 0,
    ) -> SegmentInfo:
        """Append a segment. InvalidInput when it is larger than a reader accepts, or breaks its own schema."""
        try:
            raw = write_batch(single_batch(data))
        except ValueError as e:
            raise InvalidInput("the data does not fit a segment", segment_kind=kind, cause=e) from e
        if raw.size > SEGMENT_BYTES_MAX:
            raise InvalidInput("the segment is too large", segment_kind=kind, raw_length=raw.size)
        stored, crc = self._packed(raw)
        info = SegmentInfo(
            number=len(self._segments),
            kind=kind,
            task_id=task_id,
            table_lo=table_lo,
            table_hi=table_hi,
            start_key=start_key,
            end_key=end_key,
            lo_ts=lo_ts,
            hi_ts=hi_ts,
            rows=data.num_rows,
            offset=self._size,
            length=len(stored),
            raw_length=raw.size,
            crc=crc,
        )
        self._parts.append(stored)
        self._size += len(stored)
        self._segments.append(info)
        return info

    def _packed(self, raw: pa.Buffer) -> tuple[bytes, int]:
        """(stored bytes of a segment, their checksum)."""
        stored = self._zstd.compress(raw)
        return stored, crc32c.crc32c(stored)

    def finish(self) -> bytes:
        """The whole file. InvalidInput when it is larger than a reader accepts."""
        columns = [pa.array([getattr(s, f.name) for s in self._segments], f.type) for f in FOOTER]
        schema = FOOTER.with_metadata({_HEAD: self._head})
        footer = write_batch(pa.RecordBatch.from_arrays(columns, schema=schema)).to_pybytes()
        trailer = _TRAILER.pack(len(footer), crc32c.crc32c(footer), MAGIC)
        size = self._size + len(footer) + len(trailer)
        if len(footer) > FOOTER_BYTES_MAX or size > FILE_BYTES_MAX:
            raise InvalidInput("the segment file is too large", footer_bytes=len(footer), file_bytes=size)
        return b"".join([*self._parts, footer, trailer])


class SegmentFile:
    """An opened file: its head and its segments are checked, segments are checked when they are read."""

    __slots__ = ("_at", "_data", "footer_at", "head", "name", "segments")

    def __init__(
        self,
        name: str,
        data: memoryview,
        head: dict[str, Any],
        segments: tuple[SegmentInfo, ...],
        footer_at: int,
        at: int = 0,
    ) -> None:
        self.name = name
        self.head = head
        self.footer_at = footer_at  #: offset of the footer, bytes
        self.segments = segments
        self._data, self._at = data, at

    @classmethod
    def open(cls, name: str, data: bytes | memoryview, bounds: FileBounds = OWN_FILES) -> SegmentFile:
        """Check the frame, the footer and the head of a file. CorruptObject names `name` and the offset."""
        view = memoryview(data).cast("B")
        _check_start(name, view)
        opened = cls.open_end(name, view, len(view), bounds)
        assert opened is not None, "a whole file has its footer"
        return opened

    @classmethod
    def open_end(
        cls, name: str, data: bytes | memoryview, size: int, bounds: FileBounds = OWN_FILES
    ) -> SegmentFile | None:
        """As `open`, from the last bytes of a file of `size` bytes; None when its footer begins before them. Segments
        outside of them cannot be read."""
        view = memoryview(data).cast("B")
        at = size - len(view)
        if size > bounds.file_bytes:
            raise CorruptObject("the file is too large", **_where(name, FRAME_PART, 0), file_bytes=size)
        described = _footer(name, view, at, bounds.footer_bytes)
        if described is None:
            return None
        footer_at, footer = described
        try:
            table = read_batch(footer, FOOTER)
            if table.num_rows > bounds.segments:
                raise ValueError(f"{table.num_rows} segments, more than {bounds.segments}")
            head = _head(table.schema)
            columns = [column.to_pylist() for column in table.columns]
            rows = zip(*columns, strict=True)
            segments = tuple(SegmentInfo(**dict(zip(FOOTER.names, row, strict=True))) for row in rows)
        except ValueError as e:
            raise CorruptObject("the footer is malformed", **_where(name, FOOTER_PART, footer_at), cause=e) from e
        _check_tiling(name, segments, footer_at, bounds.raw_bytes)
        return cls(name, view, head, segments, footer_at, at)

    def segments_of(self, kind: str) -> tuple[SegmentInfo, ...]:
        """The segments of one kind, in file order."""
        return tuple(s for s in self.segments if s.kind == kind)

    def holds(self, number: int) -> bool:
        """Whether the bytes of a segment are available."""
        return self.segments[number].offset >= self._at

    def read(self, number: int, schema: pa.Schema | None = None) -> pa.Table:
        """The rows of a segment, as one chunk. CorruptObject when its bytes do not match the footer."""
        return pa.Table.from_batches([self.read_batch(number, schema)])

    def read_batch(self, number: int, schema: pa.Schema | None = None) -> pa.RecordBatch:
        """As `read`, as a batch."""
        info = self.segments[number]
        invariant(self.holds(number), "the segment is not in the end that was opened", object=self.name, segment=number)
        if info.sealed:
            raise CorruptObject("the segment is sealed and there is no key", **_where(self.name, number, info.offset))
        stored = self._data[info.offset - self._at :][: info.length]
        return _decode_batch(
            self.name,
            number,
            stored,
            crc=info.crc,
            schema=schema,
            rows=info.rows,
            raw_length=info.raw_length,
            offset=info.offset,
        )


def decode_segment(
    name: str,
    number: int,
    data: bytes | memoryview,
    *,
    crc: int,
    schema: pa.Schema | None = None,
    rows: int | None = None,
    raw_length: int | None = None,
    raw_bytes_max: int = SEGMENT_BYTES_MAX,
    offset: int = 0,
) -> pa.Table:
    """The rows of one segment from its stored bytes, as one chunk.

    `crc`, `rows` and `raw_length` come from the footer or the catalog; `name`, `number` and `offset` are for errors.
    CorruptObject when anything differs, or more than `raw_bytes_max` would have to be unpacked.
    """
    batch = _decode_batch(
        name,
        number,
        data,
        crc=crc,
        schema=schema,
        rows=rows,
        raw_length=raw_length,
        raw_bytes_max=raw_bytes_max,
        offset=offset,
    )
    return pa.Table.from_batches([batch])


def _decode_batch(
    name: str,
    number: int,
    data: bytes | memoryview,
    *,
    crc: int,
    schema: pa.Schema | None,
    rows: int | None,
    raw_length: int | None,
    offset: int,
    raw_bytes_max: int = SEGMENT_BYTES_MAX,
) -> pa.RecordBatch:
    where = _where(name, number, offset)
    actual = crc32c.crc32c(data)
    if actual != crc:
        raise CorruptObject("the checksum of a segment is wrong", **where, expected=crc, found=actual)
    try:
        batch = read_batch(_unpack(data, raw_length, raw_bytes_max), schema)
    except (ValueError, zstandard.ZstdError) as e:
        raise CorruptObject("a segment is malformed", **where, cause=e) from e
    if rows is not None and batch.num_rows != rows:
        raise CorruptObject("a segment has another number of rows", **where, expected=rows, found=batch.num_rows)
    return batch


def _unpack(data: bytes | memoryview, raw_length: int | None, raw_bytes_max: int) -> bytes:
    """Decompress one zstd frame. The size that the frame claims is what gets allocated, so it is checked first."""
    claimed = zstandard.get_frame_parameters(data).content_size
    if claimed == zstandard.CONTENTSIZE_UNKNOWN or claimed > raw_bytes_max:
        raise ValueError(f"the frame claims {claimed} bytes, more than {raw_bytes_max}")
    if raw_length is not None and claimed != raw_length:
        raise ValueError(f"the frame claims {claimed} bytes, the footer says {raw_length}")
    raw: bytes = zstandard.ZstdDecompressor().decompress(data, max_output_size=claimed, allow_extra_data=False)
    if len(raw) != claimed:
        raise ValueError(f"the frame claims {claimed} bytes and has {len(raw)}")
    return raw


def _check_start(name: str, data: memoryview) -> None:
    """Size and magic of a whole file."""
    size = len(data)
    if size > FILE_BYTES_MAX:
        raise CorruptObject("the file is too large", **_where(name, FRAME_PART, 0), file_bytes=size)
    if size < len(MAGIC) + _TRAILER.size:
        raise CorruptObject("the file is too short", **_where(name, FRAME_PART, size), file_bytes=size)
    start = bytes(data[: len(MAGIC)])
    if start[:-1] != MAGIC[:-1]:
        raise CorruptObject("not a segment file", **_where(name, FRAME_PART, 0))
    if start != MAGIC:
        where = _where(name, FRAME_PART, len(MAGIC) - 1)
        raise CorruptObject("the format version is not supported", **where, found=start[-1])


def _footer(name: str, data: memoryview, at: int, bytes_max: int) -> tuple[int, memoryview] | None:
    """Offset and bytes of the footer, once length and checksum are right; `data` begins at offset `at`. None when the
    footer begins before that."""
    size = at + len(data)
    if len(data) < _TRAILER.size:
        raise CorruptObject("the file is too short", **_where(name, FRAME_PART, size), file_bytes=size)
    trailer_at = size - _TRAILER.size
    length, crc, end = _TRAILER.unpack_from(data, trailer_at - at)
    if end != MAGIC:
        raise CorruptObject("the file is torn: no magic at its end", **_where(name, FRAME_PART, size - len(MAGIC)))
    footer_at = trailer_at - length
    if length > bytes_max or footer_at < len(MAGIC):
        raise CorruptObject("the footer length is wrong", **_where(name, FRAME_PART, trailer_at), footer_bytes=length)
    if footer_at < at:
        return None
    footer = data[footer_at - at : trailer_at - at]
    if crc32c.crc32c(footer) != crc:
        raise CorruptObject("the checksum of the footer is wrong", **_where(name, FOOTER_PART, footer_at))
    return footer_at, footer


def _head(schema: pa.Schema) -> dict[str, Any]:
    text = (schema.metadata or {}).get(_HEAD, b"")
    if len(text) > HEAD_BYTES_MAX:
        raise ValueError(f"the head has {len(text)} bytes")
    head = orjson.loads(text)
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise ValueError(f"the head does not say format {FORMAT}")
    return head


def _check_tiling(name: str, segments: tuple[SegmentInfo, ...], footer_at: int, raw_bytes_max: int) -> None:
    at = len(MAGIC)
    for i, s in enumerate(segments):
        where = _where(name, i, at)
        if s.number != i:
            raise CorruptObject("the segments are not numbered in order", **where, found=s.number)
        if s.offset != at or not 0 < s.length <= footer_at - at:
            raise CorruptObject("the segments are not contiguous", **where, found=s.offset, length=s.length)
        if s.raw_length > raw_bytes_max:
            raise CorruptObject("the segment is too large unpacked", **where, raw_length=s.raw_length)
        if s.table_lo > s.table_hi or s.lo_ts > s.hi_ts or (s.end_key and s.start_key > s.end_key):
            raise CorruptObject("a range of the segment is reversed", **where)
        at += s.length
    if at != footer_at:
        raise CorruptObject("bytes between the last segment and the footer", **_where(name, FRAME_PART, at))


def _where(name: str, number: int | str, offset: int) -> dict[str, object]:
    return {"object": name, "segment": number, "offset": offset}
