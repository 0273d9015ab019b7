"""Boundaries in region form and plain, and the ranges that a tenant follows."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tistream.codec.memcomparable import encode_bytes
from tistream.keyrange import KeyRange
from tistream.tikv.core.pd_messages import Region
from tistream.tikv.core.ranges import joined, whole_cluster
from tistream.tikv.core.regions import plain_key, plain_range, region_form

TABLE_62 = (
    "7480000000000000ff3e5f720400000000ff0000000601633430ff3338646232ff2d64ff3531632d3131ff65ff622d386337352dff"
    "ff3830653635303138ffff61396265000000ff00fb000000000000f9"
)
keys = st.binary(max_size=20)
#: near the codes of keys, where the interesting ones are
boundaries = st.one_of(
    st.binary(max_size=20),
    st.builds(lambda key, cut, more: encode_bytes(key)[:cut] + more, keys, st.integers(0, 27), st.binary(max_size=3)),
    st.builds(
        lambda group, marker, more: group + bytes([marker]) + more,
        st.binary(min_size=8, max_size=8),
        st.integers(0xF0, 0xFF),
        st.binary(max_size=10),
    ),
)


def test_a_real_boundary() -> None:
    prefix = bytes.fromhex("74800000000000003e5f72")
    assert plain_key(bytes.fromhex("7480000000000000ff3e5f720000000000fa")) == prefix
    assert region_form(prefix).hex() == "7480000000000000ff3e5f720000000000fa"
    assert plain_key(bytes.fromhex("7480000000000000ff4700000000000000f8")).hex() == "748000000000000047"


def test_infinity_stays() -> None:
    assert region_form(b"") == b""
    assert plain_range(Region(id=1, conf_ver=1, version=1, start=b"", end=b"")) == KeyRange()


@given(keys)
def test_both_ways(key: bytes) -> None:
    assert plain_key(encode_bytes(key)) == key


@given(boundaries, keys)
def test_a_key_is_on_the_same_side_in_both_forms(boundary: bytes, key: bytes) -> None:
    assert (key >= plain_key(boundary)) == (encode_bytes(key) >= boundary)


@given(boundaries)
def test_the_plain_boundary_itself(boundary: bytes) -> None:
    least = plain_key(boundary)
    assert encode_bytes(least) >= boundary
    if least:  # neither what sorts just before it, nor the longest of what begins as its shorter neighbour does
        assert encode_bytes(least[:-1]) < boundary or least[-1] != 0
        if least[-1]:
            assert encode_bytes(least[:-1] + bytes([least[-1] - 1]) + b"\xff" * 9) < boundary


def test_a_region_without_a_key() -> None:
    code = encode_bytes(b"abc")
    assert plain_range(Region(id=1, conf_ver=1, version=1, start=code[:-1] + b"\xf9", end=code)) is None


def test_what_a_tenant_follows() -> None:
    assert whole_cluster() == (KeyRange(b"m", b"n"), KeyRange(b"t", b"u"))


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ([KeyRange(b"c", b"d"), KeyRange(b"a", b"b")], [KeyRange(b"a", b"b"), KeyRange(b"c", b"d")]),
        ([KeyRange(b"b", b"c"), KeyRange(b"a", b"b")], [KeyRange(b"a", b"c")]),
        ([KeyRange(b"a", b""), KeyRange(b"b", b"c"), KeyRange(b"d", b"")], [KeyRange(b"a", b"")]),
        ([KeyRange(b"a", b"d"), KeyRange(b"b", b"c")], [KeyRange(b"a", b"d")]),
    ],
)
def test_ranges_are_joined_where_they_touch(parts: list[KeyRange], whole: list[KeyRange]) -> None:
    assert list(joined(parts)) == whole
