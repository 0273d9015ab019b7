"""Addresses of object stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from tistream.errors import ConfigError, InvalidInput
from tistream.objectstore.factory import open_store, s3_place
from tistream.objectstore.local import LocalStore
from tistream.objectstore.memory import MemoryStore
from tistream.objectstore.s3 import S3Store


def test_known_addresses_are_opened(tmp_path: Path) -> None:
    assert isinstance(open_store("memory://"), MemoryStore)
    assert isinstance(open_store(f"file://{tmp_path}/a%20b"), LocalStore)
    assert (tmp_path / "a b").is_dir()
    assert isinstance(open_store("s3://bucket"), S3Store)
    assert isinstance(open_store("s3://bucket/some/prefix/?region=eu-central-1"), S3Store)
    assert isinstance(open_store("s3://bucket?endpoint=http://127.0.0.1:9000&path_style=true"), S3Store)


def test_another_server_has_the_bucket_in_the_path_unless_the_address_says_otherwise() -> None:
    """Few servers but AWS answer `bucket.endpoint`."""
    server = "s3://bucket?endpoint=http://127.0.0.1:9000"
    places = [s3_place(url) for url in ("s3://bucket", server, f"{server}&path_style=false")]
    assert [place and place.path_style for place in places] == [False, True, False]


@pytest.mark.parametrize("url", ["", "gs://bucket", "/tmp/folder", "bucket", "http://[broken"])
def test_an_unknown_form_is_answered_with_the_known_ones(url: str) -> None:
    with pytest.raises(ConfigError, match="known are memory://, file:///absolute/folder, s3://bucket/prefix"):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://shared", "each store is separate"),
        ("file://folder", "file:///absolute/folder"),
        ("file:folder", "file:///absolute/folder"),
        ("file:///folder?x=1", "file:///absolute/folder"),
        ("s3://", "not the address of a bucket"),
        ("s3://bucket?endpiont=http://x&region=r", "unknown endpiont; known are endpoint, region, path_style"),
        ("s3://bucket?endpoint=127.0.0.1:9000", "https:// or http://"),
        ("s3://bucket?path_style=yes", "true or false"),
        ("s3://bucket?path_style=", "true or false"),
    ],
)
def test_a_wrong_address_says_what_is_wrong(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_store(url)


def test_a_secret_in_the_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="AWS_SECRET_ACCESS_KEY") as caught:
        open_store("s3://id:secret@bucket/prefix")
    assert "secret@" not in str(caught.value)


def test_a_prefix_is_a_key() -> None:
    with pytest.raises(InvalidInput):
        open_store("s3://bucket/a/../b")
