"""Entries and write records of a log backup, against bytes that a real TiKV wrote."""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pusher.logbackup.core.entries import VALUES, read_values, read_versions, unpack
from pusher.logbackup.core.joining import change_rows, distinct, matching, missing, wanting
from pusher.logbackup.core.metadata import Compression, LogSlice
from tests.kit.log_backup_files import Entry, delete, entry_bytes, put, source_tag
from tistream.codec.memcomparable import encode_bytes
from tistream.errors import CorruptObject
from tistream.model.change import FLAG_NOT_A_CHANGE, FLAG_OLD_VALUE_UNKNOWN, Op, RowKind

TS_MAX = (1 << 64) - 1
#: user key 7480..., its commit_ts and the record, as an entry of the write column family
COMMITTED = bytes.fromhex(
    "230000007480000000000000ff725f728000000000ff00000a0000000000faf98157dcf87fffea"
    "1600000050938080bcb084aabf06760a80000100000002010064"
)
COMMITTED_SHA256 = "b6f3eb0afdde5e0fe0eb914be79ae309b867b2d3e26a4b1e25776de78723c245"
LOSSY_KEY = bytes.fromhex("7480000000000000ff8e5f728000000000ff0000030000000000faf9780ab7cc3ffffe")
LOSSY = bytes.fromhex("508280f09083a9fdc3067620800004000000010203040100030003000e0003da03140280000000000003da00538002")
INGESTED = bytes.fromhex("508480f0eeb9a9fdc306761200800001000000030800726f77203536303653808004")
OVERLAPPED = bytes.fromhex(
    "508280c0df86a9fdc30676228000010000000219006767676767676767676767676767676767676767676767676752460000000000000000"
)
LOCK, ROLLBACK = bytes.fromhex("4c8380f0badea8fdc3066c000000000000000001"), bytes.fromhex("52878080a2dea8fdc306")
PROTECTED = bytes.fromhex("52898090c1dea8fdc306760170")
A, B = b"t" + bytes(18), b"t" + bytes(17) + b"\x01"


def piece(entries: bytes, count: int, **more: Any) -> LogSlice:
    facts: dict[str, Any] = {
        "object": "v1/a.log", "offset": 3, "stored_bytes": len(entries), "compression": Compression.PLAIN,
        "entry_bytes": len(entries), "entries": count, "sha256": hashlib.sha256(entries).digest(), "cf": "write",
        "deletes": False, "min_ts": 1, "max_ts": TS_MAX, "is_meta": False, "table_id": 5,
    }  # fmt: skip
    return LogSlice(**(facts | more))


def versions(entries: list[Entry], after_ts: int = 0, upto_ts: int = TS_MAX) -> pa.RecordBatch:
    data = entry_bytes(entries)
    return read_versions(piece(data, len(entries)), data, after_ts, upto_ts)


def raw(stored_key: bytes, value: bytes) -> bytes:
    return len(stored_key).to_bytes(4, "little") + stored_key + len(value).to_bytes(4, "little") + value


def test_a_real_entry_is_read() -> None:
    log_piece = piece(COMMITTED, 1, sha256=bytes.fromhex(COMMITTED_SHA256), min_ts=467996279696261141)
    rows = read_versions(log_piece, unpack(log_piece, COMMITTED), 0, TS_MAX).to_pylist()
    assert rows == [
        {
            "key": bytes.fromhex("7480000000000000725f72800000000000000a"),
            "start_ts": 467996279696261139,
            "commit_ts": 467996279696261141,
            "op": Op.PUT,
            "value": bytes.fromhex("80000100000002010064"),
            "needs_value": False,
            "txn_source": 0,
        }
    ]


def test_real_records_of_every_kind() -> None:
    at = 470614500000000000
    stored = [encode_bytes(b"t" + bytes([n]) * 18) + (~(at + n) & TS_MAX).to_bytes(8, "big") for n in range(6)]
    records = [LOSSY, INGESTED, OVERLAPPED, LOCK, ROLLBACK, PROTECTED]
    data = b"".join(raw(key, value) for key, value in zip(stored, records, strict=True))
    data += raw(LOSSY_KEY, LOSSY)
    rows = read_versions(piece(data, 7), data, 0, TS_MAX).to_pylist()
    assert [(r["op"], r["txn_source"], r["needs_value"]) for r in rows] == [
        (Op.PUT, 256, False), (Op.PUT, 65536, False), (Op.PUT, 0, False), (Op.PUT, 256, False),
    ]  # fmt: skip
    assert rows[0]["value"] == rows[3]["value"] == LOSSY[12:44]
    assert rows[2]["value"] == OVERLAPPED[12:46]
    assert rows[2]["value"].endswith(b"g" * 25)
    assert rows[3]["key"].hex() == "74800000000000008e5f728000000000000003"


