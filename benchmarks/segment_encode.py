"""Encoding a segment: the Arrow stream against memcpy of the same bytes, and the whole zstd segment against the stream.

memcpy is a warm copy into memory that is there already; the stream is written into fresh memory each time, as in use.
The zstd side is everything that a file costs: stream, zstd(1), checksums, footer and joining.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from benchmarks.harness import Result, compare
from benchmarks.rows import change_rows
from tistream.codec.arrow_stream import read_batch, write_batch
from tistream.codec.segment_file import SegmentFile, SegmentFileWriter

ROWS = 60_000  # about 24 MB


def run() -> Iterator[Result]:
    """Two ratios."""
    batch = change_rows(ROWS)
    source = np.frombuffer(write_batch(batch), np.uint8)
    target = np.empty_like(source)

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
        "segment-encode/zstd-vs-ipc-none",
        segment_file,
        lambda: write_batch(batch),
        proof=lambda a, b: SegmentFile.open("benchmark", a).read(0).to_batches()[0].equals(read_batch(memoryview(b))),
        target=0.08,
    )
