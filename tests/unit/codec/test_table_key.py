"""Table keys: upstream vectors one by one, the vectorised answers against the scalar ones; prefixes of keyspaces."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tistream.codec import table_key as tk
from tistream.codec.memcomparable import encode_bytes
from tistream.codec.raw.keys import KeyMode, keyspace_prefix, keyspace_range
from tistream.codec.table_key import IndexKey, RecordKey, is_record, parse_key, table_ids
from tistream.errors import DecodeError, InvalidInput
from tistream.keyrange import KeyRange

RECORDS = [
    (193, 40, "7480000000000000c15f728000000000000028"),
    (104, 1, "7480000000000000685f728000000000000001"),
    (114, -1, "7480000000000000725f727fffffffffffffff"),
    (114, 0, "7480000000000000725f728000000000000000"),
    (114, 10, "7480000000000000725f72800000000000000a"),
    (65535, bytes.fromhex("05bff199999999999a01") + encode_bytes(b"11"),
     "74800000000000ffff5f7205bff199999999999a013131000000000000f9"),
    (62, b"\x04" + bytes(7) + b"\x06\x01" + encode_bytes(b"c4038db2-d51c-11eb-8c75-80e65018a9be"),
     "74800000000000003e5f720400000000000000060163343033386462"
     "32ff2d643531632d3131ff65622d386337352dff3830653635303138ff6139626500000000fb"),
    (7, bytes.fromhex("0602018101"), "7480000000000000075f72060201810100000000"),
]  # fmt: skip
INDEXES = [
    (193, 1, "0166696674792d666fff7572000000000000f9",
     "7480000000000000c15f6980000000000000010166696674792d666fff7572000000000000f9"),
    (105, 1, "038000000000004e20", "7480000000000000695f698000000000000001038000000000004e20"),
    (180, 1, "038000000000000002038000000000000001",
     "7480000000000000b45f698000000000000001038000000000000002038000000000000001"),
]  # fmt: skip


@pytest.mark.parametrize(("table_id", "handle", "encoded"), RECORDS)
def test_record_keys(table_id: int, handle: int | bytes, encoded: str) -> None:
    key = tk.record_key(table_id, handle)
    assert key.hex() == encoded
    parsed = parse_key(key)
    padded = handle if isinstance(handle, int) else handle.ljust(9, b"\0")
    assert parsed == RecordKey(table_id=table_id, handle=padded)
    assert key in tk.record_range(table_id)
    assert key in tk.table_range(table_id)


def test_a_common_handle_in_the_form_of_a_region_boundary() -> None:
    # the upstream documentation shows this key memcomparable encoded, as a region's start key
    boundary = (
        "7480000000000000ff3e5f720400000000ff0000000601633430ff3338646232ff2d64ff3531632d3131ff65ff622d386337352dffff"
        "3830653635303138ffff61396265000000ff00fb000000000000f9"
    )
    assert encode_bytes(bytes.fromhex(RECORDS[6][2])).hex() == boundary


@pytest.mark.parametrize(("table_id", "index_id", "suffix", "encoded"), INDEXES)
def test_index_keys(table_id: int, index_id: int, suffix: str, encoded: str) -> None:
    key = tk.index_key(table_id, index_id, bytes.fromhex(suffix))
    assert key.hex() == encoded
    assert parse_key(key) == IndexKey(table_id=table_id, index_id=index_id, suffix=bytes.fromhex(suffix))
    assert key in tk.table_range(table_id)
    assert key not in tk.record_range(table_id)


def test_ranges() -> None:
    assert tk.record_range(0x21A8) == KeyRange(
        bytes.fromhex("7480000000000021a85f72"), bytes.fromhex("7480000000000021a85f73")
    )
    assert encode_bytes(tk.record_range(0x21A8).start).hex() == "7480000000000021ffa85f720000000000fa"
    assert encode_bytes(tk.record_range(0x21A8).end).hex() == "7480000000000021ffa85f730000000000fa"
    assert encode_bytes(tk.table_prefix(71)).hex() == "7480000000000000ff4700000000000000f8"
    assert tk.table_range(255) == KeyRange(bytes.fromhex("7480000000000000ff"), bytes.fromhex("748000000000000100"))
    assert tk.table_range(2**63 - 1).end == b"u"
    assert KeyRange(b"m", b"n") == tk.META_RANGE
    assert tk.DDL_JOB_RANGE.start.hex() == "748000fffffffffffe5f72"


@pytest.mark.parametrize(
    ("key", "offset"),
    [
        ("", 0),
        ("6d44", 0),
        ("74", 1),
        ("7480000000000000", 1),
        ("748000000000000000" + "5f72" + "8000000000000001", 1),  # table 0
        ("747fffffffffffffff" + "5f72" + "8000000000000001", 1),  # table -1
        ("748000000000000001", 9),
        ("748000000000000001" + "5f72", 9),
        ("748000000000000001" + "5f72" + "80000000000000", 9),
        ("748000000000000001" + "5f69" + "80000000000000", 9),
        ("748000000000000001" + "5f73" + "8000000000000001", 9),
    ],
)
def test_invalid_table_keys_are_refused(key: str, offset: int) -> None:
    with pytest.raises(DecodeError) as e:
        parse_key(bytes.fromhex(key))
    assert e.value.facts["offset"] == offset


KEYS: list[tuple[bytes | None, int, bool]] = [
    *[(bytes.fromhex(encoded), table_id, True) for table_id, _, encoded in RECORDS],
    *[(bytes.fromhex(encoded), table_id, False) for table_id, _, _, encoded in INDEXES],
    (b"", 0, False),
    (b"t", 0, False),
    (b"mDB:1", 0, False),
    (b"u" + bytes.fromhex(RECORDS[0][2])[1:], 0, False),
    (bytes.fromhex("7480000000000000"), 0, False),
    (bytes.fromhex("748000000000000001"), 1, False),
    (bytes.fromhex("7480000000000000015f"), 1, False),
    (bytes.fromhex("7480000000000000015f72"), 1, True),  # in the record range, though no handle follows
    (bytes.fromhex("7480000000000000005f728000000000000001"), 0, False),
    (bytes.fromhex("747fffffffffffffff5f728000000000000001"), 0, False),
    (bytes.fromhex("74ffffffffffffffff5f728000000000000001"), 2**63 - 1, True),
    (bytes.fromhex("748000fffffffffffe5f728000000000000001"), tk.DDL_JOB_TABLE_ID, True),
    (None, 0, False),
]


@pytest.mark.parametrize("first", [0, 1, 7])
def test_whole_columns_also_sliced_ones(first: int) -> None:
    column = pa.array([key for key, _, _ in KEYS], pa.binary()).slice(first)
    assert table_ids(column).tolist() == [table for _, table, _ in KEYS[first:]]
    assert is_record(column).tolist() == [record for _, _, record in KEYS[first:]]
    assert table_ids(column).dtype == np.int64


def test_chunked_and_empty_columns() -> None:
    column = pa.chunked_array([pa.array([key], pa.binary()) for key, _, _ in KEYS])
    assert table_ids(column).tolist() == [table for _, table, _ in KEYS]
    assert is_record(pa.chunked_array([], pa.binary())).tolist() == []
    assert table_ids(pa.array([], pa.binary())).tolist() == []
    assert table_ids(pa.array([None, None], pa.binary())).tolist() == [0, 0]
    assert table_ids(pa.array([b"", b""], pa.binary())).tolist() == [0, 0]


def test_record_means_the_record_range() -> None:
    for key, table, record in KEYS:
        if key is not None and table:
            assert (key in tk.record_range(table)) == record


@pytest.mark.parametrize("bounds", [[0, 999, 9], [0, 12, 3], [0, -5, 9], [0, 2**31 - 1, 19]])
def test_offsets_that_point_outside_are_refused(bounds: list[int]) -> None:
    offsets = pa.py_buffer(np.array(bounds, np.int32))
    column = pa.BinaryArray.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(tk.record_key(1, 1))])
    with pytest.raises(IndexError):
        table_ids(column)


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError):
        table_ids(pa.array(["t"], pa.string()))


def test_prefixes_and_ranges_of_keyspaces() -> None:
    assert keyspace_prefix(KeyMode.RAW, 4242) == bytes.fromhex("72001092")
    assert keyspace_range(KeyMode.RAW, 4242).end == bytes.fromhex("72001093")
    assert keyspace_range(KeyMode.RAW, 0xFFFFFF).end == bytes.fromhex("73000000").rstrip(b"\0")
    assert keyspace_range(KeyMode.TXN, 255).end == bytes.fromhex("78000100").rstrip(b"\0")
    for id_ in (-1, 1 << 24):
        with pytest.raises(InvalidInput, match=str(id_)):
            keyspace_prefix(KeyMode.RAW, id_)