def test_the_window_is_open_below_and_closed_above() -> None:
    entries = [put(A, 1, ts, b"x") for ts in (10, 11, 20, 21)]
    assert versions(entries, 10, 20)["commit_ts"].to_pylist() == [11, 20]


def test_tags_end_at_an_unknown_one() -> None:
    rows = versions([put(A, 1, 10, b"x", b"Zv\x01y"), put(B, 1, 10, b"", b"l" + bytes(8) + b"\x05")])
    assert rows["value"].to_pylist() == [b"x", b""]


entry = st.tuples(st.binary(min_size=1, max_size=40), st.integers(1, TS_MAX), st.binary(max_size=300))


@given(st.lists(entry, min_size=1, max_size=20))
def test_values_come_back_as_they_were_written(entries: list[Entry]) -> None:
    data = entry_bytes(entries)
    rows = read_values(piece(data, len(entries), cf="default"), data).to_pylist()
    assert [(r["key"], r["start_ts"], r["value"]) for r in rows] == entries


def test_entries_cut_anywhere_are_refused() -> None:
    data = entry_bytes([put(A, 1, 10, b"x"), delete(B, 2, 20)])
    for end in range(1, len(data)):
        with pytest.raises(CorruptObject):
            read_versions(piece(data[:end], 2), data[:end], 0, TS_MAX)
    for count in (1, 3):
        with pytest.raises(CorruptObject, match="differs from the metadata"):
            read_versions(piece(data, count), data, 0, TS_MAX)


@pytest.mark.parametrize(
    "record",
    [b"", b"X\x01", b"P", b"P\x80", b"P\x01v", b"P\x01v\x05abcd", b"P\x01S\x80", b"P\x01F1234567", b"P\x01l12345678",
     b"P" + b"\xff" * 9 + b"\x02"],
)  # fmt: skip
def test_a_damaged_record_is_refused(record: bytes) -> None:
    with pytest.raises(CorruptObject, match="write record") as e:
        versions([put(A, 1, 9, b"fine"), (A, 10, record)])
    first = len(entry_bytes([put(A, 1, 9, b"fine")]))
    assert (e.value.facts["object"], e.value.facts["slice_offset"]) == ("v1/a.log", 3)
    assert e.value.facts["offset"] == first + 4 + len(encode_bytes(A)) + 8 + 4


def test_a_transaction_commits_behind_its_start() -> None:
    with pytest.raises(CorruptObject, match="before it starts"):
        versions([put(A, 11, 10, b"x")])
    assert versions([put(A, 10, 10, b"ingested")]).num_rows == 1


@pytest.mark.parametrize("change", [(8, 0xF6), (3, 1), (26, 0)])
def test_a_damaged_key_is_refused(change: tuple[int, int]) -> None:
    stored = bytearray(encode_bytes(b"abc" + bytes(15)) + bytes(8))
    stored[change[0]] = change[1]
    data = raw(bytes(stored), b"D\x01")
    if change == (3, 1):
        stored = bytearray(encode_bytes(b"abc") + bytes(8))
        stored[5] = 1
        data = raw(bytes(stored), b"D\x01")
    with pytest.raises(CorruptObject, match="invalid key encoding"):
        read_versions(piece(data, 1), data, 0, TS_MAX)


@pytest.mark.parametrize("stored", [b"", bytes(8), bytes(16), encode_bytes(b"a") + bytes(7)])
def test_a_key_of_an_impossible_size_is_refused(stored: bytes) -> None:
    data = raw(stored, b"D\x01")
    with pytest.raises(CorruptObject):
        read_versions(piece(data, 1), data, 0, TS_MAX)


def test_timestamps_stay_within_the_bounds_of_the_metadata() -> None:
    data = entry_bytes([put(A, 1, 10, b"x"), put(A, 1, 20, b"x")])
    for bounds in ({"min_ts": 11}, {"max_ts": 19}):
        with pytest.raises(CorruptObject, match="bounds"):
            read_versions(piece(data, 2, **bounds), data, 0, TS_MAX)


