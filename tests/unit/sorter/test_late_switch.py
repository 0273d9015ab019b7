"""A switch of the state checkpoint that lands late: its task was loaded again meanwhile, at the same epoch, from the
checkpoint before."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sorter.worker import runner
from sorter.worker.runner import TaskRunner
from tests.kit.routed import routed
from tests.kit.sorter_bench import Bench, change
from tests.kit.sorter_oracle import Mark
from tests.kit.sorter_world import File, feed_batch
from tistream.catalog.log.snapshots import NewSnapshot, switch_snapshot
from tistream.errors import CatalogUnavailable, Fenced, StoreUnavailable
from tistream.ids import Position


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    new_bench = Bench(tmp_path)
    new_bench.assign("s1")
    yield new_bench
    new_bench.stop()


def take(task: TaskRunner, *seqs: int) -> None:
    for seq in seqs:
        mark = Mark(region_id=1, start=b"", end=b"", checkpoint_ts=10, resolved_ts=20 + seq)
        rows = change(b"a%d" % seq, 19 + seq, 20 + seq, b"1")
        file = feed_batch(File(store_id=1, incarnation=1, seq=seq, cut_ts=20 + seq, rows=rows, marks=(mark,)))
        assert task.inbox.put(routed(file, task.row.range), threading.Event())
    task.absorb(99, 1 << 30)


def save(task: TaskRunner) -> None:
    """As the worker does: a key that is used up is passed over with the next try."""
    for _ in range(9):
        try:
            return task.save()
        except StoreUnavailable:
            continue


@pytest.mark.parametrize("further", [False, True], ids=["it is behind", "it has read further"])
def test_who_was_loaded_from_the_older_state_is_fenced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, further: bool
) -> None:
    under_way: list[tuple[int, int, NewSnapshot]] = []

    def no_answer(_: Any, task_id: int, epoch: int, new: NewSnapshot) -> bool:
        under_way.append((task_id, epoch, new))
        raise CatalogUnavailable("no answer", determinate=False)

    first = TaskRunner.load(bench.row(1), bench.catalog, bench.store)
    take(first, 1, 2, 3)
    with monkeypatch.context() as patched:
        patched.setattr(runner, "switch_snapshot", no_answer)
        with pytest.raises(CatalogUnavailable):
            first.save()
    second = TaskRunner.load(bench.row(1), bench.catalog, bench.store)
    take(second, *range(1, 6 if further else 2))
    assert switch_snapshot(bench.catalog, *under_way[0]), "it lands late"
    with pytest.raises(Fenced):
        save(second)
    third = TaskRunner.load(bench.row(1), bench.catalog, bench.store)
    assert third.core.positions() == {1: {1: Position(seq=3)}}
    take(third, 4)
    save(third)
    assert TaskRunner.load(bench.row(1), bench.catalog, bench.store).core.positions() == {1: {1: Position(seq=4)}}
