"""The batch file: its rules hold for the writer and for the reader."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tistream.codec.batch_file import decode_batch_file, decode_watermarks, encode_batch_file
from tistream.codec.segment_file import SegmentFile, SegmentFileWriter
from tistream.errors import CorruptObject, InvalidInput
from tistream.ids import Tenant
from tistream.model import change
from tistream.objectstore.layout import BatchKey

KEY = BatchKey(tenant=Tenant(7, 3), store_id=5, incarnation=2, seq=9)
CUT_TS = 77
ROW = {"kind": 1, "op": 1, "key": b"k", "start_ts": 10, "commit_ts": 0, "generation": 0, "value": b"v"}
ROW |= {"old_value": None, "expire_ts": 0, "flags": 0}
REGION = {
    "region_id": 1,
    "version": 1,
    "start_key": b"a",
    "end_key": b"",
    "subscription_open_ts": 5,
    "subscription_ready_ts": 6,
}
REGION |= {"checkpoint_ts": 4, "resolved_ts": 0, "row_offset": 0, "row_count": 0}


def rows(*overrides: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{**ROW, **o} for o in overrides], schema=change.ROWS)


def regions(*overrides: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{**REGION, **o} for o in overrides], schema=change.REGIONS)


def slices(*pairs: tuple[int, int]) -> pa.RecordBatch:
    return regions(*({"row_offset": offset, "row_count": count} for offset, count in pairs))


def encode(rows: pa.RecordBatch, regions: pa.RecordBatch) -> bytes:
    return encode_batch_file(KEY, cut_ts=CUT_TS, rows=rows, regions=regions, write_id="w")


def smuggle(rows: pa.RecordBatch, regions: pa.RecordBatch, **head: object) -> bytes:
    """A sound container that no honest pusher would write."""
    identity = {"file": "batch", "cluster": 7, "tenant": 3, "store": 5, "incarnation": 2, "seq": 9}
    writer = SegmentFileWriter({**identity, "cut_ts": CUT_TS, "write_id": "w", **head})
    writer.add("rows", rows)
    writer.add("regions", regions)
    return writer.finish()


def test_what_goes_in_comes_out() -> None:
    data = rows(
        {},
        {"kind": 2, "commit_ts": 12, "value": None},
        {"kind": 3, "op": 0, "value": None},
        {"kind": 4, "op": 2, "commit_ts": 77, "value": None, "old_value": b"", "flags": 1},
        {"kind": 4, "commit_ts": 10},  # written by an import
    )
    marks = slices((0, 3), (3, 2))
    file = decode_batch_file(KEY, encode(data, marks))
    assert (file.key, file.cut_ts, file.write_id) == (KEY, CUT_TS, "w")
    assert file.rows.equals(data)
    assert file.regions.equals(marks)
    assert encode(pa.Table.from_batches([data]), marks) == encode(data, marks) == smuggle(data, marks)


def test_an_idle_store_still_writes_watermarks() -> None:
    file = decode_batch_file(KEY, encode(rows(), regions({}, {"resolved_ts": 9})))
    assert (file.rows.num_rows, file.regions.num_rows) == (0, 2)
    assert decode_batch_file(KEY, encode(rows(), regions())).regions.num_rows == 0


@pytest.mark.parametrize(
    "other",
    [
        replace(KEY, tenant=Tenant(8, 3)),
        replace(KEY, tenant=Tenant(7, 4)),
        replace(KEY, store_id=6),
        replace(KEY, incarnation=3),
        replace(KEY, seq=10),
    ],
)
def test_a_file_under_a_foreign_key_is_refused(other: BatchKey) -> None:
    data = encode(rows(), regions())
    with pytest.raises(CorruptObject, match="another key") as e:
        decode_batch_file(other, data)
    footer_at = int.from_bytes(data[-16:-12], "little")
    assert e.value.facts["object"] == str(other)
    assert (e.value.facts["segment"], e.value.facts["offset"]) == ("footer", len(data) - 16 - footer_at)


@pytest.mark.parametrize(
    "head",
    [
        {"seq": "9"},
        {"seq": 9.0},
        {"store": True},
        {"file": "committed"},
        {"cut_ts": "77"},
        {"cut_ts": -1},
        {"cut_ts": 1 << 63},
        {"write_id": 5},
    ],
)
def test_a_head_of_other_types_is_refused(head: dict[str, object]) -> None:
    with pytest.raises(CorruptObject):
        decode_batch_file(KEY, smuggle(rows(), regions(), **head))


BROKEN = [
    (rows({"kind": 0}), slices((0, 1)), "unknown kind"),
    (rows({}, {"kind": 6}), slices((0, 2)), "row 1 has an unknown kind"),
    (rows({"op": 3}), slices((0, 1)), "unknown op"),
    (rows({"commit_ts": 5}), slices((0, 1)), "commit_ts"),
    (rows({"kind": 2}), slices((0, 1)), "commit_ts"),
    (rows({"kind": 4}), slices((0, 1)), "commit_ts"),
    (rows({"kind": 3, "commit_ts": 5}), slices((0, 1)), "commit_ts"),
    (rows({}, {"start_ts": 1 << 63}), slices((0, 2)), r"row 1 has a start_ts of 2\*\*63 or more"),
    (rows({"kind": 2, "commit_ts": 1 << 63}), slices((0, 1)), r"row 0 has a commit_ts of 2\*\*63 or more"),
    *(
        (rows(), regions({}, {name: 2**64 - 1, "subscription_ready_ts": 2**64 - 1}), f"region row 1 has a {name} of 2")
        for name in ("subscription_ready_ts", "subscription_open_ts")
    ),
    (rows(), regions({"checkpoint_ts": 1 << 63}), "region row 0 has a checkpoint_ts of 2"),
    (rows(), regions({"resolved_ts": 2**64 - 1}), "region row 0 has a resolved_ts of 2"),
    (rows({"kind": 2, "commit_ts": 10}), slices((0, 1)), "row 0 was committed before its start_ts"),
    (rows({}, {"kind": 4, "commit_ts": 9}), slices((0, 2)), "row 1 was committed before its start_ts"),
    (rows({"start_ts": 78}), slices((0, 1)), "row 0 has a start_ts above the file's cut_ts 77"),
    (rows({"kind": 2, "commit_ts": 78}), slices((0, 1)), "row 0 has a commit_ts above the file's cut_ts 77"),
    (rows(), regions({}, {"resolved_ts": 78}), "region row 1 has a resolved_ts above the file's cut_ts 77"),
    (
        rows(),
        regions({"subscription_ready_ts": 78}),
        "region row 0 has a subscription_ready_ts above the file's cut_ts 77",
    ),
    (rows(), regions({"end_key": b"a"}), "empty key range"),
    (rows(), regions({"start_key": b"b", "end_key": b"a"}), "empty key range"),
    (rows(), regions({"subscription_ready_ts": 4}), "ready before"),
    (rows({}), regions(), "cover 0 of 1"),
    (rows({}), slices((0, 0)), "cover 0 of 1"),
    (rows({}, {}, {}), slices((0, 1), (1, 1)), "cover 2 of 3"),
    (rows({}, {}, {}), slices((0, 1), (2, 1)), "gap"),
    (rows({}, {}, {}), slices((1, 2)), "gap"),
    (rows({}, {}, {}), slices((0, 2), (1, 2)), "overlap"),
    (rows({}, {}, {}), slices((0, 3), (0, 3)), "overlap"),
    (rows({}), slices((0, 2)), "outside"),
    (rows({}), slices((0, 1), (2, 0)), "outside"),
    (rows({}), slices((2**64 - 1, 2)), "outside"),
    (rows({}), slices((0, 2**64 - 1), (2**64 - 1, 2)), "outside"),
]


RAW = {"kind": 5, "key": b"r\0\0\1k", "start_ts": 10, "commit_ts": 10, "flags": 2}
RAW_REGION = {"start_key": b"r\0\0\1", "end_key": b"r\0\0\2", "row_count": 1}
BROKEN_RAW = [
    ({"commit_ts": 0}, "row 0 has a commit_ts"),
    ({"start_ts": 9}, "row 0 is a RawKV row with two timestamps"),
    ({"start_ts": 11, "flags": 6}, "row 0 was committed before its start_ts"),
    ({"op": 0}, "row 0 is a RawKV row without an operation"),
    ({"key": b"k"}, "row 0 is a RawKV row whose key has no keyspace"),
    ({"key": b"r\0\1"}, "row 0 is a RawKV row whose key has no keyspace"),
    ({"kind": 4, "flags": 4}, "row 0 has the flag of a RawKV scan"),
    ({"key": b"r\0\0\2k"}, "region row 0 has rows with keys outside of its range"),
]


@pytest.mark.parametrize(("wrong", "cause"), BROKEN_RAW)
def test_a_broken_row_of_rawkv_is_refused_on_both_sides(wrong: dict[str, Any], cause: str) -> None:
    data, marks = rows({**RAW, **wrong}), regions(RAW_REGION)
    with pytest.raises(InvalidInput, match=cause):
        encode(data, marks)
    with pytest.raises(CorruptObject, match=cause) as caught:
        decode_batch_file(KEY, smuggle(data, marks))
    assert caught.value.facts["object"] == str(KEY)


def test_rows_of_rawkv_go_in_and_come_out() -> None:
    data = rows(RAW, {**RAW, "op": 2, "value": None}, {**RAW, "start_ts": 0, "flags": 6, "expire_ts": 5})
    marks = regions({**RAW_REGION, "row_count": 3})
    assert decode_batch_file(KEY, encode(data, marks)).rows == data


OF_ROWS = {"unknown kind", "row 1 has an unknown kind", "unknown op", "commit_ts"} | {
    cause for _, _, cause in BROKEN if cause.startswith("row ")
}


@pytest.mark.parametrize(("data", "marks", "cause"), BROKEN)
def test_broken_rules_are_refused_on_both_sides(data: pa.RecordBatch, marks: pa.RecordBatch, cause: str) -> None:
    with pytest.raises(InvalidInput, match=cause):
        encode(data, marks)
    smuggled = smuggle(data, marks)
    with pytest.raises(CorruptObject, match=cause) as e:
        decode_batch_file(KEY, smuggled)
    assert e.value.facts["object"] == str(KEY)
    broken = SegmentFile.open(str(KEY), smuggled).segments[0 if cause in OF_ROWS else 1]
    assert (e.value.facts["segment"], e.value.facts["offset"]) == (broken.number, broken.offset)


@pytest.mark.parametrize("cut_ts", [-1, 1 << 63])
def test_a_cut_ts_that_is_no_tso_is_not_written(cut_ts: int) -> None:
    with pytest.raises(InvalidInput, match="is no TSO"):
        encode_batch_file(KEY, cut_ts=cut_ts, rows=rows(), regions=regions(), write_id="w")


def test_an_old_lock_holds_a_resolved_ts_below_its_checkpoint_ts() -> None:
    marks = regions({"checkpoint_ts": 90, "resolved_ts": 8})
    file = decode_batch_file(KEY, encode(rows(), marks))
    assert (file.regions.equals(marks), file.latest_ts) == (True, 90)
    assert decode_batch_file(KEY, encode(rows({}), slices((0, 1)))).latest_ts == CUT_TS
    late = regions({"subscription_open_ts": 95, "subscription_ready_ts": 0})
    assert decode_batch_file(KEY, encode(rows(), late)).latest_ts == 95


def test_slices_may_be_in_any_order() -> None:
    marks = slices((2, 1), (3, 0), (0, 2), (0, 0))
    assert decode_batch_file(KEY, encode(rows({}, {}, {}), marks)).regions.equals(marks)


def test_other_columns_and_nulls_are_refused_by_the_writer() -> None:
    with pytest.raises(InvalidInput, match="columns"):
        encode(regions(), regions())
    with pytest.raises(InvalidInput, match="columns"):
        encode(rows(), rows())
    with pytest.raises(InvalidInput, match="nulls"):
        encode(rows({"start_ts": None}), slices((0, 1)))


def test_other_segments_are_refused() -> None:
    sound = encode(rows(), regions())
    head = SegmentFile.open("x", sound).head
    writer = SegmentFileWriter(head)
    writer.add("rows", rows())
    with pytest.raises(CorruptObject, match="segments"):
        decode_batch_file(KEY, writer.finish())
    writer = SegmentFileWriter(head)
    writer.add("rows", rows())
    writer.add("regions", rows())
    with pytest.raises(CorruptObject, match="unexpected columns"):
        decode_batch_file(KEY, writer.finish())


def test_promises_are_read_from_the_end_of_a_file() -> None:
    data = encode(rows(*({"value": bytes([n]) * 100} for n in range(200))), slices((0, 200)))
    whole = decode_batch_file(KEY, data)
    file = SegmentFile.open(str(KEY), data)
    needed = len(data) - file.segments[1].offset
    for length in range(len(data) + 1):
        if 16 <= length < needed:
            assert decode_watermarks(KEY, data[-length:], len(data)) is None
        elif length >= needed:
            promises = decode_watermarks(KEY, data[-length:], len(data))
            assert promises is not None
            assert (promises.cut_ts, promises.regions.equals(whole.regions)) == (CUT_TS, True)


@pytest.mark.parametrize("other", [replace(KEY, seq=10), replace(KEY, incarnation=1)])
def test_promises_under_a_foreign_key_are_refused(other: BatchKey) -> None:
    data = encode(rows({}), slices((0, 1)))
    with pytest.raises(CorruptObject, match="another key"):
        decode_watermarks(other, data, len(data))


@pytest.mark.parametrize(
    ("marks", "cause"),
    [(slices((0, 2)), "outside of the 1 rows"), (regions({"resolved_ts": 78, "row_count": 1}), "above the file's cut")],
)
def test_promises_that_break_a_rule_are_refused(marks: pa.RecordBatch, cause: str) -> None:
    data = smuggle(rows({}), marks)
    with pytest.raises(CorruptObject, match=cause):
        decode_watermarks(KEY, data, len(data))


def test_damaged_promises_are_refused() -> None:
    data = bytearray(encode(rows({}), slices((0, 1))))
    for at in range(SegmentFile.open(str(KEY), bytes(data)).segments[1].offset, len(data)):
        data[at] ^= 1
        with pytest.raises(CorruptObject):
            decode_watermarks(KEY, bytes(data), len(data))
        data[at] ^= 1
