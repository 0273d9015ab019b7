"""Content codings of answers: zstd or gzip, negotiated by Accept-Encoding.

Text answers are compressed: pages at once, streams piece by piece with a flush after each. Arrow answers are not: their
buffers are compressed on request.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Protocol

import zstandard

from apiserver.negotiate import NotAcceptable, weights

CODINGS = ("zstd", "gzip")  # ties go to the first
_ZSTD_LEVEL = 1
_GZIP_LEVEL = 1
_GZIP = 31  # zlib's window bits for the gzip format
_WORTH_BYTES = 1024
_STREAM_WINDOW_LOG = 17  # 128 KiB, held by each stream


def choose_coding(accept_encoding: str | None, offers: Sequence[str] = CODINGS) -> str | None:
    """The coding with the highest weight; None for identity. NotAcceptable when that is refused, too."""
    if accept_encoding is None:
        return None
    weighted = weights(accept_encoding)
    rest = weighted.get("*")
    plain = weighted.get("identity", 1.0 if rest is None else rest)  # acceptable unless refused by name or by `*`
    weighed = {name: weighted.get(name, rest or 0.0) for name in offers}
    best = max(weighed.values(), default=0.0)
    if best > 0 and (best >= plain or "identity" not in weighted):
        return next(name for name, weight in weighed.items() if weight == best)
    if plain > 0:
        return None
    raise NotAcceptable(
        f"Accept-Encoding '{accept_encoding[:80]}' accepts no offered coding.", offers=", ".join(offers)
    )


def is_worth_it(size: int) -> bool:
    """Whether a body of this size is compressed."""
    return size >= _WORTH_BYTES


def compress(content: bytes | memoryview, coding: str) -> bytes:
    """Compress a whole body."""
    if coding == "zstd":
        return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(content)
    return zlib.compress(content, _GZIP_LEVEL, _GZIP)


class Coder(Protocol):
    """Compresses a body piece by piece."""

    def push(self, piece: bytes | memoryview) -> bytes | memoryview:
        """The compressed piece, flushed: readers can decode all of it."""

    def finish(self) -> bytes:
        """The end of the body."""


def coder(coding: str | None) -> Coder:
    """The coder of a stream."""
    if coding == "zstd":
        return _Zstd()
    return _Gzip() if coding == "gzip" else _Plain()


class _Plain:
    def push(self, piece: bytes | memoryview) -> bytes | memoryview:
        return piece

    def finish(self) -> bytes:
        return b""


class _Zstd:
    def __init__(self) -> None:
        parameters = zstandard.ZstdCompressionParameters.from_level(_ZSTD_LEVEL, window_log=_STREAM_WINDOW_LOG)
        self._frame = zstandard.ZstdCompressor(compression_params=parameters).compressobj()

    def push(self, piece: bytes | memoryview) -> bytes:
        return bytes(self._frame.compress(piece) + self._frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))

    def finish(self) -> bytes:
        return bytes(self._frame.flush())


class _Gzip:
    def __init__(self) -> None:
        self._frame = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP)

    def push(self, piece: bytes | memoryview) -> bytes:
        return self._frame.compress(piece) + self._frame.flush(zlib.Z_SYNC_FLUSH)

    def finish(self) -> bytes:
        return self._frame.flush()
