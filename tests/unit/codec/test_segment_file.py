"""The container: what goes in comes out, and nothing else comes out.

Hostile files are put together here by hand, so the reader is not tested against the writer's good manners.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from typing import Any

import crc32c
import pyarrow as pa
import pytest
import zstandard

from tistream.codec import segment_file
from tistream.codec.segment_file import (
    MAGIC,
    OWN_FILES,
    FileBounds,
    SegmentFile,
    SegmentFileWriter,
    SegmentInfo,
    decode_segment,
)
from tistream.errors import CorruptObject, InvalidInput

SCHEMA = pa.schema([pa.field("n", pa.uint64(), nullable=False), pa.field("text", pa.binary())])
ROWS = pa.table({"n": [1, 2, 3], "text": [b"a", None, b""]}, schema=SCHEMA)
NAME = "some/object.seg"

FOOTER = pa.schema(
    [
        pa.field(name, kind, nullable=False)
        for name, kind in [
            ("number", pa.uint32()),
            ("kind", pa.string()),
            ("task_id", pa.uint64()),
            ("table_lo", pa.int64()),
            ("table_hi", pa.int64()),
            ("start_key", pa.binary()),
            ("end_key", pa.binary()),
            ("lo_ts", pa.uint64()),
            ("hi_ts", pa.uint64()),
            ("rows", pa.uint64()),
            ("offset", pa.uint64()),
            ("length", pa.uint64()),
            ("raw_length", pa.uint64()),
            ("crc", pa.uint32()),
            ("sealed", pa.bool_()),
        ]
    ]
)
BLANK = {"kind": "x", "start_key": b"", "end_key": b"", "sealed": False}


def stream(*batches: pa.RecordBatch, schema: pa.Schema = SCHEMA, options: Any = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def craft(
    raw: bytes, *, stored: bytes | None = None, head: object = None, footer: bytes | None = None, **row: Any
) -> bytes:
    """A file of one segment whose footer says what `row` says, with right checksums."""
    stored = zstandard.compress(raw) if stored is None else stored
    said = {
        **dict.fromkeys(FOOTER.names, 0),
        **BLANK,
        "offset": 8,
        "length": len(stored),
        "raw_length": len(raw),
        "crc": crc32c.crc32c(stored),
        "rows": 3,
        **row,
    }
    text = json.dumps({"format": 1} if head is None else head).encode()
    if footer is None:
        schema = FOOTER.with_metadata({b"head": text})
        footer = stream(pa.RecordBatch.from_pylist([said], schema=schema), schema=schema)
    return b"TiStrSg\x01" + stored + footer + struct.pack("<II", len(footer), crc32c.crc32c(footer)) + b"TiStrSg\x01"


def file_of(*tables: pa.Table) -> bytes:
    writer = SegmentFileWriter({"who": "me"})
    for i, table in enumerate(tables):
        writer.add(
            f"kind{i % 2}", table, task_id=i, table_lo=-1, table_hi=i, start_key=b"a", end_key=b"b", hi_ts=2**64 - 1
        )
    return writer.finish()


def refused(data: bytes, cause: str, place: int | str = 0, bounds: FileBounds = OWN_FILES) -> CorruptObject:
    with pytest.raises(CorruptObject) as e:
        SegmentFile.open(NAME, data, bounds).read(0, SCHEMA)
    assert e.value.facts["object"] == NAME
    offset = e.value.facts["offset"]
    assert isinstance(offset, int)
    assert 0 <= offset <= len(data)
    assert e.value.facts["segment"] == place
    assert cause in str(e.value)
    return e.value


def test_what_goes_in_comes_out() -> None:
    data = file_of(ROWS, ROWS.slice(1, 1), ROWS.slice(0, 0))
    file = SegmentFile.open(NAME, data)
    assert file.head == {"format": 1, "who": "me"}
    assert [s.rows for s in file.segments] == [3, 1, 0]
    assert [s.number for s in file.segments] == [0, 1, 2]
    assert [s.number for s in file.segments_of("kind0")] == [0, 2]
    assert [s.task_id for s in file.segments_of("kind1")] == [1]
    assert file.segments_of("kind2") == ()
    assert file.segments[1].start_key == b"a"
    assert file.segments[2].hi_ts == 2**64 - 1
    assert file.read(0, SCHEMA).equals(ROWS)
    assert file.read(1).to_pylist() == [{"n": 2, "text": None}]
    assert file.read(2, SCHEMA).num_rows == 0
    assert SegmentFile.open(NAME, memoryview(data)).read(0, SCHEMA).equals(ROWS)


def test_a_segment_is_read_by_one_range_get() -> None:
    writer = SegmentFileWriter({})
    info = [writer.add("x", ROWS), writer.add("x", ROWS.slice(2))][1]
    data = writer.finish()
    assert info == SegmentFile.open(NAME, data).segments[1]
    stored = data[info.offset : info.offset + info.length]
    rows = decode_segment(NAME, 1, stored, crc=info.crc, schema=SCHEMA, rows=1)
    assert rows.to_pylist() == [{"n": 3, "text": b""}]
    with pytest.raises(CorruptObject, match="checksum") as e:
        decode_segment(NAME, 1, stored[:-1], crc=info.crc, offset=info.offset)
    assert (e.value.facts["object"], e.value.facts["segment"]) == (NAME, 1)
    assert e.value.facts["offset"] == info.offset
    with pytest.raises(CorruptObject, match="number of rows"):
        decode_segment(NAME, 1, stored, crc=info.crc, rows=2)


def test_a_file_without_segments() -> None:
    file = SegmentFile.open(NAME, SegmentFileWriter({"n": 2**64 - 1}).finish())
    assert (file.segments, file.head) == ((), {"format": 1, "n": 2**64 - 1})


def test_the_bytes_depend_on_the_rows_only() -> None:
    chunks = pa.concat_tables([ROWS.slice(0, 1), ROWS.slice(1)]).replace_schema_metadata({"some": "note"})
    longer = pa.concat_tables([ROWS, ROWS]).combine_chunks().slice(3)
    assert file_of(ROWS) == file_of(chunks) == file_of(longer)


def test_bytes_match_the_format_page() -> None:
    """An independent reading of the outer frame."""
    data = file_of(ROWS)
    assert data[:8] == data[-8:] == MAGIC
    length, crc = struct.unpack("<II", data[-16:-8])
    footer = data[-16 - length : -16]
    assert crc32c.crc32c(footer) == crc
    table = pa.ipc.open_stream(footer).read_all()
    assert table.schema.equals(FOOTER)
    assert FOOTER.names == [f.name for f in dataclasses.fields(SegmentInfo)]
    row = table.to_pylist()[0]
    assert row["offset"] == 8
    assert row["offset"] + row["length"] == len(data) - 16 - length
    raw = zstandard.decompress(data[8 : 8 + row["length"]])
    assert len(raw) == row["raw_length"]
    assert pa.ipc.open_stream(raw).read_all().equals(ROWS)


def test_the_hand_made_file_is_accepted() -> None:
    assert SegmentFile.open(NAME, craft(stream(*ROWS.to_batches()))).read(0, SCHEMA).equals(ROWS)


def test_every_truncation_is_refused() -> None:
    data = file_of(ROWS, ROWS)
    for length in range(len(data)):
        with pytest.raises(CorruptObject) as e:
            SegmentFile.open(NAME, data[:length])
        assert e.value.facts["object"] == NAME
        offset = e.value.facts["offset"]
        assert isinstance(offset, int)
        assert 0 <= offset <= length


def test_every_flipped_bit_is_refused() -> None:
    data = file_of(ROWS)
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        with pytest.raises(CorruptObject):
            SegmentFile.open(NAME, bytes(flipped)).read(0, SCHEMA)


def test_bytes_added_anywhere_are_refused() -> None:
    data = file_of(ROWS)
    for at in range(len(data) + 1):
        with pytest.raises(CorruptObject):
            SegmentFile.open(NAME, data[:at] + b"\0" + data[at:]).read(0, SCHEMA)


@pytest.mark.parametrize(
    ("data", "cause", "place", "offset"),
    [
        (b"", "too short", "frame", 0),
        (b"PAR1" * 20, "not a segment file", "frame", 0),
        (b"TiStrSg\x02" + bytes(30) + b"TiStrSg\x02", "version is not supported", "frame", 7),
        (MAGIC + bytes(30) + b"TiStrSg\x02", "torn", "frame", 38),
        (MAGIC + struct.pack("<II", 2**32 - 1, 0) + MAGIC, "footer length", "frame", 8),
        (MAGIC + struct.pack("<II", 1, 0) + MAGIC, "footer length", "frame", 8),
        (MAGIC + b"x" + struct.pack("<II", 1, 0) + MAGIC, "checksum of the footer", "footer", 8),
    ],
)
def test_foreign_and_torn_frames_are_refused(data: bytes, cause: str, place: str, offset: int) -> None:
    assert refused(data, cause, place).facts["offset"] == offset


def test_oversized_files_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = file_of(ROWS)
    monkeypatch.setattr(segment_file, "FILE_BYTES_MAX", len(data) - 1)
    refused(data, "file is too large", "frame")
    with pytest.raises(InvalidInput):
        file_of(ROWS)
    monkeypatch.undo()
    refused(data, "footer length", "frame", FileBounds(footer_bytes=100))
    refused(data, "file is too large", "frame", FileBounds(file_bytes=len(data) - 1))
    refused(data, "segment is too large", 0, FileBounds(raw_bytes=100))
    refused(file_of(ROWS, ROWS), "2 segments, more than 1", "footer", FileBounds(segments=1))
    monkeypatch.setattr(segment_file, "HEAD_BYTES_MAX", 5)
    refused(data, "head has", "footer")
    with pytest.raises(InvalidInput):
        file_of(ROWS)
    monkeypatch.undo()
    monkeypatch.setattr(segment_file, "SEGMENT_BYTES_MAX", 100)
    with pytest.raises(InvalidInput):
        file_of(ROWS)


RAW = stream(*ROWS.to_batches())


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        ({"offset": 7}, "not contiguous"),
        ({"offset": 9}, "not contiguous"),
        ({"offset": 2**64 - 1}, "not contiguous"),
        ({"length": 0}, "not contiguous"),
        ({"length": 2**64 - 1}, "not contiguous"),
        ({"length": 2**63}, "not contiguous"),
        ({"number": 1}, "numbered"),
        ({"raw_length": 2**40}, "too large"),
        ({"raw_length": len(RAW) - 1}, "the footer says"),
        ({"raw_length": len(RAW) + 1}, "the footer says"),
        ({"crc": 0}, "checksum of a segment"),
        ({"rows": 2}, "number of rows"),
        ({"rows": 2**64 - 1}, "number of rows"),
        ({"sealed": True}, "sealed"),
        ({"lo_ts": 2, "hi_ts": 1}, "reversed"),
        ({"table_lo": 2, "table_hi": 1}, "reversed"),
        ({"start_key": b"b", "end_key": b"a"}, "reversed"),
    ],
)
def test_a_footer_that_lies_is_refused(row: dict[str, Any], cause: str) -> None:
    refused(craft(RAW, **row), cause)


def test_a_gap_before_the_footer_is_refused() -> None:
    stored = zstandard.compress(RAW)
    refused(craft(RAW, stored=stored + b"x", length=len(stored)), "between", "frame")


@pytest.mark.parametrize("head", [[], {}, {"format": 2}, {"format": "1"}, None, 7])
def test_a_wrong_head_is_refused(head: object) -> None:
    schema = FOOTER.with_metadata({b"head": json.dumps(head).encode()})
    refused(craft(RAW, footer=stream(schema=schema)), "footer is malformed", "footer")


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 100_000, b"\xff"])
def test_a_head_that_is_not_json_is_refused(text: bytes) -> None:
    schema = FOOTER.with_metadata({b"head": text})
    empty = pa.RecordBatch.from_pylist([], schema=schema)
    refused(craft(RAW, footer=stream(empty, schema=schema)), "footer is malformed", "footer")


def test_a_footer_of_another_shape_is_refused() -> None:
    fewer = pa.schema(list(FOOTER)[:-1], {b"head": b'{"format":1}'})
    empty = pa.RecordBatch.from_pylist([], schema=fewer)
    refused(craft(RAW, footer=stream(empty, schema=fewer)), "column 14 is nothing", "footer")
    refused(craft(RAW, footer=b"\0" * 64), "footer is malformed", "footer")
    refused(craft(RAW, footer=b""), "footer is malformed", "footer")


OTHER = pa.record_batch({"n": [1]})
WORDS = pa.record_batch({"n": pa.array(["a"]).dictionary_encode()})


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff\xff\xff\xff\0\0\0\0",
        b"\xff" * 100,
        stream(),
        RAW[:-16],
        RAW + bytes(8),
        stream(*ROWS.to_batches(), *ROWS.to_batches()),
        stream(OTHER, schema=OTHER.schema),
        stream(WORDS, schema=WORDS.schema),
    ],
)
def test_anything_but_one_batch_of_the_schema_is_refused(raw: bytes) -> None:
    refused(craft(raw), "a segment is malformed")


def test_nulls_where_none_may_be_are_refused() -> None:
    lax = pa.schema([pa.field("n", pa.uint64()), pa.field("text", pa.binary())])
    batch = pa.RecordBatch.from_pylist([{"n": None, "text": b""}] * 3, schema=lax)
    refused(craft(stream(batch, schema=lax)), "column 0 is")
    liar = pa.RecordBatch.from_arrays(batch.columns, schema=SCHEMA)
    refused(craft(stream(liar)), "column n has nulls")
    with pytest.raises(InvalidInput, match="column n has nulls"):
        SegmentFileWriter({}).add("x", liar)


@pytest.mark.parametrize("offsets", [[0, 2**31 - 1, 1, 1], [0, -1, 1, 1], [0, 1, 0, 1], [1, 1, 1, 2**30]])
def test_hostile_offsets_are_refused(offsets: list[int]) -> None:
    raw = bytearray(stream(*pa.table({"n": [1, 2, 3], "text": [b"a", b"", b""]}, schema=SCHEMA).to_batches()))
    honest = struct.pack("<4i", 0, 1, 1, 1)
    at = raw.index(honest)
    raw[at : at + 16] = struct.pack("<4i", *offsets)
    refused(craft(bytes(raw)), "a segment is malformed")


def test_no_flipped_byte_inside_a_segment_makes_arrow_misbehave() -> None:
    """The checksum is right here: a writer that lies, not a damaged disk. Either refused, or sound data."""
    accepted = 0
    for at in range(len(RAW)):
        for value in (0x00, 0x7F, 0x80, 0xFF):
            raw = RAW[:at] + bytes([value]) + RAW[at + 1 :]
            try:
                table = SegmentFile.open(NAME, craft(raw)).read(0, SCHEMA)
            except CorruptObject:
                continue
            accepted += 1
            assert table.num_rows == 3
            assert [len(column) for column in table.to_pydict().values()] == [3, 3]
    assert accepted > 0


def test_compression_inside_the_stream_is_refused() -> None:
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    bomb = pa.table({"n": [1] * 100_000, "text": [b"a" * 100] * 100_000}, schema=SCHEMA).combine_chunks()
    raw = stream(*bomb.to_batches(), options=options)
    assert len(raw) < bomb.nbytes / 30
    refused(craft(raw, rows=100_000), "compressed inside")


def test_a_zip_bomb_is_refused_by_its_claim() -> None:
    bomb = zstandard.compress(bytes(50_000_000))
    assert len(bomb) < 10_000
    refused(craft(RAW, stored=bomb), "the footer says")
    crc = crc32c.crc32c(bomb)
    with pytest.raises(CorruptObject, match="malformed"):
        decode_segment(NAME, 0, bomb, crc=crc, raw_length=1000)


def test_a_frame_that_claims_too_much_is_refused_without_allocating() -> None:
    huge = b"\x28\xb5\x2f\xfd" + bytes([0xE0]) + struct.pack("<Q", 2**40) + b"\x01\0\0"
    with pytest.raises(CorruptObject, match="claims 1099511627776"):
        decode_segment(NAME, 0, huge, crc=crc32c.crc32c(huge))


def test_a_frame_without_a_claim_is_refused() -> None:
    stored = zstandard.ZstdCompressor(write_content_size=False).compress(RAW)
    refused(craft(RAW, stored=stored), "a segment is malformed")


@pytest.mark.parametrize("change", [-1, 1])
def test_a_frame_that_lies_about_its_size_is_refused(change: int) -> None:
    stored = bytearray(zstandard.compress(RAW))
    assert stored[4] & 0xC0 == 0x40  # two bytes of content size, counted from 256
    claimed = len(RAW) + change
    stored[5:7] = struct.pack("<H", claimed - 256)
    refused(craft(RAW, stored=bytes(stored), raw_length=claimed), "a segment is malformed")


@pytest.mark.parametrize("tail", [b"x", zstandard.compress(b"more")])
def test_bytes_behind_the_frame_are_refused(tail: bytes) -> None:
    refused(craft(RAW, stored=zstandard.compress(RAW) + tail), "a segment is malformed")
