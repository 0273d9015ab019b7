"""Tasks are split and merged while a recording plays through real processes; what is pulled is what that TiDB said."""

from __future__ import annotations

import json
import random
import time
from itertools import pairwise
from pathlib import Path

import pytest

from simulator.chaos.servers.processes import TiStreamProcess, Up, pull_all, register
from tests.kit.replica import compare
from tests.kit.ticdc import CANAL, compare_canal
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.committed import find_segments
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.work.reshape import request_merge, split_task
from tistream.catalog.work.tasks import list_tasks
from tistream.errors import ErrorKind, TiStreamError
from tistream.ids import Tenant
from tistream.ts import TS_MAX

pytestmark = pytest.mark.slow

TENANT = Tenant(1, 1)
WANTED = 4  #: splits and merges, each
LIMIT_S = 240.0


class Reshaping:
    """Has tasks split and merged, and counts what came of it."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog, self._rand = catalog, random.Random(5)
        self.splits = self.merges = 0
        self._asked: set[tuple[int, int]] = set()

    def step(self) -> None:
        rows = sorted((r for r in list_tasks(self._catalog, TENANT) if r.kind == "data"), key=lambda r: r.range)
        there = {row.task_id for row in rows}
        done = {pair for pair in self._asked if not there & set(pair)}
        self.merges += len(done)
        self._asked -= done
        try:
            if len(rows) < 5 and self._rand.random() < 0.6:
                self._split(self._rand.choice(rows or [None]))
            elif len(rows) > 1 and not self._asked:
                left, right = self._rand.choice(list(pairwise(rows)))
                epochs = left.epoch, right.epoch
                if request_merge(self._catalog, left.task_id, right.task_id, seen_epochs=epochs):
                    self._asked.add((left.task_id, right.task_id))
        except TiStreamError as e:
            if e.kind not in (ErrorKind.RETRY, ErrorKind.NOT_FOUND):
                raise

    def _split(self, row: TaskRow | None) -> None:
        segments = find_segments(self._catalog, TENANT, after_ts=0, upto_ts=TS_MAX, limit=500)
        keys = sorted({key for s in segments for key in (s.start_key, s.end_key)})
        inside = [key for key in keys if row is not None and key in row.range and key != row.range.start]
        if inside and row is not None and row.merge_with is None:
            key = self._rand.choice(inside)
            self.splits += split_task(self._catalog, row.task_id, key, seen_epoch=row.epoch) is not None


def test_tasks_change_while_the_recording_plays(
    tmp_path: Path, recording: Path, expected: Path, last_resolved_ts: int
) -> None:
    with Up(tmp_path) as up:
        register(up.url)
        catalog = Catalog(f"sqlite:///{tmp_path / 'data' / 'catalog.db'}")
        shapes = Reshaping(catalog)
        args = ("push", "--capture", str(recording), "--url", up.url, "--cluster", "1", "--tenant", "1")
        with TiStreamProcess(*args, "--speed", "max", log=tmp_path / "push.log") as pusher:
            deadline = time.monotonic() + LIMIT_S
            while pusher.alive or min(shapes.splits, shapes.merges) < WANTED:
                assert time.monotonic() < deadline, f"{shapes.splits} splits, {shapes.merges} merges: {up.output()}"
                shapes.step()
                time.sleep(0.2)
            assert pusher.wait(60) == 0, pusher.output()
        catalog.close()
        body = pull_all(up.url, last_resolved_ts, format="canal-json", **CANAL)
        assert compare_canal(expected, body.splitlines()) > 12_000
        rows = pull_all(up.url, last_resolved_ts, format="ndjson")
        assert compare(expected, (json.loads(line) for line in rows.splitlines())) > 400
