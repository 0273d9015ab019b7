from __future__ import annotations

from dataclasses import replace

import pytest

from sorter.core.task_core import NeedResubscribe, TaskCore
from tests.kit.routed import routed
from tests.kit.sorter_oracle import C, D, Mark, P, Row
from tests.kit.sorter_states import tables_of
from tests.kit.sorter_world import File, feed_batch, served
from tistream.errors import FeedGap, TiStreamError, UpstreamContractViolated
from tistream.feed.protocol import FeedBatch
from tistream.ids import Position
from tistream.keyrange import KeyRange

MARK = Mark(region_id=3, start=b"", end=b"", checkpoint_ts=10, resolved_ts=0)
OTHER = replace(MARK, open_ts=7)  # another subscription, which has promised nothing yet


class Driver:
    """A core with files of one store."""

    def __init__(self, core: TaskCore | None = None) -> None:
        self.core = core or TaskCore(1, KeyRange(), 10, 10)
        self.seq = 0

    def file(self, *rows: Row, upto: int, cut: int | None = None, mark: Mark = MARK) -> list[NeedResubscribe]:
        self.seq += 1
        marks = (replace(mark, resolved_ts=upto),)
        cut_ts = upto if cut is None else cut
        file = File(store_id=1, incarnation=1, seq=self.seq, cut_ts=cut_ts, rows=rows, marks=marks)
        effects = self.core.handle(routed(feed_batch(file), self.core.range))
        self.core.check()
        return effects

    def write(self) -> list[tuple[bytes, int, bytes | None]]:
        w = self.core.pending()
        assert w is not None
        rows = served(self.core.take(w).table())
        self.core.flushed(w)
        self.core.check()
        return [(r.key, r.commit_ts, r.value) for r in rows]


def prewrite(key: bytes, start_ts: int, value: bytes = b"v") -> Row:
    return Row(kind=P, key=key, start_ts=start_ts, value=value)


def commit(key: bytes, start_ts: int, commit_ts: int) -> Row:
    return Row(kind=C, key=key, start_ts=start_ts, commit_ts=commit_ts)


def whole(key: bytes, start_ts: int, commit_ts: int, value: bytes = b"v") -> Row:
    return Row(kind=D, key=key, start_ts=start_ts, commit_ts=commit_ts, value=value)


@pytest.fixture
def d() -> Driver:
    return Driver()


def test_an_earlier_attempt_may_have_succeeded(d: Driver) -> None:
    d.file(whole(b"a", 11, 12), upto=20)
    d.core.take(20)
    d.file(whole(b"b", 21, 22), upto=30)
    d.core.take(30)
    d.core.flushed(20)
    assert d.write() == [(b"b", 22, b"v")]


def test_only_what_was_taken_can_be_flushed_and_only_what_is_complete_taken(d: Driver) -> None:
    d.file(upto=20)
    with pytest.raises(TiStreamError, match="above the watermark"):
        d.core.take(21)
    with pytest.raises(TiStreamError, match="above the watermark"):
        d.core.take(10)
    with pytest.raises(TiStreamError, match="without take"):
        d.core.flushed(20)


def test_a_late_commit_with_its_prewrite_is_accepted_above_the_highest_attempted_flush(d: Driver) -> None:
    d.file(prewrite(b"a", 11), upto=20, cut=30)
    d.file(commit(b"a", 11, 15), upto=21, cut=31, mark=OTHER)
    assert d.write() == [(b"a", 15, b"v")]


def test_a_late_commit_at_or_below_the_highest_attempted_flush_violates_the_contract_even_with_its_prewrite(
    d: Driver,
) -> None:
    d.file(prewrite(b"a", 11), upto=20, cut=30)
    d.core.take(20)  # its fate is unknown
    with pytest.raises(UpstreamContractViolated):
        d.file(commit(b"a", 11, 15), upto=21, cut=31, mark=OTHER)
    assert d.core.positions() == {1: {1: Position(seq=1)}}


def test_what_was_handed_out_counts_although_w_of_the_key_is_further(d: Driver) -> None:
    d.file(prewrite(b"a", 11), upto=30, cut=30)
    d.core.take(20)  # a part of what could be written; its fate is unknown
    with pytest.raises(UpstreamContractViolated):
        d.file(commit(b"a", 11, 15), upto=31, cut=31, mark=OTHER)


