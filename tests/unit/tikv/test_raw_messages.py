"""RawKV messages: batches as protobuf reads them, cuts of batches, times to live, keys of an API version's space."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tistream.keyrange import KeyRange
from tistream.tikv.core import raw_messages as m
from tistream.tikv.core import wire
from tistream.tikv.core.api_versions import Api
from tistream.tikv.core.pd_messages import Region
from tistream.tikv.core.raw_messages import Columns, RawRefused, RawSpace

RECORDED = "0a1508021204080110261a0408031001a8010280029221120c1206720010926b311a027631320100"
PAIRS = st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 2**63)), max_size=9)
SIZES = st.lists(st.integers(0, 30), max_size=40)


def column(values: list[bytes]) -> pa.BinaryArray:
    return pa.array(values, pa.binary())


def test_a_batch_is_that_of_another_client() -> None:
    """A request of client-go; ours has no times to live when all are 0, and a limit of time beside."""
    region = Region(id=2, conf_ver=1, version=38, start=b"", end=b"", leader_store_id=1, leader_peer_id=3)
    space = RawSpace(Api.V2, 4242)
    columns = Columns.of(column([b"k1"]), column([b"v1"]))
    ours = wire.RawBatchPutRequest.FromString(
        space.head(region, 1.5) + m.put_body(space, columns, np.arange(1), np.zeros(1, np.uint64))
    )
    theirs = wire.RawBatchPutRequest.FromString(bytes.fromhex(RECORDED))
    assert ours.context.max_execution_duration_ms == 1500
    ours.context.max_execution_duration_ms = 0
    del theirs.ttls[:]
    assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True)


@given(PAIRS, st.integers(0, 3))
def test_batches_are_read_by_protobuf(pairs: list[tuple[bytes, bytes, int]], skipped: int) -> None:
    keys, values, ttls = [k for k, _, _ in pairs], [v for _, v, _ in pairs], [ttl for _, _, ttl in pairs]
    space, rows = RawSpace(Api.V2, 5), np.arange(min(skipped, len(pairs)), len(pairs))
    body = m.put_body(space, Columns.of(column(keys), column(values)), rows, np.array(ttls, np.uint64)[rows])
    read = wire.RawBatchPutRequest.FromString(body)
    chosen = [pairs[row] for row in rows]
    assert [(pair.key, pair.value) for pair in read.pairs] == [(b"r\0\0\5" + k, v) for k, v, _ in chosen]
    assert list(read.ttls) == ([ttl for _, _, ttl in chosen] if any(ttl for _, _, ttl in chosen) else [])
    request = wire.RawDeleteRequest.FromString(m.delete_body(space, Columns.of(column(keys), None), rows))
    assert list(request.key) == [b"r\0\0\5" + k for k, _, _ in chosen]


@given(st.lists(st.binary(max_size=3), max_size=6))
def test_rising_keys_are_known(keys: list[bytes]) -> None:
    assert Columns.of(column(keys), None).is_rising is all(a < b for a, b in pairwise(keys))


@given(SIZES, st.integers(1, 7), st.integers(1, 60))
def test_a_cut_has_every_row_once(sizes: list[int], keys_max: int, bytes_max: int) -> None:
    bounds = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.array(sizes, np.int64))))
    parts = m.cut(bounds, 0, len(sizes), keys_max, bytes_max)
    assert [row for start, end in parts for row in range(start, end)] == list(range(len(sizes)))
    for start, end in parts:
        assert end - start <= keys_max
        assert end - start == 1 or sum(sizes[start:end]) <= bytes_max


def test_what_has_expired_has_no_time_to_live() -> None:
    ttls, expired = m.remaining(np.array([0, 99, 100, 101, 2**40], np.uint64), 100)
    assert ttls.tolist() == [0, 0, 0, 1, 2**40 - 100]
    assert expired.tolist() == [False, True, True, False, False]


@given(st.binary(max_size=4), st.binary(max_size=4), st.integers(0, 0xFFFFFF))
def test_keys_of_a_space(start: bytes, end: bytes, keyspace: int) -> None:
    inner = KeyRange(start, end if end > start else b"")
    for api in Api:
        space = RawSpace(api, keyspace)
        assert space.inner_range(space.outer_range(inner)) == inner
        whole = space.outer_range(KeyRange())
        assert whole.covers(space.outer_range(inner))
        region = Region(id=1, conf_ver=1, version=1, start=space.boundary(whole.start), end=space.boundary(whole.end))
        assert space.range_of(region) == whole
    assert RawSpace(Api.V2, 1).inner_range(KeyRange(b"r\0\0\2", b"r\0\0\3")) is None


@pytest.mark.parametrize(
    ("words", "is_final"),
    [
        ("max key size exceeded, size: 9000, limit: 8192", True),
        ("Api version in request does not match with TiKV storage, cmd: raw_put, storage: V2, request: V1", True),
        ("Key mode mismatched with the request mode, cmd: raw_put, storage: V2, key: 706C", True),
        ("ttl is not enabled, but get put request with ttl", True),
        ("a text that no version has", False),
    ],
)
def test_which_refusals_are_final(words: str, is_final: bool) -> None:
    answer = wire.RawWriteResponse(error=words.encode()).SerializeToString()
    with pytest.raises(RawRefused, match="^" + words[:20]) as refused:
        m.read_answer(wire.RawWriteResponse, answer)
    assert refused.value.is_final is is_final
