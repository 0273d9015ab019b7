"""Half-open ranges against a model: the set of keys over a tiny alphabet that they hold."""

from __future__ import annotations

from itertools import pairwise, product

import pytest

from tistream.keyrange import KeyRange, end_before, gaps, min_end, prefix_range

EDGES = [b"", b"a", b"aa", b"b", b"c"]
RANGES = [KeyRange(start, end) for start, end in product(EDGES, EDGES) if not end or start < end]
KEYS = [bytes(k) for n in range(4) for k in product(b"abc", repeat=n)]


def keys(r: KeyRange | None) -> set[bytes]:
    return {k for k in KEYS if r is not None and k in r}


def test_what_a_range_holds() -> None:
    assert keys(KeyRange()) == set(KEYS)
    assert keys(KeyRange(b"b")) == {k for k in KEYS if k >= b"b"}
    assert keys(KeyRange(b"", b"b")) == {k for k in KEYS if k < b"b"}
    assert keys(KeyRange(b"aa", b"b")) == {k for k in KEYS if k.startswith((b"aa", b"ab", b"ac"))}


@pytest.mark.parametrize(("start", "end"), [(b"a", b"a"), (b"b", b"a")])
def test_empty_ranges_cannot_be_made(start: bytes, end: bytes) -> None:
    with pytest.raises(ValueError, match="empty key range"):
        KeyRange(start, end)


def test_intersection_and_cover() -> None:
    for a, b in product(RANGES, RANGES):
        common = a.intersect(b)
        assert keys(common) == keys(a) & keys(b), (a, b)
        assert common == b.intersect(a)
        assert (common is None) == (not keys(a) & keys(b))
        assert a.covers(b) == (keys(b) <= keys(a) and (bool(b.end) or not a.end))


def test_gaps_are_what_is_left() -> None:
    for whole, a, b in product(RANGES, RANGES[::2], RANGES):
        left = gaps(whole, [b, a])
        keys_left = [keys(r) for r in left]
        assert set().union(*keys_left) == keys(whole) - keys(a) - keys(b), (whole, a, b)
        assert left == sorted(left)
        assert all(x.end and x.end < y.start for x, y in pairwise(left))
    assert gaps(KeyRange(b"a", b"c"), []) == [KeyRange(b"a", b"c")]
    assert gaps(KeyRange(), [KeyRange()]) == []
    assert gaps(KeyRange(), [KeyRange(b"a", b"b"), KeyRange(b"b", b"c")]) == [KeyRange(b"", b"a"), KeyRange(b"c")]


def test_ends_compare_with_empty_as_infinity() -> None:
    assert (min_end(b"a", b"b"), min_end(b"", b"b"), min_end(b"a", b""), min_end(b"", b"")) == (b"a", b"b", b"a", b"")
    assert [end_before(a, b) for a, b in [(b"a", b"b"), (b"a", b""), (b"b", b"a"), (b"", b"a"), (b"", b"")]] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert not end_before(b"a", b"a")


@pytest.mark.parametrize(
    ("prefix", "end"),
    [
        (b"a", b"b"),
        (b"ab", b"ac"),
        (b"a\xff", b"b"),
        (b"a\xff\xff", b"b"),
        (b"\xff", b""),
        (b"\xff\xff", b""),
        (b"", b""),
    ],
)
def test_prefix_ranges(prefix: bytes, end: bytes) -> None:
    key_range = prefix_range(prefix)
    assert key_range == KeyRange(prefix, end)
    assert prefix + b"\xff" * 9 in key_range


def test_how_a_range_is_shown() -> None:
    assert str(KeyRange(b"t\x80", b"")) == "[7480, +inf)"
    assert str(KeyRange(b"", b"n")) == "[-inf, 6e)"
