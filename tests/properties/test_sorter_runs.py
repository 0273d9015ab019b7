"""The buffers in runs under a small cluster, with every bound so small that it is met all the time.

Hashes are cut to four bits, runs are tidied as early as possible, their bytes are moved to the disk, decisions are
taken in slices, cores are restarted from snapshots, whole or in parts of their range. What is written must be what the
cluster committed; the checks stand in tests.kit.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from sorter.core import decision_queue, eviction, prewrite_buffer, sort_buffer
from sorter.rows import output, payload, run
from sorter.worker.spill import Spill
from tests.kit import sorter_run
from tests.kit.parted_run import PartedRun
from tests.kit.sorter_run import SorterRun

SPILL = Spill(0)


@pytest.fixture(
    params=[(4, 0, 2, 0, 1), (64, 1 << 30, 8, 1 << 40, 2), (64, 0, 2, 0, 1000)],
    ids=["4 bits, one by one", "64 bits, by two", "at once"],
)
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    bits, young_bytes, fan_in, spill_bytes_min, decide_rows = request.param
    monkeypatch.setattr(decision_queue, "DECIDE_ROWS", decide_rows)
    monkeypatch.setattr(prewrite_buffer, "COPY_BYTES_MAX", 20)
    monkeypatch.setattr(output, "PIECE_ROWS", 2)
    monkeypatch.setattr(sort_buffer, "FLUSH_BYTES_MAX", 30)
    monkeypatch.setattr(run, "ARRAY_BYTES_MIN", 100)
    monkeypatch.setattr(payload, "HASH_MASK", (1 << bits) - 1)
    monkeypatch.setattr(run, "YOUNG_BYTES", young_bytes)
    monkeypatch.setattr(run, "FAN_IN", fan_in)
    monkeypatch.setattr(eviction, "SPILL_BYTES_MIN", spill_bytes_min)


@pytest.mark.parametrize("kind", [lambda _: SorterRun(), PartedRun], ids=["whole", "in parts"])
@pytest.mark.parametrize("seed", range(6))
def test_what_a_cluster_commits_is_written(small: None, seed: int, kind: Callable[[random.Random], SorterRun]) -> None:
    rand = random.Random(seed)
    history = kind(rand)
    for _ in range(100):
        history.random_step(rand)
        for core in history.cores.values():
            core.evict(SPILL, 4000)
    history.finish()
    assert history.rows


@pytest.mark.parametrize("seed", [0, 1, 3, 4, 5])
def test_what_is_decided_in_slices_is_never_written_in_part(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_queue, "DECIDE_ROWS", 1)
    monkeypatch.setattr(output, "PIECE_ROWS", 1)
    monkeypatch.setattr(sorter_run, "KEYS", [bytes([letter]) for letter in b"abcdefghmnopqrst"])
    rand, history = random.Random(seed), SorterRun()
    for _ in range(8):
        for key in sorter_run.KEYS:  # many commit before anybody hears of it
            history.prewrite(key, b"v", old=False)
            history.decide(key, how="commit")
        for _ in range(20):
            history.random_step(rand)
    history.finish()
    assert history.slices > 10
