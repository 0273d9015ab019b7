"""Rows of a large log: sorted runs in few files, merged a few at a time."""

from __future__ import annotations

import os
import random

import pyarrow as pa
import pytest

from tests.kit.entry_log import Entry, entry_rows
from tistream.log import table_rows
from tistream.log.table_rows import FAN_IN, keys_at


def test_a_long_log_needs_few_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three hundred runs, as of 19 GiB of log."""
    monkeypatch.setattr(table_rows, "RUN_BYTES_MAX", 1500)
    monkeypatch.setattr(table_rows, "BLOCK_BYTES", 400)
    rand, newest = random.Random(3), dict[bytes, int]()

    def changes() -> list[pa.Table]:
        parts: list[pa.Table] = []
        for n in range(300):
            entries = [Entry(1000 + 20 * n + i, rand.randbytes(2), b"v" * 90) for i in range(15)]
            newest.update({entry.key: entry.ts for entry in entries})
            parts.append(entry_rows(entries, prefix=b""))
        return parts

    before, most, newest_read = _descriptors(), 0, dict[bytes, int]()
    for table in keys_at(iter(()), changes()):
        most = max(most, _descriptors() - before)
        keys = table["key"].to_pylist()
        assert not newest_read or max(newest_read) < min(keys)
        newest_read |= dict(zip(keys, table["commit_ts"].to_pylist(), strict=True))
    assert newest_read == newest
    assert FAN_IN // 4 < most < 3 * FAN_IN, "some of each level"


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
