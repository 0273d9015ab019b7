"""What the TiKV destination writes of a stretch, against a dict; cuts of a range at regions; options of the URI."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from destinations.tikv.core import writes
from destinations.tikv.core.writes import plan_writes
from destinations.tikv.destination import TikvSettings
from destinations.uri import parse_sink_uri
from simulator.dst.mutants import reworded
from tests.kit.made_rows import table_of
from tistream.errors import InvalidInput
from tistream.keyrange import KeyRange, gaps
from tistream.model.change import COMMITTED, Op
from tistream.tikv.core.api_versions import Api

CHANGES = st.lists(
    st.tuples(st.binary(max_size=2), st.none() | st.binary(max_size=3), st.sampled_from([0, 0, 50, 150])), max_size=20
)
KEYS = st.binary(max_size=2)


def stretch_of(changes: list[tuple[bytes, bytes | None, int]]) -> pa.Table:
    """(key, value or None for a delete, expiry), in commit order."""
    stamps = range(1, len(changes) + 1)
    return table_of(
        COMMITTED,
        op=[Op.DELETE if value is None else Op.PUT for _, value, _ in changes],
        key=[b"r\0\0\7" + key for key, *_ in changes],
        start_ts=stamps,
        commit_ts=stamps,
        value=[value for _, value, _ in changes],
        expire_ts=[0 if value is None else expire_ts for _, value, expire_ts in changes],
        flags=2,
    )


@given(CHANGES)
def test_the_newest_version_of_each_key_is_written(changes: list[tuple[bytes, bytes | None, int]]) -> None:
    newest = {key: (value, expire_ts) for key, value, expire_ts in changes}
    plan = plan_writes(stretch_of(changes))
    keys, values, expires = (column.tolist() for column in plan.puts())
    assert dict(zip(keys, zip(values, expires, strict=True), strict=True)) == {
        key: version for key, version in newest.items() if version[0] is not None
    }
    assert keys == sorted(keys)
    assert plan.deletes().to_pylist() == sorted(key for key, version in newest.items() if version[0] is None)
    assert plan.rows == len(newest)


@given(CHANGES)
def test_without_expiry_there_what_has_expired_is_deleted(changes: list[tuple[bytes, bytes | None, int]]) -> None:
    newest = {key: (value, expire_ts) for key, value, expire_ts in changes}
    plan, timed = plan_writes(stretch_of(changes)).without_expiry(100)
    alive = {k: v for k, (v, expire_ts) in newest.items() if v is not None and expire_ts != 50}
    assert plan.puts()[0].to_pylist() == sorted(alive)
    assert timed == sorted(k for k in alive if newest[k][1])


def judge_cut(boundaries: list[bytes], whole: KeyRange, parts: int) -> None:
    ranges = writes.cut_ranges(boundaries, whole, parts)
    assert gaps(whole, ranges) == []
    assert all(whole.covers(part) for part in ranges)
    assert all(a.intersect(b) is None for i, a in enumerate(ranges) for b in ranges[:i])
    inside = {key for key in boundaries if key in whole and key != whole.start}
    assert {part.start for part in ranges[1:]} <= inside
    assert len(ranges) == min(parts, len(inside) + 1)


@given(st.lists(KEYS, max_size=12), KEYS, KEYS, st.integers(1, 9))
def test_parts_have_each_key_once(boundaries: list[bytes], start: bytes, end: bytes, parts: int) -> None:
    judge_cut(boundaries, KeyRange(start, end if end > start else b""), parts)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("for start, end in pairwise(at)", "for start, end in list(pairwise(at))[:-1]"),
        ("KeyRange(start, end)", 'KeyRange(start + b"!", end)'),
        ("KeyRange(start, end)", 'KeyRange(start, end + b"!" if end else end)'),
    ],
    ids=["end", "hole", "overlap"],
)
def test_a_hole_and_an_overlap_are_noticed(right: str, wrong: str) -> None:
    boundaries = [b"%02d" % n for n in range(20)]
    judge_cut(boundaries, KeyRange(), 4)
    with reworded(writes, "cut_ranges", (right, wrong)), pytest.raises(AssertionError):
        judge_cut(boundaries, KeyRange(), 4)


def test_options() -> None:
    uri = "tikv://pd1:2379,pd2:2379/?concurrency=8&batch-size=100&rate-limit=3000&backoff-base=50ms&backoff-max=2s"
    settings = TikvSettings.of(parse_sink_uri(uri + "&write-timeout=1s&keyspace=eu&api-version=v1ttl"), 3)
    assert settings.endpoints == ("pd1:2379", "pd2:2379")
    assert (settings.limits.concurrency, settings.limits.batch_keys, settings.limits.rate_bytes_s) == (8, 100, 1000)
    assert (settings.limits.backoff_base_s, settings.limits.backoff_max_s, settings.limits.write_s) == (0.05, 2.0, 1.0)
    assert (settings.keyspace, settings.api) == ("eu", Api.V1TTL)


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("tikv://", "sink-uri"),
        ("tikv://pd:2379/folder", "sink-uri"),
        ("tikv://pd:2379?concurrency=0", "concurrency"),
        ("tikv://pd:2379?rate=1", "rate"),
        ("tikv://pd:2379?api-version=v3", "api-version"),
        ("tikv://pd:2379?backoff-max=1d", "backoff-max"),
        ("tikv://pd:2379?write-timeout=1m", "write-timeout"),
    ],
)
def test_a_wrong_option_is_named(text: str, option: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        TikvSettings.of(parse_sink_uri(text), 1)
    assert refused.value.facts["option"] == option


def test_a_missing_certificate_is_named() -> None:
    settings = TikvSettings.of(parse_sink_uri("tikv://pd:2379?ca-path=/no/such/file"), 1)
    with pytest.raises(InvalidInput) as refused:
        settings.tls()
    assert refused.value.facts["option"] == "ca-path"