def test_a_contract_violation_names_the_row_the_region_and_the_file(d: Driver) -> None:
    d.file(commit(b"a", 11, 15), upto=14)
    with pytest.raises(UpstreamContractViolated) as e:
        d.file(upto=20)
    facts = e.value.facts
    assert (facts["key"], facts["start_ts"], facts["commit_ts"]) == (b"a", 11, 15)
    assert (facts["region_id"], facts["store_id"], facts["incarnation"], facts["seq"]) == (3, 1, 1, 1)
    assert facts["uncovered_by"] == "store 1 file 1/2"
    assert facts["task"] == 1


def test_a_refused_batch_changes_nothing(d: Driver) -> None:
    d.file(prewrite(b"a", 11), upto=20, cut=30)
    before = tables_of(d.core.snapshot())
    with pytest.raises(UpstreamContractViolated):
        d.file(prewrite(b"b", 12), whole(b"c", 14, 15), commit(b"d", 11, 15), upto=40, mark=OTHER)
    after = tables_of(d.core.snapshot())
    assert all(table.equals(before[name]) for name, table in after.items())


def test_a_committed_row_decides_its_transaction_in_whatever_form_it_came_before(d: Driver) -> None:
    d.file(prewrite(b"a", 11), commit(b"a", 11, 15), prewrite(b"b", 12), upto=12, cut=16)
    d.file(whole(b"a", 11, 15, b"whole"), whole(b"b", 12, 16, b"whole"), upto=30)
    assert d.core.stats().waiting_commits == d.core.stats().open_prewrites == 0
    assert d.write() == [(b"a", 15, b"whole"), (b"b", 16, b"whole")]


def test_prewrites_of_what_was_written_already_are_not_kept(d: Driver) -> None:
    d.file(whole(b"a", 11, 12), upto=20)
    d.write()
    d.file(prewrite(b"a", 11), commit(b"a", 11, 12), upto=20, cut=30, mark=OTHER)
    stats = d.core.stats()
    assert (stats.open_prewrites, stats.duplicates, stats.dropped_by_store) == (0, 1, {1: 1})


def test_a_prewrite_of_a_subscription_that_becomes_ready_gets_its_ready_ts(d: Driver) -> None:
    old = Mark(region_id=3, start=b"", end=b"", checkpoint_ts=10, resolved_ts=0, open_ts=11, ready_ts=0)
    d.file(prewrite(b"a", 11, b"old"), upto=0, cut=12, mark=old)
    d.file(upto=10, mark=replace(old, ready_ts=13))
    new = replace(old, version=2, open_ts=14, ready_ts=15)
    assert d.file(prewrite(b"a", 11, b"new"), commit(b"a", 11, 16), upto=20, mark=new) == []
    assert d.write() == [(b"a", 16, b"new")]


def undecided(d: Driver) -> list[NeedResubscribe]:
    old = Mark(region_id=3, start=b"", end=b"", checkpoint_ts=10, resolved_ts=0, open_ts=11, ready_ts=0)
    d.file(prewrite(b"a", 11, b"old"), upto=0, cut=12, mark=old)
    new = replace(old, version=2, open_ts=14, ready_ts=15)
    return d.file(prewrite(b"a", 11, b"new"), commit(b"a", 11, 16), upto=20, mark=new)


def test_an_undecided_commit_is_decided_by_a_copy_that_brings_the_value(d: Driver) -> None:
    undecided(d)
    d.file(replace(commit(b"a", 11, 16), value=b"new"), upto=30)
    assert d.core.watermark() == 30
    assert d.write() == [(b"a", 16, b"new")]


def test_an_undecided_commit_holds_the_watermark_at_once_and_asks_again_after_a_restart(d: Driver) -> None:
    undecided(d)
    assert d.file(upto=30) == []
    again = Driver(TaskCore(1, KeyRange(), 10, 10))
    snapshot = d.core.snapshot()
    again.core.restore(snapshot, snapshot.positions)
    again.seq = d.seq
    assert again.core.watermark() == 15
    assert again.core.stats().undecided_commits == 1
    (effect,) = again.file(upto=30)
    assert (effect.undecided.key, effect.undecided.commit_ts) == (b"a", 16)
    assert again.file(upto=31) == []
    assert again.core.watermark() == 15


