"""What is merged, and which tables get a base: properties of any plan, and the cases that the rules are about."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from compactor.core.base_plan import BasePlanRow, BasePlanSettings, BaseTable, outlived, plan_bases
from compactor.core.plan import PlanSettings, plan, unfinished
from compactor.core.results import BaseFile, BaseResult
from compactor.task import Failed
from tests.kit.catalog_cases import T, info
from tistream.catalog.rows.bases import BaseRow
from tistream.catalog.rows.compaction import Piece
from tistream.catalog.rows.segments import SegmentRow, segment_in
from tistream.catalog.rows.tenants import TaskKind
from tistream.codec.wire import decode, encode

TARGET = 1000
SETTINGS = PlanSettings(target_bytes=TARGET, inputs_min=3, budget_bytes=1 << 40)


def pieces(*sizes: int, task_id: int = 1, first: int = 1) -> list[Piece]:
    """Neighbours of these stored bytes."""
    return [
        Piece(
            object_key=f"o/{first + n:04d}",
            task_id=task_id,
            segments=1,
            rows=1,
            stored_bytes=size,
            lo_ts=10 * (first + n),
            hi_ts=10 * (first + n) + 9,
        )
        for n, size in enumerate(sizes)
    ]


def sizes(given: list[Piece], settings: PlanSettings = SETTINGS) -> list[list[int]]:
    return [[p.stored_bytes for p in group.pieces] for group in plan(given, settings)]


SIZES = st.lists(st.one_of(st.integers(1, 40), st.integers(1, 2 * TARGET)), max_size=40)


@given(SIZES, SIZES, st.integers(2, 5), st.randoms())
def test_any_plan_merges_neighbours_and_pays(low: list[int], high: list[int], inputs_min: int, rand: object) -> None:
    settings = PlanSettings(target_bytes=TARGET, inputs_min=inputs_min, budget_bytes=1 << 40)
    given = {1: pieces(*low, task_id=1), 2: pieces(*high, task_id=2)}
    mixed = given[1] + given[2]
    rand.shuffle(mixed)  # type: ignore[attr-defined]
    groups = plan(mixed, settings)
    assert groups == plan(given[2] + given[1], settings), "the order in which pieces are listed says nothing"
    merged = [(p.object_key, p.task_id) for group in groups for p in group.pieces]
    assert len(merged) == len(set(merged))
    for group in groups:
        every = given[group.task_id]
        at = every.index(group.pieces[0])
        assert list(group.pieces) == every[at : at + len(group.pieces)], "neighbours of one task"
        bytes_of = [p.stored_bytes for p in group.pieces]
        assert inputs_min <= len(bytes_of)
        assert sum(bytes_of) <= TARGET
        assert 2 * max(bytes_of) <= sum(bytes_of)


@given(SIZES)
def test_merging_ends_and_leaves_few_pieces(given: list[int]) -> None:
    """Played until there is nothing to do: no byte was written more often than the sizes allow, little is left."""
    alive = [(size, 0) for size in given]  # stored bytes, how often the oldest byte was rewritten
    for _ in range(100):
        groups = plan(pieces(*(size for size, _ in alive)), SETTINGS)
        if not groups:
            break
        for group in reversed(groups):
            first = int(group.pieces[0].object_key[2:]) - 1
            merged = alive[first : first + len(group.pieces)]
            alive[first : first + len(merged)] = [(sum(s for s, _ in merged), 1 + max(n for _, n in merged))]
    else:
        raise AssertionError("it does not end")
    assert all(n <= math.log2(TARGET) for _, n in alive)


def test_small_neighbours_are_merged_up_to_the_target() -> None:
    assert sizes(pieces(*[300] * 7)) == [[300] * 3, [300] * 3]


def test_what_is_large_stays_and_nothing_is_merged_across_it() -> None:
    assert sizes(pieces(10, 10, 500, 10, 10)) == []
    assert sizes(pieces(10, 10, 10, 500, 20, 20, 20)) == [[10] * 3, [20] * 3]


def test_a_large_one_among_small_ones_is_not_written_again_for_them() -> None:
    assert sizes(pieces(400, 10, 10, 10)) == [[10] * 3]
    assert sizes(pieces(10, 10, 10, 400, 5, 5)) == [[10] * 3]
    assert sizes(pieces(400, 150, 150, 150)) == [[400, 150, 150, 150]]


def test_the_budget_takes_the_oldest_and_at_least_one() -> None:
    given = pieces(*[300] * 6) + pieces(*[200] * 3, task_id=2, first=100)
    small = PlanSettings(target_bytes=TARGET, inputs_min=3, budget_bytes=1)
    assert sizes(given, small) == [[300] * 3]
    two = PlanSettings(target_bytes=TARGET, inputs_min=3, budget_bytes=1900)
    assert sizes(given, two) == [[300] * 3, [300] * 3]


def test_what_unpacks_large_is_cut_by_its_unpacked_bytes_and_rows() -> None:
    packed = [replace(p, raw_bytes=300, rows=10) for p in pieces(*[1] * 12)]
    by_bytes = replace(SETTINGS, raw_bytes_max=1000, rows_max=1 << 30)
    assert [len(g.pieces) for g in plan(packed, by_bytes)] == [3, 3, 3, 3]
    by_rows = replace(SETTINGS, raw_bytes_max=1 << 30, rows_max=45)
    assert [len(g.pieces) for g in plan(packed, by_rows)] == [4, 4, 4]
    packed[4] = replace(packed[4], raw_bytes=500)
    assert [[p.raw_bytes for p in g.pieces] for g in plan(packed, by_bytes)] == [[300] * 3] * 3, "it is full"


@given(st.lists(st.tuples(st.integers(1, 600), st.integers(1, 600), st.integers(1, 600)), max_size=40))
def test_no_group_is_over_any_bound(given: list[tuple[int, int, int]]) -> None:
    sized_pieces = [
        replace(p, raw_bytes=raw, rows=rows)
        for p, (_, raw, rows) in zip(pieces(*[size for size, _, _ in given]), given, strict=True)
    ]
    for group in plan(sized_pieces, replace(SETTINGS, raw_bytes_max=TARGET, rows_max=TARGET)):
        assert group.stored_bytes <= TARGET
        assert sum(p.raw_bytes for p in group.pieces) <= TARGET
        assert sum(p.rows for p in group.pieces) <= TARGET


@given(SIZES, st.integers(1, 10))
def test_a_log_that_is_looked_at_in_parts_gives_the_groups_that_it_has(given: list[int], part: int) -> None:
    every = pieces(*given)
    carried: list[Piece] = []
    for at in range(0, len(every) + part, part):
        seen = [*carried, *every[at : at + part]]
        if groups := plan(seen, SETTINGS):
            assert set(groups[0].pieces) <= set(every)
            return
        carried = unfinished(seen, SETTINGS)
    assert plan(every, SETTINGS) == []


@given(SIZES, st.integers(2, 9), st.data())
def test_what_is_excluded_parts_its_neighbours(low: list[int], most: int, data: st.DataObject) -> None:
    given_ = pieces(*low)
    names = [piece.object_key for piece in given_]
    excluded = data.draw(st.frozensets(st.sampled_from(names))) if names else frozenset[str]()
    settings = replace(SETTINGS, pieces_max=most)
    groups = plan(given_, settings, excluded)
    for group in groups:
        names_of_group = [piece.object_key for piece in group.pieces]
        assert not excluded.intersection(names_of_group)
        assert len(names_of_group) <= most
        at = names.index(names_of_group[0])
        assert names[at : at + len(names_of_group)] == names_of_group, "neighbours"
    alone = [replace(p, stored_bytes=TARGET) if p.object_key in excluded else p for p in given_]
    assert [g.pieces for g in groups] == [g.pieces for g in plan(alone, settings)], "as if they were full"


LARGE = 1 << 40


def segment(name: str, tables: tuple[int, int], ts: tuple[int, int], length: int = 10) -> SegmentRow:
    whole = segment_in(name, info(0, tables[0], b"a", length=length))
    return replace(whole, table_hi=tables[1], lo_ts=ts[0], hi_ts=ts[1], kind=TaskKind.DATA)


def table(table_id: int, after_ts: int = 0, stored: int = 0) -> BaseTable:
    row = segment_in("s", info(0, table_id, b"\x00a", length=stored))
    return BaseTable(table_id=table_id, after_ts=after_ts, rows=(row,) if stored else ())


def settings(ratio: float = 0, least: int = 0, group: int = LARGE, budget: int = LARGE) -> BasePlanSettings:
    return BasePlanSettings(tail_ratio=ratio, tail_bytes_min=least, group_bytes=group, budget_bytes=budget)


def base(table_id: int, ts: int) -> BaseRow:
    return BaseRow(tenant=T, table_id=table_id, ts=ts, seed_ts=0, rows=1, bytes=1)


LOG = [segment("a", (1, 2), (1, 10)), segment("b", (2, 3), (5, 20)), segment("c", (9, 9), (11, 20), 30)]


def shown(tables: list[BaseTable], ts: int, **given: float) -> list[tuple[list[int], list[str]]]:
    groups = plan_bases(tables, LOG, ts, settings(**given))  # type: ignore[arg-type]
    return [([t.table_id for t in g.tables], [s.object_key for s in g.segments]) for g in groups]


def test_tables_that_share_segments_read_them_once() -> None:
    assert shown([table(2), table(1), table(3)], 20) == [([1, 2, 3], ["a", "b"])]


def test_what_lies_outside_the_tail_is_not_read() -> None:
    assert shown([table(2, after_ts=10)], 20) == [([2], ["b"])]
    assert shown([table(2)], 4) == [([2], ["a"])]
    assert shown([table(2, after_ts=20), table(5), table(9, after_ts=5)], 10) == [], "no tail at or below 10"


def test_a_base_is_worth_it_when_the_tail_has_grown_to_its_share() -> None:
    assert shown([table(1, stored=10), table(3, stored=11)], 20, ratio=1) == [([1], ["a"])]
    assert shown([table(1, stored=10), table(3, stored=11)], 20, ratio=0.5) == [([1, 3], ["a", "b"])]
    assert shown([table(1), table(9)], 20, least=11) == [([9], ["c"])]


def test_groups_end_at_their_size_and_the_budget_takes_the_largest_first() -> None:
    tables = [table(1), table(2, stored=5), table(9)]
    assert shown(tables, 20, group=25) == [([9], ["c"]), ([1, 2], ["a", "b"])]
    assert shown(tables, 20, group=24) == [([9], ["c"]), ([2], ["a", "b"]), ([1], ["a"])]
    assert shown(tables, 20, group=24, budget=54) == [([9], ["c"])]
    assert shown(tables, 20, group=24, budget=1) == [([9], ["c"])], "at least one"


def test_of_each_table_the_window_and_the_one_below_it_stay() -> None:
    bases = [base(t, ts) for t in (1, 2) for ts in (10, 20, 30, 40)]
    assert {(b.table_id, b.ts) for b in outlived(bases, [], 30)} == {(1, 10), (1, 20), (2, 10), (2, 20)}
    assert {(b.table_id, b.ts) for b in outlived(bases, [], 29)} == {(1, 10), (2, 10)}
    assert outlived(bases, [], 5) == []
    assert {b.ts for b in outlived(bases, [], 99)} == {10, 20, 30}


def test_what_a_seed_has_overtaken_goes_unless_it_is_the_newest() -> None:
    bases = [base(1, ts) for ts in (10, 20, 30)]
    assert [b.ts for b in outlived(bases, [bases[0]], 1)] == [10]
    assert [b.ts for b in outlived(bases, bases, 1)] == [10, 20]
    assert [b.ts for b in outlived(bases, [bases[1]], 25)] == [20], "the one below the window that is read stays"


def test_plan_rows_and_results_survive_as_text() -> None:
    row = BasePlanRow(
        tenant=T, job=3, range_id=1, ts=1 << 62, tables=(table(5, 7, stored=4), table(6)), segments=tuple(LOG)
    )
    assert decode(BasePlanRow, encode(row)) == row
    file = BaseFile(object_key="k", object_bytes=9, segments=(info(0, 5, b"\xff"),))
    result = BaseResult(range_id=1, ts=1 << 62, files=(file,), rows={5: 7}, seconds=0.25)
    assert decode(BaseResult | Failed, encode(result)) == result
