"""Flushes, compactions, reads under leases and the collector in any order, against a model of what must be readable.

The real catalog functions on a database in a file; time is the test's. The model: the flushes whose rows an object
holds, and for each reader what it has listed and may still fetch.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from sqlalchemy import event

from tests.kit.catalog_cases import START, T, activate, advance, flush, segment, shift
from tistream.catalog.database import tables
from tistream.catalog.database.engine import Catalog, GuardFailed
from tistream.catalog.log import compaction, objects
from tistream.catalog.log.committed import find_segments
from tistream.catalog.log.compaction import commit_compaction, pieces
from tistream.catalog.log.objects import superseded_objects, tombstone
from tistream.catalog.log.read_leases import drop_lease, open_lease, renew_lease
from tistream.catalog.rows.compaction import Output, Piece
from tistream.codec.compacted_file import Footer
from tistream.codec.segment_file import SegmentInfo
from tistream.errors import Fenced
from tistream.ts import TS_MAX

TTL_MS = 99_000  # three thirds are exactly the whole, or a lease would be left some real milliseconds
FOOTER = Footer(offset=900, length=50, crc=7)


@functools.cache
def migrated() -> Path:
    """A database with a tenant's tasks, from which each example starts."""
    path = Path(tempfile.mkdtemp()) / "catalog.db"
    catalog = Catalog(f"sqlite:///{path}")
    catalog.migrate()
    activate(catalog)
    catalog.close()
    atexit.register(shutil.rmtree, path.parent)
    return path


@dataclass
class Reader:
    """A page under way."""

    lease_id: str
    left_ms: int = TTL_MS
    listed: set[str] | None = None  #: objects, once it has listed


@dataclass
class Job:
    """A compaction that has read its inputs and written its file."""

    key: str
    inputs: list[Piece] = field(default_factory=list)


