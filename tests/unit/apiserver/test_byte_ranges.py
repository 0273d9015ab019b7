"""Ranges by RFC 9110, section 14: its examples for a representation of 10000 bytes, and what must not be understood."""

from __future__ import annotations

import pytest

from apiserver.core.byte_ranges import ByteRange, NoSuchBytes, asked_range, names

TAG = '"abc"'


def asked(header: str | None, if_range: str | None = None, size: int = 10_000) -> tuple[int, int] | None:
    byte_range = asked_range(header, if_range, etag=TAG, size=size)
    return None if byte_range is None else (byte_range.offset, byte_range.length)


@pytest.mark.parametrize(
    ("header", "offset", "length"),
    [
        ("bytes=0-499", 0, 500),
        ("bytes=500-999", 500, 500),
        ("bytes=-500", 9500, 500),
        ("bytes=9500-", 9500, 500),
        ("bytes=0-0", 0, 1),
        ("bytes=-1", 9999, 1),
        ("Bytes = 1-2", 1, 2),
        ("bytes=9999-20000", 9999, 1),
        ("bytes=-20000", 0, 10_000),
    ],
)
def test_one_range(header: str, offset: int, length: int) -> None:
    assert asked(header) == (offset, length)


@pytest.mark.parametrize(
    "header", [None, "bytes=0-0,-1", "lines=1-2", "bytes=", "bytes=-", "bytes=5-4", "bytes=a-b", "bytes=--5", "0-5"]
)
def test_what_is_not_one_range_is_the_whole_file(header: str | None) -> None:
    assert asked(header) is None


@pytest.mark.parametrize("header", ["bytes=10000-", "bytes=10000-10001", "bytes=-0"])
def test_a_range_behind_the_end(header: str) -> None:
    with pytest.raises(NoSuchBytes):
        asked(header)


def test_no_byte_of_an_empty_file() -> None:
    with pytest.raises(NoSuchBytes):
        asked("bytes=0-", size=0)


def test_a_range_of_another_version_is_the_whole_file() -> None:
    assert asked("bytes=0-1", TAG) == (0, 2)
    assert asked("bytes=0-1", '"other"') is None
    assert asked("bytes=0-1", "Wed, 21 Oct 2026 07:28:00 GMT") is None


def test_content_range() -> None:
    assert ByteRange(offset=42, length=1192).content_range(1234) == "bytes 42-1233/1234"


def test_which_versions_are_known() -> None:
    assert names('"x", W/"abc"', TAG)
    assert names("*", TAG)
    assert not names('"x"', TAG)
    assert not names(None, TAG)


@pytest.mark.parametrize("number", ["9" * 5000, "٣"])
def test_numbers_of_any_length_and_script_are_no_range_or_a_range(number: str) -> None:
    for header in (f"bytes={number}-", f"bytes=-{number}", f"bytes=0-{number}"):
        assert asked_range(header, None, etag="e", size=10) is None