def test_a_restored_core_drops_what_was_written_since_and_numbers_its_rows_on(d: Driver) -> None:
    d.file(prewrite(b"a", 11), commit(b"a", 11, 15), prewrite(b"b", 12), upto=12, cut=16)
    snapshot = d.core.snapshot()
    core = TaskCore(1, KeyRange(), 10, 15)
    core.restore(snapshot, snapshot.positions)
    core.check()
    stats = core.stats()
    assert (stats.open_prewrites, stats.waiting_commits, stats.ready_rows, stats.watermark) == (1, 0, 0, 12)
    again = Driver(core)
    again.seq = 1
    again.file(prewrite(b"b", 12, b"later"), upto=12, cut=17)
    again.file(commit(b"b", 12, 18), upto=20)
    assert again.write() == [(b"b", 18, b"later")]


def test_positions_are_dense_for_each_incarnation_of_each_store() -> None:
    core = TaskCore(1, KeyRange(), 10, 10)

    def batch(store: int, life: int, seq: int, *, closes: bool = False) -> None:
        core.handle(
            feed_batch(File(store_id=store, incarnation=life, seq=seq, cut_ts=1, rows=(), marks=(), closes=closes))
        )

    batch(1, 1, 1)
    batch(2, 1, 1)
    batch(1, 2, 1)  # another life does not wait for the older one
    batch(1, 1, 2)
    batch(1, 1, 1)
    with pytest.raises(FeedGap) as gap:
        batch(1, 1, 4)
    assert (gap.value.facts["expected"], gap.value.facts["found"]) == (3, 4)
    with pytest.raises(FeedGap):
        batch(1, 1, 3, closes=True)  # its end lies behind a file that never came
    batch(1, 1, 2, closes=True)
    batch(1, 1, 2, closes=True)
    batch(1, 1, 2)
    batch(1, 1, 3)  # a late file of a life that has ended is not used
    batch(3, 1, 0, closes=True)  # a life that never had a file
    batch(2, 1, 0, closes=True)  # more was consumed than the end says: all of that was used
    assert core.positions() == {
        1: {2: Position(seq=1)},  # life 1 has ended and is forgotten
        2: {1: Position(seq=1, closed=True)},
        3: {1: Position(seq=0, closed=True)},
    }
    with pytest.raises(FeedGap):
        batch(2, 1, 2)


def test_ended_incarnations_are_forgotten_and_their_late_files_are_ignored(d: Driver) -> None:
    core = d.core
    for life in range(1, 301):
        core.handle(life_batch(life, 1))
        core.handle(life_batch(life, 1, closes=True))
        assert core.positions() == {1: {life: Position(seq=1, closed=True)}}
    again = TaskCore(1, KeyRange(), 10, 10)
    again.restore(core.snapshot(), core.positions())
    for life in (1, 150, 299):
        before = again.positions()
        assert again.handle(life_batch(life, 1)) == again.handle(life_batch(life, 2)) == []
        assert again.handle(life_batch(life, 2, closes=True)) == []
        assert again.positions() == before
    again.handle(life_batch(301, 1))
    assert again.positions() == {1: {301: Position(seq=1)}}


def life_batch(life: int, seq: int, *, closes: bool = False) -> FeedBatch:
    return feed_batch(File(store_id=1, incarnation=life, seq=seq, cut_ts=1, rows=(), marks=(), closes=closes))


def test_raw_rows_are_told_apart_by_key_and_timestamp(d: Driver) -> None:
    d.file(whole(b"r", 11, 11, b"1"), whole(b"r", 11, 11, b"1"), whole(b"r", 12, 12, b"2"), upto=20)
    d.file(Row(kind=D, key=b"r", start_ts=21, commit_ts=21, op=2), upto=30)
    assert d.write() == [(b"r", 11, b"1"), (b"r", 12, b"2"), (b"r", 21, None)]
