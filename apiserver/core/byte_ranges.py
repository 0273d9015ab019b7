"""Byte ranges of a request by RFC 9110 (pure).

Several ranges, or a malformed header, mean the whole file, as the standard allows. So does a range with an If-Range of
another version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_RANGE = re.compile(r"bytes\s*=\s*(\d{0,4000})\s*-\s*(\d{0,4000})", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRange:
    """`length` bytes from `offset`."""

    offset: int
    length: int

    def content_range(self, size: int) -> str:
        """The Content-Range header."""
        return f"bytes {self.offset}-{self.offset + self.length - 1}/{size}"


class NoSuchBytes(Exception):
    """The range starts after the end of the file (416)."""


def asked_range(header: str | None, if_range: str | None, *, etag: str, size: int) -> ByteRange | None:
    """The requested range; None for the whole file. NoSuchBytes when it has no byte of the file."""
    if header is None or (if_range is not None and if_range.strip() != etag):
        return None
    match = _RANGE.fullmatch(header.strip())
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        length = min(int(match[2]), size)
        if length == 0:
            raise NoSuchBytes
        return ByteRange(offset=size - length, length=length)
    first = int(match[1])
    last = min(int(match[2]), size - 1) if match[2] else size - 1
    if match[2] and int(match[2]) < first:
        return None
    if first >= size:
        raise NoSuchBytes
    return ByteRange(offset=first, length=last - first + 1)


def names(header: str | None, etag: str) -> bool:
    """Whether an If-None-Match header matches this version."""
    if header is None:
        return False
    tags = [tag.strip().removeprefix("W/") for tag in header.split(",")]
    return "*" in tags or etag in tags
