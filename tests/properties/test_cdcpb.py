"""The reader of the change feed's messages: what an independent writer wrote, real bytes, and hostile ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from pusher.core.cdcpb import RegionError, RegionErrorKind
from tests.kit.change_data import ChangeDataEvent, read_change_data
from tistream.errors import CorruptObject
from tistream.model.change import Op, RowKind

COMMIT_PUT = (
    "0a42081c38011a3c0a3a088880b092f69bfdc306108a80b092f69bfdc306180220012a1b"
    "6d4e657874476c6f62ff616c494400000000fb00000000000000733203333134"
)
PREWRITE_PUT = (
    "0a3d081c38011a370a35088880b092f69bfdc306180120012a1b"
    "6d4e657874476c6f62ff616c494400000000fb000000000000007332033331343a03333132"
)
GLOBAL_ID = b"mNextGlob\xffalID\0\0\0\0\xfb\0\0\0\0\0\0\0s"

U64 = st.integers(0, 2**64 - 1)
Field = tuple[int, int | bytes]


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def message(parts: Sequence[Field]) -> bytes:
    """Fields as protobuf has them; numbers as varints, bytes with their length."""
    out = b""
    for number, value in parts:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            out += varint(number << 3 | 2) + varint(len(value)) + value
    return out


#: fields that no version has yet, of every wire type
strange = st.lists(
    st.one_of(
        st.builds(lambda v: message([(99, v)]), st.one_of(U64, st.binary(max_size=9))),
        st.builds(lambda v: varint(98 << 3 | 1) + v, st.binary(min_size=8, max_size=8)),
        st.builds(lambda v: varint(97 << 3 | 5) + v, st.binary(min_size=4, max_size=4)),
    ),
    max_size=2,
)


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from([kind for kind in RowKind if kind is not RowKind.RAW]))  # stores send none
    decided = kind in (RowKind.COMMIT, RowKind.COMMITTED)
    return {
        "kind": int(kind),
        "op": 0 if kind is RowKind.ROLLBACK else int(draw(st.sampled_from([Op.PUT, Op.DELETE]))),
        "key": draw(st.binary(min_size=1, max_size=40)),
        "start_ts": draw(U64),
        "commit_ts": draw(st.integers(1, 2**64 - 1)) if decided else 0,
        "generation": draw(st.sampled_from([0, 0, 3])),
        "value": draw(st.binary(max_size=300)),
        "old_value": draw(st.binary(max_size=10)),
        "expire_ts": draw(st.sampled_from([0, 1_700_000_000])),
    }


def written(draw: st.DrawFn, row: dict[str, Any]) -> bytes:
    """A row in any order of its fields, zeros said or left out, with fields that nobody knows."""
    numbers = {"start_ts": 1, "commit_ts": 2, "kind": 3, "op": 4, "key": 5, "value": 6, "old_value": 7}
    numbers |= {"expire_ts": 8, "generation": 10}
    parts = [(numbers[name], value) for name, value in row.items() if value or draw(st.booleans())]
    pieces = [message([p]) for p in [*parts, (9, draw(U64))]] + draw(strange)
    return b"".join(draw(st.permutations(pieces)))


def meant(row: dict[str, Any]) -> dict[str, Any]:
    """The row as change.ROWS has it."""
    value: bytes | None = row["value"]
    if row["op"] != Op.PUT or (row["kind"] == RowKind.COMMIT and not value):
        value = None
    return {**row, "value": value, "old_value": row["old_value"] or None, "flags": 0}


@st.composite
def events(draw: st.DrawFn) -> tuple[bytes, list[dict[str, Any]], bool]:
    """Entries with lock-only records in between, the rows meant, and whether the opening scan ends there."""
    said = draw(st.lists(rows(), max_size=5))
    initialized = draw(st.booleans())
    entries = []
    for row in said:
        entries += [message([(1, b"")])] * draw(st.integers(0, 1)) + [message([(1, written(draw, row))])]
    entries += [message([(1, message([(3, 5)]))])] * initialized + draw(strange)
    return b"".join(entries), [meant(row) for row in said], initialized


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(U64, U64, events(), strange), max_size=3))
def test_what_was_written_is_read(
    said: list[tuple[int, int, tuple[bytes, list[dict[str, Any]], bool], list[bytes]]],
) -> None:
    data = b""
    for region, request, (entries, _, _), other in said:
        half = message([(7, request), (3, entries), (1, region)]) + b"".join(other)
        data += message([(1, half)])
    read = read_change_data(data)
    assert read.resolved is None
    for event, (region, request, (_, meant_rows, initialized), _) in zip(read.events, said, strict=True):
        assert (event.region_id, event.request_id, event.initialized) == (region, request, initialized)
        assert event.rows is not None
        event.rows.validate(full=True)
        assert event.rows.to_pylist() == meant_rows


@settings(deadline=None)
@given(regions=st.lists(U64, max_size=9), ts=U64, request=U64, packed=st.integers(0, 9))
def test_regions_of_a_resolved_ts_come_packed_or_single(regions: list[int], ts: int, request: int, packed: int) -> None:
    first: list[Field] = [(1, b"".join(varint(r) for r in regions[:packed]))] if packed else []
    rest: list[Field] = [(1, r) for r in regions[packed:]]
    read = read_change_data(message([(2, message([*first, *rest, (2, ts), (3, request)]))])).resolved
    assert read is not None
    assert (read.regions.tolist(), read.ts, read.request_id) == (regions, ts, request)


def outcome(data: bytes) -> ChangeDataEvent | None:
    """None when the bytes are refused; any other error fails the test."""
    try:
        return read_change_data(data)
    except CorruptObject:
        return None


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.sampled_from([0x0A, 0x12]))
def test_any_bytes_are_an_event_or_damage(data: bytes, tag: int) -> None:
    for bytes_ in (data, bytes([tag]) + varint(len(data)) + data, message([(1, message([(3, message([(1, data)]))]))])):
        read = outcome(bytes_)
        for event in read.events if read else ():
            if event.rows is not None:
                event.rows.validate(full=True)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_message_that_was_changed_is_an_event_or_damage(data: st.DataObject) -> None:
    good = bytearray.fromhex(data.draw(st.sampled_from([COMMIT_PUT, PREWRITE_PUT])))
    good[data.draw(st.integers(0, len(good) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    outcome(bytes(good))
    outcome(bytes(good[: data.draw(st.integers(0, len(good)))]))


@pytest.mark.parametrize("name", [COMMIT_PUT, PREWRITE_PUT])
def test_a_message_that_is_cut_off_is_refused(name: str) -> None:
    whole = bytes.fromhex(name)
    assert all(outcome(whole[:size]) is None for size in range(1, len(whole)))


def test_real_rows() -> None:
    (event,) = read_change_data(bytes.fromhex(COMMIT_PUT)).events
    assert (event.region_id, event.request_id, event.initialized) == (28, 1, False)
    assert event.rows is not None
    (row,) = event.rows.to_pylist()
    assert (row["kind"], row["op"], row["key"], row["value"]) == (RowKind.COMMIT, Op.PUT, GLOBAL_ID, b"314")
    assert (row["start_ts"], row["commit_ts"]) == (470613926347538440, 470613926347538442)
    (event,) = read_change_data(bytes.fromhex(PREWRITE_PUT)).events
    assert event.rows is not None
    (row,) = event.rows.to_pylist()
    assert (row["kind"], row["value"], row["old_value"], row["commit_ts"]) == (RowKind.PREWRITE, b"314", b"312", 0)


def test_real_signs() -> None:
    (lock_only,) = read_change_data(bytes.fromhex("0a0b08ec0438021a040a000a00")).events
    assert lock_only.rows is not None
    assert (lock_only.rows.num_rows, lock_only.initialized) == (0, False)
    (ready,) = read_change_data(bytes.fromhex("0a0a080638021a040a021805")).events
    assert ready.initialized
    unpacked = read_change_data(bytes.fromhex("1211081c08ec051085809082ee9cfdc3061802")).resolved
    assert unpacked is not None
    assert (unpacked.regions.tolist(), unpacked.request_id) == ([28, 748], 2)


@pytest.mark.parametrize(
    ("hex_", "error"),
    [
        ("0a1308f00438022a0c0a0a08f004120508f1041001", RegionError(kind=RegionErrorKind.NOT_LEADER, leader_store_id=1)),
        ("0a0a081c38022a040a02081c", RegionError(kind=RegionErrorKind.NOT_LEADER)),
        ("0a0a080638022a0412020806", RegionError(kind=RegionErrorKind.REGION_NOT_FOUND)),
        ("0a08080638022a021a00", RegionError(kind=RegionErrorKind.EPOCH_NOT_MATCH)),
        ("0a0c08bc0438022a05220308bc04", RegionError(kind=RegionErrorKind.DUPLICATE_REQUEST)),
        ("0a0a080638022a044a020806", RegionError(kind=RegionErrorKind.OTHER)),
    ],
)
def test_errors_of_a_registration(hex_: str, error: RegionError) -> None:
    (event,) = read_change_data(bytes.fromhex(hex_)).events
    assert event.error == error


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ([(3, 6), (5, b"k"), (1, 1)], "kind"),
        ([(3, 1), (4, 3), (5, b"k")], "op"),
        ([(3, 1), (5, b"k")], "op"),
        ([(3, 2), (4, 1), (5, b"k")], "commit_ts"),
        ([(3, 1), (4, 1), (2, 5), (5, b"k")], "commit_ts"),
        ([(3, 1), (4, 1)], "key"),
        ([(3, b"\x01"), (4, 1), (5, b"k")], "damaged"),
        ([(3, 1), (4, 1), (5, 7)], "damaged"),
    ],
)
def test_a_row_that_no_store_sends_is_refused(row: list[Field], why: str) -> None:
    with pytest.raises(CorruptObject, match=why):
        read_change_data(message([(1, message([(3, message([(1, message(row))]))]))]))
