"""Cutting a file down to a range: zero copy where it can be, exact where it must be."""

from __future__ import annotations

import pyarrow as pa

from dispatcher.core.router import directory, route
from tests.kit.batch_files import Subscription, subscriptions_of
from tistream.keyrange import KeyRange

SUBSCRIPTIONS: list[Subscription] = [
    (b"a", b"c", [b"b2", b"a1"]),
    (b"c", b"e", []),
    (b"e", b"g", [b"f", b"e", b"f"]),
    (b"g", b"", [b"z", b"g", b"\xff\xff"]),
]


def shown(requested: KeyRange, order: list[int] | None = None) -> tuple[list[bytes], list[tuple[int, int, int]]]:
    routed = route(directory(*subscriptions_of(SUBSCRIPTIONS, order)), requested)
    regions = routed.regions.to_pylist()
    assert routed.rows.schema == subscriptions_of(SUBSCRIPTIONS)[0].schema
    return routed.rows["key"].to_pylist(), [(r["region_id"], r["row_offset"], r["row_count"]) for r in regions]


def test_the_whole_range_gives_the_file_itself() -> None:
    file = directory(*subscriptions_of(SUBSCRIPTIONS))
    routed = route(file, KeyRange())
    assert routed.rows is file.rows
    assert routed.regions is file.regions


def test_regions_inside_keep_arrival_order_and_empty_ones_count() -> None:
    assert shown(KeyRange(b"a", b"g")) == (
        [b"b2", b"a1", b"f", b"e", b"f"],
        [(1, 0, 2), (2, 2, 0), (3, 2, 3)],
    )


def test_touching_slices_share_the_files_memory_if_they_are_half_of_it() -> None:
    file = directory(*subscriptions_of(SUBSCRIPTIONS))
    rows = route(file, KeyRange(b"c")).rows
    assert rows["key"].buffers()[2].address == file.rows["key"].buffers()[2].address
    assert rows["key"].offset == 2
    rows = route(file, KeyRange(b"c", b"g")).rows
    assert rows["key"].buffers()[2].address != file.rows["key"].buffers()[2].address, "else it would hold all of it"


def test_a_straddling_region_is_cut_but_keeps_its_keys() -> None:
    keys, regions = shown(KeyRange(b"a2", b"f"))
    assert keys == [b"b2", b"e"]
    assert regions == [(1, 0, 1), (2, 1, 0), (3, 1, 1)]
    routed = route(directory(*subscriptions_of(SUBSCRIPTIONS)), KeyRange(b"a2", b"f"))
    assert routed.regions["start_key"].to_pylist()[0] == b"a"
    assert routed.regions["end_key"].to_pylist()[-1] == b"g"
    assert routed.regions["resolved_ts"].to_pylist() == [21, 22, 23]


def test_a_range_without_regions_is_empty_but_well_formed() -> None:
    assert shown(KeyRange(b"", b"a")) == ([], [])


def test_an_unbounded_region_against_bounded_and_unbounded_ranges() -> None:
    assert shown(KeyRange(b"h", b"")) == ([b"z", b"\xff\xff"], [(4, 0, 2)])
    assert shown(KeyRange(b"h", b"zz")) == ([b"z"], [(4, 0, 1)])


def test_keys_compare_as_unsigned_bytes_and_longer_is_greater() -> None:
    file = directory(*subscriptions_of([(b"", b"", [b"\x7f", b"\x80", b"\x80\x00", b"\x80\x00\x01", b"\x81"])]))
    assert route(file, KeyRange(b"\x80\x00", b"\x81")).rows["key"].to_pylist() == [b"\x80\x00", b"\x80\x00\x01"]


def test_two_subscriptions_of_one_region_are_both_served() -> None:
    file = directory(*subscriptions_of([(b"a", b"m", [b"b"]), (b"m", b"z", [b"n"]), (b"a", b"m", [b"c"])]))
    routed = route(file, KeyRange(b"a", b"m"))
    assert routed.rows["key"].to_pylist() == [b"b", b"c"]
    assert routed.regions["row_offset"].to_pylist() == [0, 1]


def test_regions_may_stand_in_any_order() -> None:
    assert shown(KeyRange(b"a2", b""), [3, 1, 0, 2]) == (
        [b"b2", b"f", b"e", b"f", b"z", b"g", b"\xff\xff"],
        [(4, 4, 3), (2, 1, 0), (1, 0, 1), (3, 1, 3)],
    )


def test_a_file_without_regions() -> None:
    routed = route(directory(*subscriptions_of([])), KeyRange(b"a", b"b"))
    assert (routed.rows.num_rows, routed.regions.num_rows) == (0, 0)
    assert isinstance(routed.rows, pa.RecordBatch)
