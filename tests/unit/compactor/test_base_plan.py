"""Which tables get a base, in which groups, and which bases go."""

from __future__ import annotations

from compactor.base_task import BaseFile, BaseResult
from compactor.core.base_plan import BasePlanRow, BasePlanSettings, BaseTable, outlived, plan_bases
from compactor.task import Failed
from tests.kit.catalog_cases import T, info
from tistream.catalog.log.bases import BaseRow
from tistream.catalog.log.segments import SegmentRow
from tistream.catalog.tenancy.tenants import TaskKind
from tistream.codec.wire import decode, encode

LARGE = 1 << 40


def segment(name: str, tables: tuple[int, int], ts: tuple[int, int], length: int = 10) -> SegmentRow:
    return SegmentRow(
        number=0,
        start_key=b"a\xff",
        end_key=b"b",
        table_lo=tables[0],
        table_hi=tables[1],
        lo_ts=ts[0],
        hi_ts=ts[1],
        rows=1,
        offset=0,
        length=length,
        crc=1,
        object_key=name,
        task_id=1,
        kind=TaskKind.DATA,
    )


def table(table_id: int, after_ts: int = 0, stored: int = 0) -> BaseTable:
    row = SegmentRow(
        object_key="s",
        number=0,
        kind="seed",
        table_lo=table_id,
        table_hi=table_id,
        start_key=b"\x00a",
        end_key=b"\xff",
        rows=1,
        offset=0,
        length=stored,
        crc=1,
    )
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
