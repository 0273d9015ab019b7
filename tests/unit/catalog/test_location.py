"""Locations of changefeeds: which of them overlap, however they are written, and what the catalog keeps of them."""

from __future__ import annotations

import orjson
import pytest

from tistream.catalog.work.core.location import Files, Keys, Location, location_facts, location_in
from tistream.keyrange import KeyRange


def keys(cluster: int, keyspace: int | None, start: bytes = b"", end: bytes = b"") -> Keys:
    return Keys(cluster_id=cluster, keyspace_id=keyspace, range=KeyRange(start, end))


def folder(path: str) -> Files:
    return Files.of(scheme="file", bucket="", path=path, endpoint="")


def prefix(path: str, bucket: str = "b", endpoint: str = "") -> Files:
    return Files.of(scheme="s3", bucket=bucket, path=path, endpoint=endpoint)


SAME = [
    (keys(1, 2), keys(1, 2)),
    (keys(1, 2, b"a", b"m"), keys(1, 2, b"l", b"z")),
    (keys(1, 2, b"a", b"m"), keys(1, 2)),
    (keys(1, None, b"a"), keys(1, None, b"z")),
    (folder("/a"), folder("/a/")),
    (folder("/a//b/../b/./c"), folder("/a/b/c")),
    (folder("//a"), folder("/a")),
    (folder("/a/b"), folder("/a")),
    (folder("/"), folder("/a")),
    (prefix("/x/y"), prefix("/x/y/")),
    (prefix("/x"), prefix("/x/y/z")),
    (prefix(""), prefix("/x")),
    (prefix("/x", endpoint="http://minio:9000"), prefix("/x", endpoint="https://MINIO:9000/")),
    (prefix("/x", endpoint="http://minio:9000"), prefix("/x")),
]
OTHERS = [
    (keys(1, 2), keys(3, 2)),
    (keys(1, 2), keys(1, 3)),
    (keys(1, 2, b"a", b"m"), keys(1, 2, b"m", b"z")),
    (keys(1, None), folder("/")),
    (folder("/a"), folder("/ab")),
    (folder("/a/b"), folder("/a/c")),
    (folder("/b/x"), prefix("/x")),
    (prefix("/x"), prefix("/x", bucket="c")),
    (prefix("/x"), prefix("/xy")),
    (prefix("/a//b"), prefix("/a/b")),
    (prefix("/x", endpoint="http://one:9000"), prefix("/x", endpoint="http://two:9000")),
]


@pytest.mark.parametrize(
    ("one", "two", "overlap"), [*((a, b, True) for a, b in SAME), *((a, b, False) for a, b in OTHERS)]
)
def test_locations_overlap_both_ways_or_not_at_all(one: Location, two: Location, overlap: bool) -> None:
    assert (one.overlaps(two), two.overlaps(one)) == (overlap, overlap)
    for location in (one, two):
        assert location_in(orjson.dumps({"keys": {}, "location": location_facts(location)}).decode()) == location


def test_a_changefeed_may_have_no_known_location() -> None:
    assert location_in("{}") is None
