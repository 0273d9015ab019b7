"""Bytes of format version 1, kept for ever: they must stay readable, and be what we write today.

The files are also read here by a second reader, written from docs/formats/segment-file.md with nothing of ours in it.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import zstandard

from tistream.codec.batch_file import decode_batch_file, encode_batch_file
from tistream.codec.committed_file import build_committed_file, decode_committed_segment
from tistream.codec.segment_file import SegmentFile
from tistream.ids import Tenant
from tistream.model import change
from tistream.objectstore.layout import BatchKey, CommittedKey

FOLDER = Path(__file__).parent
BATCH = FOLDER / "batch-v1.seg"
COMMITTED = FOLDER / "committed-v1.seg"
BATCH_KEY = BatchKey(tenant=Tenant(7, 3), store_id=5, incarnation=2, seq=9)
COMMITTED_KEY = CommittedKey(tenant=Tenant(7, 3), sorter="sorter-1", incarnation=4, seq=12)
CUT_TS = 470613537819721728

ROW_NAMES = (
    "kind", "op", "key", "start_ts", "commit_ts", "generation", "value", "old_value", "expire_ts", "flags",
)  # fmt: skip
ROWS = [
    (1, 1, b"t\x80\0\0\0\0\0\0h_r\x80\0\0\0\0\0\0\x01", 100, 0, 3, b"\x80\0", None, 0, 0),
    (2, 1, b"t\x80\0\0\0\0\0\0h_r\x80\0\0\0\0\0\0\x01", 100, 110, 0, None, None, 0, 0),
    (3, 0, b"b", 90, 0, 0, None, None, 0, 0),
    (4, 2, b"c", 95, CUT_TS, 0, None, b"", 1700000000, 1),
]
REGION_NAMES = (
    "region_id", "version", "start_key", "end_key", "subscription_open_ts", "subscription_ready_ts", "checkpoint_ts",
    "resolved_ts", "row_offset", "row_count",
)  # fmt: skip
REGIONS = [
    (12, 5, b"", b"t", 80, 0, 70, 0, 2, 2),
    (11, 4, b"t", b"", 80, 85, 75, 120, 0, 2),
]
COMMITTED_NAMES = ("table_id", "op", "key", "start_ts", "commit_ts", "value", "old_value", "expire_ts", "flags")
SMALL = [
    (104, 1, b"a", 100, 110, b"new", None, 0, 0),
    (104, 2, b"a", 111, 120, None, b"new", 0, 0),
    (106, 1, b"\0", 90, 91, b"", None, 0, 1),
]
LARGE = [(105, 1, b"k%d" % i, 50 + i, 60 + i, b"x" * 90_000, None, 0, 0) for i in range(3)]
OTHER = [(0, 1, b"raw", 0, 5, b"v", None, 99, 0)]


def table(names: tuple[str, ...], rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema=schema)


def encoded_batch() -> bytes:
    rows = table(ROW_NAMES, ROWS, change.ROWS)
    regions = table(REGION_NAMES, REGIONS, change.REGIONS)
    return encode_batch_file(BATCH_KEY, cut_ts=CUT_TS, rows=rows, regions=regions, write_id="0123abcd")


def encoded_committed() -> bytes:
    one = table(COMMITTED_NAMES, [*SMALL[:2], *LARGE, SMALL[2]], change.COMMITTED)
    other = table(COMMITTED_NAMES, OTHER, change.COMMITTED)
    return build_committed_file(COMMITTED_KEY, [(21, one), (22, other)], "4567cdef")[0]


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def read_by_the_page(data: bytes) -> tuple[dict[str, Any], list[dict[str, Any]], list[list[tuple[Any, ...]]]]:
    """Head, footer rows, and each segment's rows."""
    assert data[:8] == data[-8:] == b"TiStrSg\x01"
    length, crc = struct.unpack("<II", data[-16:-8])
    footer = data[-16 - length : -16]
    assert crc32c(footer) == crc
    entries = pa.ipc.open_stream(footer).read_all()
    segments = []
    for entry in entries.to_pylist():
        stored = data[entry["offset"] : entry["offset"] + entry["length"]]
        assert crc32c(stored) == entry["crc"]
        raw = zstandard.decompress(stored, max_output_size=entry["raw_length"])
        assert len(raw) == entry["raw_length"]
        rows = pa.ipc.open_stream(raw).read_all()
        assert rows.num_rows == entry["rows"]
        segments.append([tuple(row.values()) for row in rows.to_pylist()])
    return json.loads(entries.schema.metadata[b"head"]), entries.to_pylist(), segments


def test_crc32c_of_the_second_reader() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_the_batch_file_by_the_page() -> None:
    head, entries, segments = read_by_the_page(BATCH.read_bytes())
    assert head == {
        "format": 1,
        "file": "batch",
        "cluster": 7,
        "tenant": 3,
        "store": 5,
        "incarnation": 2,
        "seq": 9,
        "cut_ts": CUT_TS,
        "write_id": "0123abcd",
    }
    assert [(e["number"], e["kind"], e["rows"], e["sealed"]) for e in entries] == [
        (0, "rows", 4, False),
        (1, "regions", 2, False),
    ]
    assert segments == [ROWS, REGIONS]


def test_the_committed_file_by_the_page() -> None:
    head, entries, segments = read_by_the_page(COMMITTED.read_bytes())
    assert head == {
        "format": 1,
        "file": "committed",
        "cluster": 7,
        "tenant": 3,
        "sorter": "sorter-1",
        "incarnation": 4,
        "seq": 12,
        "write_id": "4567cdef",
    }
    names = ("kind", "task_id", "table_lo", "table_hi", "start_key", "end_key", "lo_ts", "hi_ts", "rows")
    assert [tuple(e[name] for name in names) for e in entries] == [
        ("committed", 21, 105, 105, b"k0", b"k2", 60, 62, 3),
        ("committed", 21, 104, 106, b"\0", b"a", 91, 120, 3),
        ("committed", 22, 0, 0, b"raw", b"raw", 5, 5, 1),
    ]
    assert segments == [LARGE, SMALL, OTHER]


def test_our_reader_agrees() -> None:
    file = decode_batch_file(BATCH_KEY, BATCH.read_bytes())
    assert (file.cut_ts, file.write_id) == (CUT_TS, "0123abcd")
    assert [tuple(row.values()) for row in file.rows.to_pylist()] == ROWS
    assert [tuple(row.values()) for row in file.regions.to_pylist()] == REGIONS
    data = COMMITTED.read_bytes()
    for info, expected in zip(SegmentFile.open("c", data).segments, [LARGE, SMALL, OTHER], strict=True):
        stored = data[info.offset : info.offset + info.length]
        rows = decode_committed_segment("c", info.number, stored, crc=info.crc, rows=info.rows)
        assert [tuple(row.values()) for row in rows.to_pylist()] == expected


def test_we_still_write_the_same_bytes() -> None:
    assert encoded_batch() == BATCH.read_bytes()
    assert encoded_committed() == COMMITTED.read_bytes()
