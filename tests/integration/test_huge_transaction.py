"""A transaction of four times the sorter's memory budget goes through the disk and into the log, whole and in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from sorter.core import decision_queue, eviction
from sorter.rows import output
from sorter.worker import publisher
from sorter.worker.spill import Spill
from tests.kit.sorter_bench import Bench, change, expected
from tests.kit.sorter_world import served

ROWS, BATCH_ROWS, BUDGET = 64_000, 8_000, 16 << 20
START_TS, COMMIT_TS, END_TS = 2_000, 3_000, 4_000


def value_of(handle: int) -> bytes:
    """A kilobyte that does not repeat within itself."""
    return b"".join(b"%020d" % (handle * 7919 + n) for n in range(50))


def test_a_transaction_of_four_budgets_gets_through_in_order(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_queue, "DECIDE_ROWS", 8_000)
    monkeypatch.setattr(output, "PIECE_BYTES", 4 << 20)
    monkeypatch.setattr(publisher, "FILE_BYTES_TARGET", 8 << 20)
    monkeypatch.setattr(eviction, "FILE_BYTES", 4 << 20)
    changes = [change(b"a%06d" % n, START_TS, COMMIT_TS, value_of(n)) for n in range(ROWS)]
    worker = bench.assigned("s1", spill=Spill(BUDGET, tmp_path), snapshot_interval_s=1e9)
    seq = 0
    for part, step in ((0, 10_007), (1, 36_871)):  # prewrites, then commits, in two orders unrelated to the keys
        order = [n * step % ROWS for n in range(ROWS)]
        for first in range(0, ROWS, BATCH_ROWS):
            seq += 1
            bench.put(seq, *(changes[n][part] for n in order[first : first + BATCH_ROWS]), upto=10)
        bench.wait(lambda: sum(s.bytes_on_disk for s in worker.stats().values()) > 2 * BUDGET, "what does not fit")
    bench.put(seq + 1, upto=END_TS)
    bench.wait_for_durable_ts(END_TS)
    rows = [row for table in bench.segments() for row in served(table)]
    assert rows == [expected(b"a%06d" % n, START_TS, COMMIT_TS, value_of(n)) for n in range(ROWS)]
    sizes = [len(bench.store.get(info.key)) for info in bench.store.list("committed/")]
    assert len(sizes) > 4
    assert max(sizes) < 16 << 20
