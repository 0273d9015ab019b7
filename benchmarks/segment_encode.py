"""Encoding a segment: the Arrow stream against memcpy of the same bytes, and the whole file against zstd(1) alone.

memcpy is a warm copy into existing memory; the stream is written into fresh memory each time, as in use. The file is
the total: stream, zstd(1), checksums, footer and joining. zstd(1) packs about 0.44 GB a second on one core, the stream
is written at ten and more, so the file is compared with zstd, to measure the cost beyond it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import zstandard

from benchmarks.harness import Result, compare
from benchmarks.rows import change_rows
from tistream.codec.arrow_stream import read_batch, write_batch
from tistream.codec.segment_file import ZSTD_LEVEL, SegmentFile, SegmentFileWriter

ROWS = 60_000  # about 24 MB


def run() -> Iterator[Result]:
    """Two ratios."""
    batch = change_rows(ROWS)
    source = np.frombuffer(write_batch(batch), np.uint8)
    target = np.empty_like(source)
    packer = zstandard.ZstdCompressor(level=ZSTD_LEVEL)

    def memcpy() -> npt.NDArray[np.uint8]:
        np.copyto(target, source)
        return target

    def segment_file() -> bytes:
        writer = SegmentFileWriter({})
        writer.add("rows", batch)
        return writer.finish()

    yield compare(
        "segment-encode/ipc-none-vs-memcpy",
        lambda: write_batch(batch),
        memcpy,
        proof=lambda a, b: a.to_pybytes() == b.tobytes() and read_batch(memoryview(a)).equals(batch),
        target=0.4,
    )
    yield compare(
        "segment-encode/file-vs-zstd-alone",
        segment_file,
        lambda: packer.compress(source),
        proof=lambda a, b: SegmentFile.open("benchmark", a).read(0).to_batches()[0].equals(batch) and b in a,
        target=0.85,
    )
