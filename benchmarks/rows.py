"""Synthetic change rows for benchmarks: keys of 19 to 40 bytes, values of 200 to 500 bytes of word-like text.

The text is words of a vocabulary of 4000 with every sixth byte or so replaced by a random one: zstd(1) makes it about
1.7 times smaller, like ordinary row values. Everything is drawn from a seed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tests.kit.made_rows import batch_of
from tistream.model import change
from tistream.model.change import Op, RowKind

BASE_TS = 450_000_000_000_000_000
TABLES = 50


def change_rows(count: int, seed: int = 1) -> pa.RecordBatch:
    """`count` self-contained rows of schema change.ROWS, spread over tables."""
    rng = np.random.default_rng(seed)
    start_ts = np.uint64(BASE_TS) + np.sort(rng.integers(0, 1 << 28, count)).astype(np.uint64)
    return batch_of(
        change.ROWS,
        kind=RowKind.COMMITTED,
        op=Op.PUT,
        key=_keys(count, rng),
        start_ts=start_ts,
        commit_ts=start_ts + rng.integers(1, 1 << 20, count).astype(np.uint64),
        value=_texts(count, rng, 200, 500),
    )


def _keys(count: int, rng: np.random.Generator) -> pa.BinaryArray:
    """Record keys: an int handle and up to 21 more bytes."""
    flat = rng.integers(0, 256, (count, 40), dtype=np.uint8)
    flat[:, 0] = ord("t")
    flat[:, 1:9] = _comparable(100 + np.sort(rng.integers(0, TABLES, count)))
    flat[:, 9:11] = np.frombuffer(b"_r", np.uint8)
    flat[:, 11:19] = _comparable(rng.permutation(count))
    lengths = 19 + rng.integers(0, 22, count)
    return _binary(lengths, flat[np.arange(40) < lengths[:, None]])


def _comparable(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    return (numbers ^ np.int64(-(2**63))).astype(">i8").view(np.uint8).reshape(-1, 8)


def _texts(count: int, rng: np.random.Generator, shortest: int, longest: int) -> pa.BinaryArray:
    vocabulary = rng.integers(97, 123, (4000, 8), dtype=np.uint8)
    vocabulary[:, 7] = ord(" ")
    lengths = rng.integers(shortest, longest + 1, count)
    text = vocabulary[rng.integers(0, len(vocabulary), int(lengths.sum()) // 8 + 1)].reshape(-1)
    noise = rng.integers(0, len(text), len(text) // 6)
    text[noise] = rng.integers(0, 256, len(noise), dtype=np.uint8)
    return _binary(lengths, text[: lengths.sum()])


def _binary(lengths: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> pa.BinaryArray:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.BinaryArray.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
