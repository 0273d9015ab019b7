"""Finding the rows of refused changes, and taking them out of a stretch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from destinations.protocol import DestinationRefused, Stretch
from replicator.stretch import split_off
from tests.kit.entry_log import Entry, entry_rows

ENTRIES = [Entry(10, b"a", b"1"), Entry(20, b"b", b"2"), Entry(20, b"c", b"3"), Entry(30, b"a", b"4")]
STRETCH = Stretch(after=0, upto=40, rows=entry_rows(ENTRIES))


def refused(key: bytes, **facts: object) -> DestinationRefused:
    return DestinationRefused("no", key=key.hex(), **facts)


def values(stretch: Stretch) -> list[bytes]:
    stored: list[bytes] = stretch.rows["value"].to_pylist()
    return stored


def test_a_refusal_without_a_timestamp_is_of_the_newest_change() -> None:
    first, second = refused(b"a"), refused(b"c", commit_ts="20")
    rest, refusals = split_off(STRETCH, [first, second])
    assert values(rest) == [b"1", b"2"]
    assert [(why, row["value"].to_pylist()) for why, row in refusals] == [(second, [b"3"]), (first, [b"4"])]
    assert values(split_off(rest, [refused(b"a")])[0]) == [b"2"], "then it is of the one before"


def test_nothing_is_taken_out_unless_all_is_known() -> None:
    for wrong in (refused(b"z"), refused(b"a", commit_ts=11), DestinationRefused("everything")):
        assert split_off(STRETCH, [refused(b"b"), wrong]) == (STRETCH, [])


def test_halves_of_an_update_are_one_change() -> None:
    rest, refusals = split_off(STRETCH, [refused(b"b", commit_ts=20), refused(b"b", commit_ts=20)])
    assert (values(rest), len(refusals)) == ([b"1", b"3", b"4"], 1)


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from([b"a", b"b", b"c"])), unique=True), st.data())
def test_each_row_is_in_the_rest_or_found(places: list[tuple[int, bytes]], data: st.DataObject) -> None:
    stretch = Stretch(
        after=0, upto=9, rows=entry_rows([Entry(ts, key, b"%d" % ts + key) for ts, key in sorted(places)])
    )
    chosen = data.draw(st.lists(st.sampled_from(places), unique=True)) if places else []
    rest, refusals = split_off(stretch, [refused(key, commit_ts=ts) for ts, key in chosen])
    assert sorted(row["value"][0].as_py() for _, row in refusals) == sorted(b"%d" % ts + key for ts, key in chosen)
    expected = [b"%d" % ts + key for ts, key in sorted(places) if (ts, key) not in chosen]
    assert values(rest) == expected
