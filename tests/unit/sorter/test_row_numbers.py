"""Row numbers order the prewrites of one key. They are not unique in a task that was put together from several: each
part numbers the rows that its dispatcher cut for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dispatcher.core.router import directory, route
from sorter.core.task_core import TaskCore
from sorter.state.join_snapshots import joined
from sorter.state.merge_barrier import at_barrier, furthest, has_reached
from tests.kit.sorter_oracle import C, Mark, P, Row
from tests.kit.sorter_states import Bucket, SnapshotFiles
from tests.kit.sorter_world import File, feed_batch, served
from tistream.feed.protocol import FeedBatch
from tistream.keyrange import KeyRange

LEFT, RIGHT = KeyRange(b"", b"m"), KeyRange(b"m", b"")


def lock(key: bytes, value: bytes, start_ts: int = 15) -> Row:
    return Row(kind=P, key=key, start_ts=start_ts, value=value)


def file(seq: int, *rows: Row, upto: int, open_ts: int) -> FeedBatch:
    mark = Mark(
        region_id=1, start=b"", end=b"", checkpoint_ts=10, resolved_ts=upto, open_ts=open_ts, ready_ts=open_ts + 1
    )
    return feed_batch(File(store_id=1, incarnation=1, seq=seq, cut_ts=seq * 30, rows=rows, marks=(mark,)))


def give(core: TaskCore, batch: FeedBatch) -> int:
    """What a dispatcher cuts of a file for the task; how many new subscriptions the task asks for."""
    part = route(directory(batch.rows, batch.regions), core.range)
    effects = core.handle(
        FeedBatch(
            store_id=batch.store_id,
            incarnation=batch.incarnation,
            seq=batch.seq,
            cut_ts=batch.cut_ts,
            rows=part.rows,
            regions=part.regions,
        )
    )
    while core.settling:
        effects += core.settle()
    return len(effects)


def put_together(files: Sequence[FeedBatch]) -> TaskCore:
    """Two halves that read these files and became one: the state of a merge, and of a bulk replay in two parts."""
    bucket, states = Bucket(), []
    cores = [TaskCore(i, range_, 10, 10) for i, range_ in ((1, LEFT), (2, RIGHT))]
    for core in cores:
        for batch in files:
            give(core, batch)
    until = furthest(*(core.positions() for core in cores))
    assert all(has_reached(core.positions(), until) for core in cores)
    for core in cores:
        saved = SnapshotFiles(core.task_id, bucket)
        saved.save(core)
        state = saved.load()
        assert state is not None
        states.append(at_barrier(state, core.range, until))
    whole = bucket.core(3, KeyRange(), 10, 10)
    state = joined(KeyRange(), states)
    whole.restore(state, state.positions)
    whole.check()
    return whole


@pytest.mark.parametrize(
    ("first", "second", "value"),
    [
        pytest.param(
            [lock(b"b", b"-", 16), lock(b"c", b"-", 17), lock(b"a", b"1"), lock(b"y", b"-", 16), lock(b"x", b"old")],
            [lock(b"a", b"1"), lock(b"z", b"-", 18), lock(b"x", b"new")],
            b"new",
            id="a pipelined lock that was written anew keeps its newest value",
        ),
        pytest.param(
            [lock(b"a", b"1"), lock(b"x", b"2")],
            [lock(b"a", b"1"), lock(b"x", b"2")],
            b"2",
            id="a lock that is sent again unchanged is no doubt",
        ),
    ],
)
def test_a_task_that_was_two_decides_as_one_that_never_was(first: list[Row], second: list[Row], value: bytes) -> None:
    """A transaction holds a lock on either side of the cut, each sent by two subscriptions, one after the other. Both
    commits
    become due at once."""
    files = [file(1, *first, upto=14, open_ts=5), file(2, *second, upto=14, open_ts=40)]
    core = put_together(files)
    commits = [Row(kind=C, key=key, start_ts=15, commit_ts=70) for key in (b"a", b"x")]
    effects = give(core, file(3, *commits, upto=90, open_ts=40))
    assert (effects, core.pending()) == (0, 90)
    assert [(row.key, row.value) for row in served(core.take(90).table())] == [(b"a", b"1"), (b"x", value)]