def test_a_slice_must_match_its_lengths_and_checksum() -> None:
    data = entry_bytes([put(A, 1, 10, b"x" * 200)])
    packed = zstandard.compress(data)
    good = piece(packed, 1, compression=Compression.ZSTD, entry_bytes=len(data), sha256=hashlib.sha256(data).digest())
    assert unpack(good, packed) == data
    for at in range(len(packed)):
        flipped = bytearray(packed)
        flipped[at] ^= 0x10
        with contextlib.suppress(CorruptObject):
            assert unpack(good, bytes(flipped)) == data  # a bit that decides nothing
    for stored in (packed[:-1], packed + b"x"):
        with pytest.raises(CorruptObject, match="bytes where"):
            unpack(good, stored)
    wrong = piece(data, 1, sha256=bytes(32))
    with pytest.raises(CorruptObject, match="checksum"):
        unpack(wrong, data)


RECORD = bytes.fromhex("7480000000000000055f728000000000000001")
INDEX = bytes.fromhex("7480000000000000055f698000000000000001")


def test_each_version_is_delivered_once_with_its_row() -> None:
    long, other = b"r" * 300, b"s" * 300
    first = versions([put(RECORD, 1, 10, None), put(RECORD, 11, 20, b"short"), delete(RECORD, 21, 30)])
    again = versions([put(RECORD, 11, 20, b"short"), put(RECORD, 1, 10, None, b"RF" + bytes(8))])
    puts = distinct([first, again])
    refs = wanting(puts)
    assert refs.to_pylist() == [{"key": RECORD, "start_ts": 1}]
    data = entry_bytes([(RECORD, 1, long), (RECORD, 2, other), (INDEX, 1, other)])
    values = matching(read_values(piece(data, 3, cf="default"), data), refs)
    assert missing(refs, VALUES.empty_table()).num_rows == 1
    assert missing(refs, values).num_rows == 0
    rows = sorted(change_rows(puts, pa.concat_tables([values, values])).to_pylist(), key=lambda r: int(r["commit_ts"]))
    assert [(r["start_ts"], r["commit_ts"], r["op"], r["value"]) for r in rows] == [
        (1, 10, Op.PUT, long), (11, 20, Op.PUT, b"short"), (21, 30, Op.DELETE, None),
    ]  # fmt: skip
    assert {(r["kind"], r["old_value"], r["flags"]) for r in rows} == {
        (RowKind.COMMITTED, None, FLAG_OLD_VALUE_UNKNOWN)
    }


def test_rows_come_in_the_order_of_the_files() -> None:
    commits = [10 + n * 37 % 50 for n in range(50)]
    sent = versions([put(RECORD, 1, ts, b"%d" % ts) for ts in commits])
    rows = change_rows(distinct([sent, sent]), VALUES.empty_table())
    assert rows["commit_ts"].to_pylist() == commits


def test_what_the_change_feed_never_sends_is_flagged_or_dropped() -> None:
    sources = [0, 1, 0xFF, 0x100, 0xFF00, 0x10000, 0x20000]
    entries = distinct([versions([put(k, 1, 10 + n, b"x", source_tag(s)) for n, s in enumerate(sources)])
                      for k in (RECORD, INDEX)])  # fmt: skip
    rows = change_rows(entries, VALUES.empty_table())
    hidden = {10 + n for n, s in enumerate(sources) if s & 0x1FF00}
    assert hidden == {13, 14, 15}
    for row in rows.to_pylist():
        assert (row["flags"] & FLAG_NOT_A_CHANGE > 0) == (row["commit_ts"] in hidden)
    by_key = {k: {r["commit_ts"] for r in rows.to_pylist() if r["key"] == k} for k in (RECORD, INDEX)}
    assert by_key == {RECORD: set(range(10, 17)), INDEX: set(range(10, 17)) - hidden}


def test_copies_that_differ_are_damage() -> None:
    with pytest.raises(CorruptObject, match="differ"):
        distinct([versions([put(RECORD, 1, 10, b"a")]), versions([put(RECORD, 1, 10, b"b")])])
    data = entry_bytes([(RECORD, 1, b"a" * 300), (RECORD, 1, b"b" * 300)])
    values = pa.Table.from_batches([read_values(piece(data, 2, cf="default"), data)])
    with pytest.raises(CorruptObject, match="differ"):
        change_rows(distinct([versions([put(RECORD, 1, 10, None)])]), values)
