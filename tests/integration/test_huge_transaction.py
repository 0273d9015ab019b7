"""The benchmark of a transaction larger than the sorter's memory, small enough for the test suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.huge_transaction import Shape, graph, play
from sorter.core import decision_queue, eviction
from sorter.rows import output
from sorter.worker import publisher


def test_a_transaction_of_four_budgets_gets_through_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_queue, "DECIDE_ROWS", 8_000)
    monkeypatch.setattr(output, "PIECE_BYTES", 4 << 20)
    monkeypatch.setattr(publisher, "FILE_BYTES_TARGET", 8 << 20)
    monkeypatch.setattr(eviction, "FILE_BYTES", 4 << 20)
    report = play(Shape(rows=64_000, value_bytes=1000), 16, tmp_path, wait_s=300.0)
    assert report.same
    assert report.rows == 64_000
    assert report.objects > 4
    assert report.largest_object < 16 << 20
    assert "#" in graph(report.watch)
