"""Two streams of pairs that differ in known places, cut into tables at random."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from random import Random

import pyarrow as pa
import pytest

from backup.core.compare import FOUND, Comparison, Fault, compare
from backup.core.pairs import PAIRS
from tistream.errors import CorruptObject

NOW_S = 1_900_000_000
Stored = Mapping[bytes, tuple[bytes, int | None]]
SOURCE: Stored = {b"k%05d" % n: (b"v%d" % (n % 7), NOW_S + 100 + n if n % 3 == 0 else 0) for n in range(3000)}


def stream(pairs: Stored, dice: Random, schema: pa.Schema) -> Iterator[pa.Table]:
    rows, at = sorted(pairs.items()), 0
    while at < len(rows):
        part = rows[at : at + dice.randrange(1, 700)]
        at += len(part)
        columns = [[k for k, _ in part], [v for _, (v, _) in part], [e for _, (_, e) in part]]
        yield pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def found(destination: Stored, seed: int = 1, source: Stored = SOURCE) -> Comparison:
    dice = Random(seed)
    return compare(stream(source, dice, PAIRS), stream(destination, dice, FOUND), now_s=lambda: NOW_S)


@pytest.mark.parametrize("seed", range(4))
def test_one_changed_one_missing_and_one_extra_key_are_found(seed: int) -> None:
    there = dict(SOURCE)
    there[b"k00700"] = (b"other", SOURCE[b"k00700"][1])
    del there[b"k01200"]
    there[b"k02000x"] = (b"new", None)
    comparison = found(there, seed)
    assert comparison.faults == {Fault.CHANGED: 1, Fault.MISSING: 1, Fault.EXTRA: 1, Fault.EXPIRY: 0}
    assert [(d.key, d.fault) for d in comparison.differences] == [
        (b"k00700", Fault.CHANGED),
        (b"k01200", Fault.MISSING),
        (b"k02000x", Fault.EXTRA),
    ]
    assert comparison.differences[0].destination == sha256(b"other").hexdigest()[:16]
    assert comparison.differences[0].source == sha256(SOURCE[b"k00700"][0]).hexdigest()[:16]
    assert comparison.differences[1].destination is None
    assert comparison.differences[2].source is None
    assert not comparison.equal
    assert 0 < comparison.differing_ranges <= 3 < comparison.ranges
    assert (comparison.source.pairs, comparison.destination.pairs) == (3000, 3000)


def test_expiries_agree_within_the_tolerance_or_where_they_are_not_known() -> None:
    near = {key: (value, ends + 2 if ends else 0) for key, (value, ends) in SOURCE.items() if ends is not None}
    assert found(near).equal
    assert found({key: (value, None) for key, (value, _) in SOURCE.items()}).equal
    near[b"k00003"] = (SOURCE[b"k00003"][0], NOW_S + 106)
    near[b"k00006"] = (SOURCE[b"k00006"][0], 0)  # lasts for ever
    assert [d.key for d in found(near).differences] == [b"k00003", b"k00006"]
    assert found(near).faults[Fault.EXPIRY] == 2


def test_a_key_that_is_about_to_expire_may_be_absent() -> None:
    ending = {**SOURCE, b"k00001a": (b"x", NOW_S + 2), b"k00001b": (b"x", NOW_S + 3)}
    comparison = found(SOURCE, source=ending)
    assert (comparison.about_to_expire, comparison.faults[Fault.MISSING]) == (1, 1)
    assert [d.key for d in comparison.differences] == [b"k00001b"]


def test_all_differing_keys_are_counted_and_some_are_named() -> None:
    comparison = found({})
    assert comparison.faults[Fault.MISSING] == 3000
    assert [d.key for d in comparison.differences] == [b"k%05d" % n for n in range(10)]


def test_keys_that_do_not_ascend_are_refused() -> None:
    table = pa.table([pa.array([b"b", b"a"]), pa.array([b"", b""]), pa.array([0, 0], pa.uint64())], schema=PAIRS)
    with pytest.raises(CorruptObject, match="the keys of the source do not ascend"):
        compare(iter([table]), iter([]), now_s=lambda: NOW_S)
