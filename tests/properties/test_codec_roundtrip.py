"""What is encoded comes back, sorts as it should, and damaged bytes are never taken for data."""

from __future__ import annotations

import contextlib
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tistream.codec import memcomparable as mc
from tistream.codec import table_key as tk
from tistream.codec.arrow_stream import read_batch
from tistream.codec.batch_file import decode_batch_file, encode_batch_file
from tistream.codec.committed_file import build_committed_file, decode_committed_segment
from tistream.codec.segment_file import SegmentFile, SegmentFileWriter
from tistream.errors import CorruptObject, DecodeError, InvalidInput
from tistream.ids import Tenant
from tistream.model import change
from tistream.objectstore.layout import BatchKey, CommittedKey

calm = settings(deadline=None)  # a shared machine pauses, and the first call may compile

u8, u64 = st.integers(0, 255), st.integers(0, 2**64 - 1)
tso = st.integers(0, 2**63 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
octets = st.binary(max_size=40)


@calm
@given(octets, octets, octets)
def test_bytes_round_trip_and_sort(a: bytes, b: bytes, tail: bytes) -> None:
    encoded = mc.encode_bytes(a)
    assert len(encoded) == (len(a) // 8 + 1) * 9
    assert mc.decode_bytes(encoded + tail) == (a, len(encoded))
    assert (encoded < mc.encode_bytes(b)) == (a < b)


@calm
@given(octets)
def test_what_decodes_as_bytes_is_what_was_encoded(data: bytes) -> None:
    try:
        value, end = mc.decode_bytes(data)
    except DecodeError:
        return
    assert mc.encode_bytes(value) == data[:end]


@calm
@given(i64, i64, u64)
def test_numbers_round_trip_and_sort(a: int, b: int, c: int) -> None:
    assert mc.decode_int(mc.encode_int(a)) == (a, 8)
    assert mc.decode_uint(c.to_bytes(8, "big")) == (c, 8)
    assert mc.decode_uvarint(mc.encode_uvarint(c))[0] == c
    assert (mc.encode_int(a) < mc.encode_int(b)) == (a < b)


@calm
@given(octets)
def test_a_key_is_parsed_or_refused(data: bytes) -> None:
    with contextlib.suppress(DecodeError):
        tk.parse_key(data)


table_id = st.integers(1, 2**63 - 1)
any_key = st.one_of(
    octets,
    st.builds(tk.record_key, table_id, st.one_of(i64, octets)),
    st.builds(tk.index_key, table_id, i64, octets),
    st.builds(lambda t, rest: tk.table_prefix(t) + rest, i64, octets),
)


@calm
@given(st.lists(any_key, max_size=20), st.integers(0, 5))
def test_whole_columns_answer_as_key_by_key(keys: list[bytes], first: int) -> None:
    column = pa.array(keys, pa.binary()).slice(first)
    ids, records = tk.table_ids(column), tk.is_record(column)
    for key, table, record in zip(keys[first:], ids.tolist(), records.tolist(), strict=True):
        positive = key[:1] == b"t" and len(key) >= 9 and mc.decode_int(key, 1)[0] > 0
        assert table == (mc.decode_int(key, 1)[0] if positive else 0)
        assert record == (positive and key in tk.record_range(table))


batch_row = st.builds(
    lambda kind, op, key, start, ahead, gen, value, old, expire, flags: {
        "kind": kind,
        "op": op,
        "key": key,
        "start_ts": start,
        "commit_ts": start + 1 + ahead if kind in (2, 4) else 0,
        "generation": gen,
        "value": value,
        "old_value": old,
        "expire_ts": expire,
        "flags": flags & ~change.FLAG_SCANNED,
    },
    st.integers(1, 4), st.integers(0, 2), octets, st.integers(0, 2**62), st.integers(0, 2**61), u64,
    st.none() | octets, st.none() | octets, u64, u8,
)  # fmt: skip
KEY = BatchKey(tenant=Tenant(1, 2), store_id=3, incarnation=4, seq=5)


@calm
@given(st.lists(st.lists(batch_row, max_size=5), max_size=5), st.integers(2**62 + 2**61 + 1, 2**63 - 1))
def test_batch_files_round_trip(subscriptions: list[list[dict[str, Any]]], cut_ts: int) -> None:
    rows = pa.RecordBatch.from_pylist(
        [row for subscription in subscriptions for row in subscription], schema=change.ROWS
    )
    counts = [len(subscription) for subscription in subscriptions]
    region = dict.fromkeys(change.REGIONS.names, 0) | {"start_key": b"", "end_key": b""}
    marks = [region | {"row_offset": sum(counts[:i]), "row_count": n} for i, n in enumerate(counts)]
    regions = pa.RecordBatch.from_pylist(marks[::-1], schema=change.REGIONS)
    data = encode_batch_file(KEY, cut_ts=cut_ts, rows=rows, regions=regions, write_id="x")
    file = decode_batch_file(KEY, data)
    assert file.rows.equals(rows)
    assert file.regions.equals(regions)
    assert file.cut_ts == cut_ts


few = st.integers(0, 3)
committed_row = st.tuples(st.integers(-2, 3), u8, octets, few, few, st.none() | octets, st.none() | octets, u64, u8)
COMMITTED_KEY = CommittedKey(tenant=Tenant(1, 2), sorter="s", incarnation=1, seq=1)


def committed_table(rows: list[tuple[Any, ...]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(change.COMMITTED.names, r, strict=True)) for r in rows], change.COMMITTED)


@calm
@given(st.lists(st.lists(committed_row, max_size=12, unique_by=lambda r: (r[0], r[4], r[3], r[2])), max_size=3))
def test_committed_files_round_trip(flushes: list[list[tuple[Any, ...]]]) -> None:
    ordered = [sorted(rows, key=lambda r: (r[0], r[4], r[3], r[2])) for rows in flushes]
    data, segments = build_committed_file(COMMITTED_KEY, list(enumerate(map(committed_table, ordered))), "x")
    for task, rows in enumerate(ordered):
        rows_read = []
        for info in segments[task]:
            stored = data[info.offset : info.offset + info.length]
            table = decode_committed_segment("c", info.number, stored, crc=info.crc, rows=info.rows)
            rows_read += [tuple(row.values()) for row in table.to_pylist()]
            keys = sorted(row[2] for row in rows_read)
            assert (info.start_key, info.end_key) == (keys[0], keys[-1])
            assert (info.lo_ts, info.hi_ts) == (min(r[4] for r in rows_read), max(r[4] for r in rows_read))
        assert rows_read == rows


@calm
@given(st.lists(committed_row, min_size=2, max_size=6))
def test_rows_out_of_order_are_always_noticed(rows: list[tuple[Any, ...]]) -> None:
    order = [(r[0], r[4], r[3], r[2]) for r in rows]
    with contextlib.nullcontext() if all(a < b for a, b in pairwise(order)) else pytest.raises(InvalidInput):
        build_committed_file(COMMITTED_KEY, [(1, committed_table(rows))], "x")


def _small_file() -> bytes:
    writer = SegmentFileWriter({"a": 1})
    for i in range(3):
        writer.add("x", pa.table({"n": np.arange(50) * i, "s": pa.array([b"word %d" % (j % 7) for j in range(50)])}))
    return writer.finish()


SMALL = _small_file()
MARKS = (b"", b"\0", b"\xff", b"\0\0\0\0", b"TiStrSg\x01")


@calm
@given(st.lists(st.integers(0, len(SMALL) * 8 - 1), min_size=1, max_size=8, unique=True))
def test_flipped_bits_are_always_refused(flips: list[int]) -> None:
    data = bytearray(SMALL)
    for bit in flips:
        data[bit // 8] ^= 1 << bit % 8
    _refused(bytes(data))


@calm
@given(st.integers(0, len(SMALL)), st.integers(0, len(SMALL)), st.sampled_from(MARKS) | st.binary(max_size=20))
def test_replaced_stretches_are_always_refused(a: int, b: int, middle: bytes) -> None:
    data = SMALL[: min(a, b)] + middle + SMALL[max(a, b) :]
    if data != SMALL:
        _refused(data)


@calm
@given(st.binary(max_size=200))
def test_foreign_bytes_are_always_refused(data: bytes) -> None:
    _refused(data)
    _refused(SMALL[:8] + data + SMALL[-8:])


def _refused(data: bytes) -> None:
    with pytest.raises(CorruptObject) as e:
        _read_all(data)
    assert e.value.facts["object"] == "name"
    offset = e.value.facts["offset"]
    assert isinstance(offset, int)
    assert 0 <= offset <= len(data)


def _read_all(data: bytes) -> None:
    file = SegmentFile.open("name", data)
    for info in file.segments:
        file.read(info.number)


def _stream() -> bytes:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"n": pa.array([1, None, 3], pa.uint64()), "s": pa.array([b"a", b"", b"bcd"])})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    written: bytes = sink.getvalue().to_pybytes()
    return written


STREAM = _stream()


@calm
@given(st.lists(st.tuples(st.integers(0, len(STREAM) - 1), u8), min_size=1, max_size=6))
def test_a_lying_stream_is_refused_or_sound(changes: list[tuple[int, int]]) -> None:
    """No checksum is checked before this: whatever is accepted can be used to the last byte."""
    data = bytearray(STREAM)
    for at, value in changes:
        data[at] = value
    try:
        batch = read_batch(bytes(data))
    except ValueError:
        return
    assert all(len(column) == batch.num_rows for column in batch.to_pydict().values())
