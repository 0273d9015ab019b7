"""The object store in S3, on a real server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from simulator.chaos.servers.s3server import CREDENTIALS, S3Server, s3_server
from tests.kit.objectstore_suite import KEY, ObjectStoreSuite
from tistream.errors import StoreUnavailable
from tistream.objectstore.factory import open_store
from tistream.objectstore.protocol import ObjectStore

_number = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


class TestS3Store(ObjectStoreSuite):
    many_keys = 1050

    @pytest.fixture
    def store(self, server: S3Server) -> ObjectStore:
        bucket = f"bucket-{next(_number)}"
        server.create_bucket(bucket)
        return open_store(server.url(bucket))

    def test_a_prefix_keeps_two_deployments_apart(self, server: S3Server) -> None:
        server.create_bucket("shared")
        one, two, whole = (open_store(server.url("shared", prefix)) for prefix in ("one", "two/deep", ""))
        one.put("a/b", b"1")
        two.put("a/b", b"2")
        assert (one.get("a/b"), two.get("a/b")) == (b"1", b"2")
        assert [info.key for info in one.list("a/")] == ["a/b"]
        assert [info.key for info in whole.list("")] == ["one/a/b", "two/deep/a/b"]

    def test_a_missing_bucket_is_not_a_missing_object(self, server: S3Server) -> None:
        store = open_store(server.url("no-such-bucket"))
        for ask in (
            lambda: store.get(KEY),
            lambda: store.get_range(KEY, 0, 1),
            lambda: store.put(KEY, b"x"),
            lambda: list(store.list("a/")),
        ):
            with pytest.raises(StoreUnavailable, match="bucket"):
                ask()
