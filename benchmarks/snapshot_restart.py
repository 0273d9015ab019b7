"""Saving a task's state and restarting from it, with many held rows.

snapshot-restart/save       time of a save with 10,000 new rows when a million are held, to that with 10,000 held
snapshot-restart/restart    time from the beginning of a restart to the first flush, likewise
snapshot-restart/read       bytes that such a restart reads, to those of the objects that the state refers to
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.harness import Result, in_turn
from benchmarks.match_sort import FAR, RunSorter, Ticks, _at, batch_of, held
from benchmarks.rows import BASE_TS
from sorter.state.saving import Save
from sorter.state.snapshot import read_state_file
from sorter.worker.stored_core import StoredCore, loaded
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.model.change import RowKind
from tistream.objectstore.layout import SnapshotKey
from tistream.objectstore.local import LocalStore

HELD = (1_000_000, 10_000)
NEW_ROWS = 10_000
SAVES = 15
PART = 100_000


class Saved:
    """A task whose snapshots are in a folder."""

    def __init__(self, folder: Path) -> None:
        self.sorter = RunSorter()
        self.store = LocalStore(folder)
        self.key = ""
        self.refers: dict[str, int] = {}
        self.read = 0  #: bytes
        self.seq = self._n = 0

    def hold(self, rows: int) -> None:
        """Take open prewrites that are never decided."""
        for at in range(0, rows, PART):
            self.seq += 1
            some = held(RowKind.PREWRITE, min(PART, rows - at), self.seq)
            self.sorter.core.handle(batch_of(some, self.seq, BASE_TS, FAR))
            if self.seq % 10 == 0:
                self.save()

    def tick(self, ticks: Ticks, n: int) -> int:
        """Take a second's rows and write out what is due; returns the number of rows."""
        self.seq += 1
        rows: int = self.sorter.tick(_at(ticks.batch(n), self.seq)).num_rows
        return rows

    def save(self) -> float:
        """Seconds."""
        gc.collect()
        start = time.perf_counter()
        save = loaded(partial(Save, self.sorter.core.snapshot(), self._next_key, "w"), self._range)
        for key, data in save.objects():
            self.store.put(key, data)
        save.done()
        seconds = time.perf_counter() - start
        self.key = str(save.key)
        self.refers = {key: self.refers[key] for key in save.keeps} | save.new
        return seconds

    def tick_and_save(self, ticks: Ticks, n: int) -> float:
        """Seconds of the save."""
        self.tick(ticks, n)
        return self.save()

    def restart(self, ticks: Ticks, n: int) -> float:
        """Seconds from nothing in memory to the first flush that has rows."""
        self.read = 0
        start = time.perf_counter()
        data = self.store.get(self.key)
        self.read += len(data)
        state = read_state_file(self.key, data).state
        self.sorter.core = StoredCore(1, KeyRange(), BASE_TS, self.sorter.core.durable_ts, self._range)
        self.sorter.core.restore(state, state.positions)
        batch = ticks.batch(n)
        written_s = time.perf_counter()
        self.seq += 1
        rows = self.sorter.tick(_at(batch, self.seq))
        if not rows.num_rows:
            raise ValueError("nothing was written out")
        return time.perf_counter() - written_s + (written_s - start)

    def _range(self, key: str, offset: int, length: int) -> bytes:
        self.read += length
        return self.store.get_range(key, offset, length)

    def _next_key(self) -> SnapshotKey:
        self._n += 1
        return SnapshotKey(tenant=Tenant(1, 1), task_id=1, epoch=1, n=self._n)


def run() -> Iterator[Result]:
    """Three ratios."""
    ticks = Ticks(NEW_ROWS)
    with tempfile.TemporaryDirectory() as folder:
        sides = [Saved(Path(folder) / str(rows)) for rows in HELD]
        for side, rows in zip(sides, HELD, strict=True):
            side.hold(rows)
            side.save()
        saves, restarts, reads = [], [], []
        for n in range(SAVES + 2):
            saves.append(in_turn(n, *(partial(side.tick_and_save, ticks, n) for side in sides)))
        for n in range(SAVES + 2, SAVES + 9):
            restarts.append([side.restart(ticks, n) for side in sides])
            reads.append(sides[0].read / sum(sides[0].refers.values()))
            for side in sides:
                side.save()
    yield Result.of("snapshot-restart/save 1e6/1e4", [a / b for a, b in saves[2:]], 1.2, "lower")
    yield Result.of("snapshot-restart/restart 1e6/1e4", [a / b for a, b in restarts[2:]], 2.0, "lower")
    yield Result.of("snapshot-restart/read", reads[2:], 0.1, "lower")
