"""Which content coding an answer takes; a stream can be read up to each piece before the next one comes."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest
import zstandard

from apiserver.compression import choose_coding, coder, compress
from apiserver.negotiate import NotAcceptable, choose

TEXT = b"a line of some length\n" * 500


@pytest.mark.parametrize(
    ("header", "coding"),
    [
        (None, None),
        ("", None),
        ("identity", None),
        ("gzip", "gzip"),
        ("gzip, deflate, br, zstd", "zstd"),
        ("zstd;q=0.5, gzip;q=0.8", "gzip"),
        ("ZSTD", "zstd"),
        ("zstd;q=0, gzip", "gzip"),
        ("zstd;q=0, gzip;q=0", None),
        ("*", "zstd"),
        ("*;q=0.5, zstd;q=0", "gzip"),
        ("br", None),
        ("gzip;q=0.5, identity;q=0.9", None),
        ("gzip;q=0.5, identity;q=0.5", "gzip"),
        ("identity;q=0, gzip;q=0.001", "gzip"),
        ("*;q=0, gzip", "gzip"),
        ("gzip;q=2", None),
        ("gzip;q=nan", None),
    ],
)
def test_the_coding_with_the_highest_weight(header: str | None, coding: str | None) -> None:
    assert choose_coding(header) == coding


@pytest.mark.parametrize("header", ["*;q=0", "identity;q=0", "identity;q=0, br", "zstd;q=0, gzip;q=0, identity;q=0"])
def test_nothing_left_is_refused(header: str) -> None:
    with pytest.raises(NotAcceptable):
        choose_coding(header)


def test_without_offers_everything_but_a_refusal_of_the_plain_body_is_fine() -> None:
    assert choose_coding("zstd, gzip", ()) is None
    with pytest.raises(NotAcceptable):
        choose_coding("identity;q=0", ())


@pytest.mark.parametrize("accept", ["application/json;q=0, */*", "application/json;q=0, application/*;q=0.1"])
def test_a_refused_media_type_is_not_in_a_range(accept: str) -> None:
    assert choose(None, accept) == "ndjson"


def test_whole_bodies_come_back() -> None:
    assert zstandard.ZstdDecompressor().decompress(compress(TEXT, "zstd")) == TEXT
    assert zlib.decompress(compress(TEXT, "gzip"), 31) == TEXT
    assert len(compress(TEXT, "gzip")) < len(TEXT) / 10


@pytest.mark.parametrize("coding", ["zstd", "gzip", None])
def test_a_piece_can_be_read_before_the_next_one_comes(coding: str | None) -> None:
    encoder = coder(coding)
    readers: dict[str | None, Callable[[bytes | memoryview], bytes]] = {
        "zstd": zstandard.ZstdDecompressor().decompressobj().decompress,
        "gzip": zlib.decompressobj(31).decompress,
        None: bytes,
    }
    read = readers[coding]
    for n in range(5):
        piece = f"piece {n}\n".encode() * 100
        assert read(encoder.push(piece)) == piece
    assert read(encoder.finish()) == b""
