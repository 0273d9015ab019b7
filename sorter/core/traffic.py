"""Traffic of a task: rows and bytes per second, and a key that splits it in about half.

A few random keys of each batch are sampled, so that about SAMPLE keys stand for the recent past and the cost does not
grow with the rows. The draws are seeded by the task's number. Pure: `note` counts, `tick` advances the time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

import numpy as np
import pyarrow as pa

from tistream.feed.protocol import FeedBatch
from tistream.keyrange import KeyRange
from tistream.limits import RATE_WINDOW_S
from tistream.runtime.rates import Rate

SAMPLE = 256  #: keys kept
SIDE_MIN = 0.25  #: minimum share of the smaller side; below it a split is useless


class KeySample:
    def __init__(self, seed: int, size: int = SAMPLE) -> None:
        self._rand = np.random.default_rng(seed)
        self._size = size
        self._keys: deque[bytes] = deque(maxlen=size)

    def take(self, keys: pa.Array, share: float) -> None:
        """Sample this share of the keys of a batch, at most as many as fit."""
        count = min(int(len(keys) * share + self._rand.random()), self._size)
        if count:
            chosen = self._rand.integers(0, len(keys), count)
            self._keys.extend(keys.take(pa.array(chosen)).to_pylist())

    def split_key(self, range_: KeyRange) -> bytes | None:
        """A key inside the range with about half of the sampled keys on either side. None when there are too few keys,
        or when one key has most of the traffic."""
        keys = sorted(key for key in self._keys if key in range_)
        if len(keys) < self._size // 4:
            return None
        middle = keys[len(keys) // 2]
        after = next((key for key in keys[len(keys) // 2 :] if key > middle), middle)
        best = min((middle, after), key=lambda key: (abs(2 * bisect_left(keys, key) - len(keys)), key))
        below = bisect_left(keys, best)
        return best if min(below, len(keys) - below) >= SIDE_MIN * len(keys) and best > range_.start else None


class Traffic:
    """Traffic of one task. Call `note` with each batch and `tick` about once a second."""

    def __init__(self, task_id: int) -> None:
        self._sample = KeySample(task_id)
        self._rows = self._bytes = 0  # since the last tick
        self._rates: tuple[Rate, Rate] | None = None
        self.rows_per_s = self.bytes_per_s = 0.0

    def note(self, batch: FeedBatch) -> None:
        rows = batch.rows.num_rows
        self._bytes += batch.nbytes
        if rows:
            self._rows += rows
            self._sample.take(batch.rows.column("key"), self._share)

    def tick(self, now_s: float) -> None:
        """Update the rates; `now_s` is monotonic."""
        if self._rates is None:
            self._rates = Rate(RATE_WINDOW_S, now_s), Rate(RATE_WINDOW_S, now_s)
        rows, nbytes = self._rates
        rows.add(self._rows, now_s)
        nbytes.add(self._bytes, now_s)
        self._rows = self._bytes = 0
        self.rows_per_s, self.bytes_per_s = rows.per_s(), nbytes.per_s()

    def split_key(self, range_: KeyRange) -> bytes | None:
        return self._sample.split_key(range_)

    @property
    def _share(self) -> float:
        """The share of keys to sample, so that a window has about SAMPLE of them."""
        expected = self.rows_per_s * RATE_WINDOW_S
        return 1.0 if expected <= SAMPLE else SAMPLE / expected
