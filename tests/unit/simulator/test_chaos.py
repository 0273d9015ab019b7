"""The schedule of harm, the judge of what readers get, and the times of takeovers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

import pyarrow as pa
import pytest

from simulator.chaos.plan import BUCKET, CONTROL, DATABASE, OVERLAP_MAX, PROCESS, Harm, schedule
from simulator.chaos.run import ROWS_MIN, ChaosReport
from simulator.judging.core.judge import Judge, known
from simulator.judging.core.takeover import RETURN_S, Takeovers, percentile
from tistream.limits import LEASE_MS
from tistream.model.change import Op

Holding: TypeAlias = dict[tuple[object, ...], tuple[str | None, int]]  #: part of the work: its owner and epoch

TARGETS = {"sorter-1": PROCESS, "sorter-2": PROCESS, "database": DATABASE, "bucket": BUCKET, "control": CONTROL}


#: what each key held before
BEFORE = {(b"a", 20): b"1"}


def rows(
    *versions: tuple[bytes, int, bytes | None], before: Mapping[tuple[bytes, int], bytes | None] = BEFORE
) -> pa.Table:
    keys, times, values = zip(*versions, strict=True) if versions else ((), (), ())
    ops = [Op.DELETE if value is None else Op.PUT for value in values]
    return pa.table(
        {
            "key": pa.array(keys, pa.binary()),
            "op": pa.array(ops, pa.uint8()),
            "commit_ts": pa.array(times, pa.uint64()),
            "value": pa.array(values, pa.binary()),
            "old_value": pa.array([before.get(at) for at in zip(keys, times, strict=True)], pa.binary()),
        }
    )


def test_a_schedule_comes_from_its_seed_alone() -> None:
    one, same, other = (list(schedule(seed, 600, TARGETS)) for seed in (1, 1, 2))
    assert one == same
    assert one != other
    assert {event.target for event in one} == set(TARGETS)
    assert {event.harm for event in one} == set(Harm)


@pytest.mark.parametrize("seed", range(20))
def test_nobody_is_hurt_twice_at_once_and_never_everybody(seed: int) -> None:
    events = list(schedule(seed, 300, TARGETS, every_s=1.0))
    assert len(events) > 30
    for event in events:
        others = [e for e in events if e is not event and e.at_s <= event.at_s < e.end_s]
        assert len(others) < OVERLAP_MAX
        assert event.target not in {e.target for e in others}
        assert event.end_s <= 300
        assert event.harm is not Harm.PAUSE or event.lasts_s > LEASE_MS / 1000


TRUTH = {
    (b"a", 10): known((Op.PUT, b"1", None)),
    (b"a", 20): known((Op.DELETE, b"noted", b"1")),
    (b"b", 20): known((Op.PUT, b"2", None)),
    (b"c", 40): known((Op.PUT, b"3", None)),
}


def judged(*pages: tuple[pa.Table, int, bool]) -> dict[str, int]:
    judge = Judge("r")
    for page in pages:
        judge.page(*page)
    judge.compare(TRUTH)
    assert bool(judge.examples) is not judge.held
    return dict(judge.counts)


def test_what_is_right_is_found_right() -> None:
    first = rows((b"a", 10, b"1"))
    rest = rows((b"a", 20, None), (b"b", 20, b"2"))
    assert judged((first, 30, True), (rest, 30, False), (rows(), 39, False)) == {}
    assert judged((first, 15, False), (rest, 30, True), (rows((b"c", 40, b"3")), 40, False)) == {}


def test_what_is_above_the_last_complete_page_may_still_come() -> None:
    assert judged((rows((b"a", 10, b"1")), 30, True)) == {}


@pytest.mark.parametrize(
    ("pages", "counts"),
    [
        ([(rows((b"a", 10, b"1")), 30, False)], {"lost": 2}),
        ([(rows((b"a", 10, b"1"), (b"a", 10, b"1")), 15, False)], {"repeated": 1}),
        ([(rows((b"a", 10, b"wrong")), 15, False)], {"foreign": 1}),
        ([(rows((b"a", 10, b"1"), (b"z", 11, b"1")), 15, False)], {"foreign": 1}),
        ([(rows((b"a", 10, None)), 15, False)], {"foreign": 1}),
        ([(rows(), 12, False), (rows((b"a", 10, b"1")), 15, False)], {"late": 1}),
        ([(rows((b"a", 10, b"1")), 15, False), (rows(), 14, False)], {"fell": 1}),
        ([(rows((b"a", 20, None), (b"b", 20, b"2"), (b"a", 10, b"1")), 30, False)], {"disorder": 1}),
    ],
)
def test_what_is_wrong_is_found(pages: list[tuple[pa.Table, int, bool]], counts: dict[str, int]) -> None:
    assert judged(*pages) == counts


@pytest.mark.parametrize("before", [{}, {(b"a", 20): b"0"}, {(b"a", 20): b""}])
def test_a_wrong_old_value_is_found(before: dict[tuple[bytes, int], bytes | None]) -> None:
    page = rows((b"a", 10, b"1"), (b"a", 20, None), (b"b", 20, b"2"), before=before)
    assert judged((page, 30, False)) == {"foreign": 1}


def test_an_old_value_of_a_key_that_did_not_exist_is_found() -> None:
    assert judged((rows((b"a", 10, b"1"), before={(b"a", 10): b"0"}), 15, False)) == {"foreign": 1}


FULL = ChaosReport(seed=1, seconds=1, committed=5000, read=5000, read_again=5000, healed_s=1.0)


def test_a_run_holds_only_with_rows() -> None:
    assert FULL.held
    assert not replace(FULL, committed=0, read=0, read_again=0).held
    assert not replace(FULL, committed=ROWS_MIN - 1, read=ROWS_MIN - 1, read_again=ROWS_MIN - 1).held
    assert not replace(FULL, read=0).held
    assert not replace(FULL, read_again=0).held
    assert not replace(FULL, findings={"lost": 1}).held
    assert not replace(FULL, healed_s=None).held


def test_an_item_is_taken_over_when_its_epoch_has_risen() -> None:
    takeovers = Takeovers()
    before: Holding = {("task", 1): ("s1", 3), ("task", 2): ("s1", 7), ("task", 3): ("s2", 1)}
    takeovers.harmed("s1", before, 100.0)
    takeovers.harmed("nobody", before, 100.0)
    assert takeovers.seen(before, 105.0) == []
    takeovers.seen({**before, ("task", 1): ("s2", 4)}, 109.0)
    assert takeovers.seconds == []
    assert takeovers.seen({**before, ("task", 1): ("s2", 4), ("task", 2): ("s1", 8)}, 110.5) == [("s1", 10.5)]
    assert takeovers.seconds == [10.5]


def test_a_sleeper_that_comes_back_before_anybody_took_over_ends_its_time() -> None:
    holding: Holding = {("task", 1): ("s1", 3)}
    takeovers = Takeovers()
    takeovers.harmed("s1", holding, 100.0)
    takeovers.back("s2", 101.0)
    takeovers.back("s1", 113.0)
    takeovers.seen(holding, 113.0 + RETURN_S)
    assert (takeovers.seconds, takeovers.returned) == ([], 0), "it may still be given to another"
    takeovers.seen(holding, 114.0 + RETURN_S)
    assert (takeovers.seconds, takeovers.returned) == ([13.0], 1)
    takeovers.harmed("s1", holding, 200.0)
    takeovers.back("s1", 212.0)
    takeovers.seen({("task", 1): ("s2", 4)}, 214.0)
    assert (takeovers.seconds, takeovers.returned) == ([13.0, 14.0], 1), "its lease had run out"


def test_a_sleeper_that_is_hurt_again_is_another_case() -> None:
    holding: Holding = {("task", 1): ("s1", 3)}
    takeovers = Takeovers()
    takeovers.harmed("s1", holding, 100.0)
    takeovers.back("s1", 112.0)
    takeovers.harmed("s1", holding, 118.0)
    takeovers.seen({("task", 1): ("s2", 4)}, 128.5)
    assert (takeovers.seconds, takeovers.returned) == ([12.0, 10.5], 1)


def test_while_nobody_could_take_over_no_time_passes() -> None:
    holding: Holding = {("task", 1): ("sorter-1", 3), ("store", 1): ("dispatcher-1", 2)}
    takeovers = Takeovers()
    takeovers.harmed("sorter-1", holding, 100.0)
    takeovers.harmed("dispatcher-1", holding, 101.0)
    takeovers.hold(104.0)
    takeovers.hold(106.0, "sorter")
    takeovers.seen({("task", 1): ("sorter-2", 4), ("store", 1): ("dispatcher-2", 3)}, 112.0)
    assert sorted(takeovers.seconds) == [6.0, 8.0]


def test_while_the_database_is_away_nothing_is_measured() -> None:
    takeovers = Takeovers()
    takeovers.harmed("s1", {("task", 1): ("s1", 3)}, 1.0)
    takeovers.void()
    takeovers.seen({("task", 1): ("s2", 4)}, 90.0)
    assert takeovers.seconds == []


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([], 0.5) is None
    assert percentile([3.0], 0.99) == 3.0
    assert percentile([4.0, 1.0, 2.0, 3.0], 0.5) == 3.0
    assert percentile([float(n) for n in range(100)], 0.99) == 99.0
