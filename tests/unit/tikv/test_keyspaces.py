"""Keys of a keyspace on the wire and inside: boundaries, regions, rows."""

from __future__ import annotations

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from pusher.tikv.core.requests import Header, Register, encode_request
from tistream.codec.memcomparable import encode_bytes
from tistream.errors import CorruptObject
from tistream.keyrange import KeyRange
from tistream.model import change
from tistream.model.change import Op, RowKind
from tistream.tikv.core.keyspaces import WHOLE, KeyspaceKeys
from tistream.tikv.core.pd_messages import Region
from tistream.tikv.core.regions import plain_key, plain_range, region_form

ONE = KeyspaceKeys(4242)
PREFIX = bytes.fromhex("78001092")
keys = st.binary(max_size=12)


def region(start: bytes, end: bytes) -> Region:
    return Region(id=7, conf_ver=1, version=3, start=region_form(start), end=region_form(end), leader_store_id=1)


def rows(*sent: bytes) -> pa.RecordBatch:
    row = {"kind": RowKind.PREWRITE, "op": Op.PUT, "start_ts": 5, "value": b"v"}
    whole = [
        {f.name: row.get(f.name, None if f.nullable else b"" if pa.types.is_binary(f.type) else 0) for f in change.ROWS}
        for _ in sent
    ]
    return pa.RecordBatch.from_pylist(
        [{**r, "key": key} for r, key in zip(whole, sent, strict=True)], schema=change.ROWS
    )


def test_prefix_and_boundaries_of_a_row() -> None:
    """The bytes that a client of TiKV sends for row 10 of table 114 in keyspace 4242."""
    assert ONE.prefix == PREFIX
    row = bytes.fromhex("7480000000000000725f72800000000000000a")
    on_wire = bytes.fromhex("7800109274800000ff00000000725f7280ff0000000000000a00fe")
    assert ONE.outer_boundary(region_form(row), is_end=False) == on_wire
    assert ONE.outer_boundary(region_form(row), is_end=True) == on_wire
    request = encode_request(
        Header(cluster_id=1, keyspace=ONE),
        Register(request_id=1, region_id=2, conf_ver=1, version=1, range=KeyRange(row), checkpoint_ts=9),
    )
    assert on_wire in request
    assert encode_bytes(bytes.fromhex("78001093")) in request  # the range ends where the keyspace does


def test_a_range_without_an_end_ends_with_the_keyspace() -> None:
    assert ONE.outer_range(KeyRange()) == KeyRange(PREFIX, bytes.fromhex("78001093"))
    assert KeyspaceKeys(0xFFFFFF).outer_range(KeyRange(b"t")) == KeyRange(b"x\xff\xff\xfft", b"y")
    assert KeyspaceKeys(0xFF).outer_range(KeyRange()).end == bytes.fromhex("780001")  # no key lies up to 78000100


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ((b"", b""), KeyRange()),
        ((b"a", PREFIX + b"k"), KeyRange(b"", b"k")),
        ((PREFIX + b"k", b"x\0\x10\x93"), KeyRange(b"k")),
        ((PREFIX + b"k", b"z"), KeyRange(b"k")),
        ((PREFIX, PREFIX + b"m"), KeyRange(b"", b"m")),
        ((b"", PREFIX), None),
        ((b"x\0\x10\x93", b""), None),
        ((b"m", b"n"), None),
    ],
)
def test_the_part_of_a_region(outer: tuple[bytes, bytes], inner: KeyRange | None) -> None:
    part = ONE.inner_region(region(*outer))
    assert (None if part is None else plain_range(part)) == inner
    if part is not None:
        assert (part.id, part.version, part.leader_store_id) == (7, 3, 1)


@given(key=keys, bounds=st.tuples(keys, keys).filter(lambda b: not b[1] or b[0] < b[1]))
def test_a_key_is_in_a_region_inside_exactly_when_it_is_outside(key: bytes, bounds: tuple[bytes, bytes]) -> None:
    for start, end in (bounds, (PREFIX + bounds[0], PREFIX + bounds[1]), (bounds[0], PREFIX + bounds[1])):
        if end and end <= start:
            continue
        outer = region(start, end)
        inside = ONE.inner_region(outer)
        whole = plain_range(outer)
        assert whole is not None
        assert (inside is not None and key in (plain_range(inside) or ())) == (PREFIX + key in whole)


@given(start=keys, end=keys)
def test_boundaries_get_the_prefix_on_the_wire(start: bytes, end: bytes) -> None:
    outer = [ONE.outer_boundary(region_form(start), is_end=False), ONE.outer_boundary(region_form(end), is_end=True)]
    assert plain_key(outer[0]) == PREFIX + start
    assert plain_key(outer[1]) == (PREFIX + end if end else bytes.fromhex("78001093"))


def test_rows_lose_the_prefix_and_nothing_else() -> None:
    given_rows, inner = rows(PREFIX + b"a", PREFIX, PREFIX + b"bc"), rows(b"a", b"", b"bc")
    assert ONE.inner_rows(given_rows).equals(inner)
    assert ONE.inner_rows(given_rows.slice(1, 2)).equals(inner.slice(1, 2))
    assert ONE.inner_rows(rows()).equals(rows())
    assert WHOLE.inner_rows(given_rows) is given_rows


def test_a_row_of_another_keyspace_is_damage() -> None:
    with pytest.raises(CorruptObject, match="another keyspace") as e:
        ONE.inner_rows(rows(PREFIX + b"a", b"x\0\x10\x93a"))
    assert e.value.facts["key"] == b"x\0\x10\x93a"
    with pytest.raises(CorruptObject):
        ONE.inner_key(b"t")


def test_a_cluster_without_keyspaces_is_left_as_it_is() -> None:
    assert WHOLE.prefix == b""
    assert WHOLE.outer_range(KeyRange(b"t", b"u")) == KeyRange(b"t", b"u")
    assert WHOLE.outer_boundary(b"anything", is_end=True) == b"anything"
    assert WHOLE.inner_region(region(b"", b"")) == region(b"", b"")
    assert WHOLE.inner_key(b"t") == b"t"