class CompactionMachine(RuleBasedStateMachine):
    """`bucket` is object -> the flushes whose rows it holds, each once."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        shutil.copy(migrated(), self.folder / "catalog.db")
        self.catalog = Catalog(f"sqlite:///{self.folder / 'catalog.db'}")
        event.listen(self.catalog._engine, "connect", lambda c, _: c.execute("PRAGMA synchronous=OFF").close())
        self.numbers = 0
        self.durable_ts = {1: 0, 2: 0}
        self.bucket: dict[str, list[tuple[int, int]]] = {}
        self.written: list[tuple[int, int]] = []
        self.readers: list[Reader] = []
        self.jobs: list[Job] = []

    def teardown(self) -> None:
        self.catalog.close()
        shutil.rmtree(self.folder)

    def next(self) -> int:
        self.numbers += 1
        return self.numbers

    @rule(tasks=st.sets(st.sampled_from([1, 2]), min_size=1))
    def flush(self, tasks: set[int]) -> None:
        key, advances = f"committed/{self.next()}", []
        rows = []
        for no, task in enumerate(sorted(tasks)):
            seen = self.durable_ts[task]
            segment_row = segment(no, START + seen + 1, START + seen + 10)
            advances.append(advance(task, START + seen, START + seen + 10, segment_row))
            self.durable_ts[task] = seen + 10
            rows.append((task, self.numbers))
        self.bucket[key] = rows
        assert flush(self.catalog, key, *advances) == tasks
        self.written += rows

    @rule(task=st.sampled_from([1, 2]), first=st.integers(0, 3), count=st.integers(1, 4))
    def plan_and_write(self, task: int, first: int, count: int) -> None:
        """Any neighbours, whether that pays or not."""
        of_task = [p for p in pieces(self.catalog, T, upto_ts=TS_MAX, limit=99) if p.task_id == task]
        inputs = of_task[first : first + count]
        if inputs:
            job = Job(key=f"compacted/{self.next()}", inputs=inputs)
            self.bucket[job.key] = [row for p in inputs for row in self.bucket[p.object_key] if row[0] == task]
            self.jobs.append(job)

    @rule(data=st.data(), again=st.booleans())
    def commit(self, data: st.DataObject, again: bool) -> None:
        """A job's driver commits, perhaps once more when it believes that it has not."""
        if not self.jobs:
            return
        job = data.draw(st.sampled_from(self.jobs))
        if not again:
            self.jobs.remove(job)
        self.swap_job(job)

    def swap_job(self, job: Job) -> None:
        try:
            commit_compaction(self.catalog, T, job.inputs, [output(job)])
        except Fenced:
            assert tombstone(self.catalog, T, job.key) or job.key in self.live()

    @rule()
    def read(self) -> None:
        lease_id = f"lease-{self.next()}"
        open_lease(self.catalog, lease_id, TTL_MS)
        self.readers.append(Reader(lease_id))

    @rule(data=st.data())
    def list_segments(self, data: st.DataObject) -> None:
        if not self.readers:
            return
        reader = data.draw(st.sampled_from(self.readers))
        if reader.left_ms > 0:
            reader.listed = self.live()

    @rule(data=st.data(), how=st.sampled_from(["renew", "drop"]))
    def renew_or_drop(self, data: st.DataObject, how: str) -> None:
        if not self.readers:
            return
        reader = data.draw(st.sampled_from(self.readers))
        if how == "drop":
            drop_lease(self.catalog, reader.lease_id)
            self.readers.remove(reader)
        else:
            assert renew_lease(self.catalog, reader.lease_id, TTL_MS) is (reader.left_ms > 0)
            if reader.left_ms > 0:
                reader.left_ms = TTL_MS

    @rule(ms=st.sampled_from([TTL_MS // 3, 2 * TTL_MS]))
    def let_pass(self, ms: int) -> None:
        shift(self.catalog, tables.read_leases.c.expires_ms, -ms)
        for reader in self.readers:
            reader.left_ms -= ms

    @rule(orphans=st.booleans())
    def collect(self, orphans: bool) -> None:
        for key in superseded_objects(self.catalog, T, grace_ms=0, limit=99):
            if tombstone(self.catalog, T, key):
                del self.bucket[key]
        if orphans:
            for job in self.jobs:
                if job.key in self.bucket and tombstone(self.catalog, T, job.key):
                    del self.bucket[job.key]

    @invariant()
    def every_row_is_listed_once(self) -> None:
        segments = find_segments(self.catalog, T, after_ts=0, upto_ts=TS_MAX, limit=1000)
        rows = [row for s in segments for row in self.bucket[s.object_key] if row[0] == s.task_id]
        assert sorted(rows) == sorted(self.written)

    @invariant()
    def what_a_live_lease_has_listed_is_there(self) -> None:
        for reader in self.readers:
            if reader.left_ms > 0 and reader.listed is not None:
                assert reader.listed <= self.bucket.keys()

    def live(self) -> set[str]:
        return {s.object_key for s in find_segments(self.catalog, T, after_ts=0, upto_ts=TS_MAX, limit=1000)}


def output(job: Job) -> Output:
    task = job.inputs[0].task_id
    group = SegmentInfo(
        number=0,
        kind="compacted",
        task_id=task,
        table_lo=1,
        table_hi=1,
        start_key=b"t\x00",
        end_key=b"t\xff",
        lo_ts=min(p.lo_ts for p in job.inputs),
        hi_ts=max(p.hi_ts for p in job.inputs),
        rows=sum(p.rows for p in job.inputs),
        offset=4,
        length=896,
        raw_length=2000,
        crc=5,
    )
    return Output(object_key=job.key, object_bytes=950, task_id=task, groups=(group,), footer=FOOTER)


TestCompactionMachine = CompactionMachine.TestCase
TestCompactionMachine.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


@pytest.fixture
def machine() -> Iterator[CompactionMachine]:
    new_machine = CompactionMachine()
    yield new_machine
    new_machine.teardown()


def test_the_machine_notices_a_swap_of_gone_inputs(machine: CompactionMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    remove = compaction._remove

    def removed(conn: Any, task_id: int, counts: dict[str, int]) -> None:
        with suppress(GuardFailed):
            remove(conn, task_id, counts)

    monkeypatch.setattr(compaction, "_all_live", lambda conn, keys: True)
    monkeypatch.setattr(compaction, "_remove", removed)
    for _ in range(2):
        machine.flush({1})
    for _ in range(2):
        machine.plan_and_write(1, 0, 2)
    machine.swap_job(machine.jobs[0])
    machine.every_row_is_listed_once()
    machine.swap_job(machine.jobs[1])
    with pytest.raises(AssertionError):
        machine.every_row_is_listed_once()


@pytest.mark.parametrize("broken", [False, True])
def test_it_notices_ignored_leases(machine: CompactionMachine, monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    if broken:
        monkeypatch.setattr(objects, "_SUPERSEDED", objects._REPLACED)
    for _ in range(2):
        machine.flush({1})
    machine.plan_and_write(1, 0, 2)
    machine.read()
    machine.readers[0].listed = machine.live()
    machine.swap_job(machine.jobs[0])
    machine.collect(orphans=False)
    if broken:
        with pytest.raises(AssertionError):
            machine.what_a_live_lease_has_listed_is_there()
    else:
        machine.what_a_live_lease_has_listed_is_there()
