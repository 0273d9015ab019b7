"""Which tables need a seed because a column change has rewritten their rows."""

from __future__ import annotations

import pytest

from schemas.reseeding import wanted_seeds
from tests.kit.column_run import ADD_COLUMN, END, MODIFY_COLUMN, TENANT, ColumnRun, Ddl, TableRun
from tests.kit.tidb_columns import TYPES, column_info
from tistream.catalog.rows.bases import BaseRow
from tistream.catalog.rows.seeds import SeedRow

MULTI_SCHEMA_CHANGE = 61
ADDED, CHANGED, AGAIN = 120, 200, 300


def table(name: str, *changes: tuple[int, int, int]) -> TableRun:
    """A table with a column `c`; a change is (commit_ts, action, column id afterwards)."""
    return TableRun(
        name=name,
        ddls=[
            Ddl(commit_ts=at, type=action, columns=(column_info(TYPES[0], id_, "c", 1),))
            for at, action, id_ in ((ADDED, ADD_COLUMN, 2), *changes)
        ],
    )


def seed(ts: int, table_id: int = 0) -> SeedRow:
    return SeedRow(tenant=TENANT, ts=ts, table_id=table_id, rows=0, bytes=0, manifest_key="")


def wanted(run: ColumnRun, *seeds: SeedRow) -> dict[str, list[int]]:
    """Table -> timestamps of the reads that would do."""
    seeds_found = wanted_seeds(run.history, sorted(seeds, key=lambda each: -each.ts))
    assert all(read.physical_ids == each.table.physical_ids for each in seeds_found for read in each.reads)
    return {each.table.name: [read.ts for read in each.reads] for each in seeds_found}


@pytest.mark.parametrize("action", [MODIFY_COLUMN, MULTI_SCHEMA_CHANGE])
def test_a_rewritten_table_is_read_just_above_its_ddl_or_now(action: int) -> None:
    assert wanted(ColumnRun([table("t", (CHANGED, action, 3)), table("other")])) == {"t": [CHANGED + 1, END]}


def test_a_change_that_keeps_the_bytes_rewrites_nothing() -> None:
    assert wanted(ColumnRun([table("t", (CHANGED, MODIFY_COLUMN, 2))])) == {}


def test_the_newest_of_several_changes_counts() -> None:
    assert wanted(ColumnRun([table("t", (CHANGED, MODIFY_COLUMN, 3), (AGAIN, MODIFY_COLUMN, 4))])) == {
        "t": [AGAIN + 1, END]
    }


def test_a_seed_above_the_ddl_is_enough_whether_of_the_table_or_of_all() -> None:
    run = ColumnRun([table("t", (CHANGED, MODIFY_COLUMN, 3)), table("u", (AGAIN, MODIFY_COLUMN, 3))])
    of_t, of_u = run.history.find("d", "t", END).id, run.history.find("d", "u", END).id
    assert wanted(run, seed(CHANGED), seed(CHANGED + 1, of_u)) == {"t": [CHANGED + 1, END], "u": [AGAIN + 1, END]}
    assert wanted(run, seed(CHANGED + 1, of_t)) == {"u": [AGAIN + 1, END]}
    assert wanted(run, seed(CHANGED + 50)) == {"u": [AGAIN + 1, END]}
    assert wanted(run, seed(AGAIN + 1)) == {}


def test_a_ddl_at_the_newest_known_timestamp_waits() -> None:
    run = ColumnRun([table("t", (CHANGED, MODIFY_COLUMN, 3))])
    run.history._resolved_ts = CHANGED
    assert wanted(run) == {}
    run.history.advance(CHANGED + 1)
    assert wanted(run) == {"t": [CHANGED + 1]}


def test_a_base_of_a_seed_that_retention_has_deleted_is_enough() -> None:
    run = ColumnRun([table("t", (CHANGED, MODIFY_COLUMN, 3))])
    (id_,) = run.history.find("d", "t", END).physical_ids

    def of(*seed_ts: int) -> dict[str, list[int]]:
        bases = [BaseRow(tenant=TENANT, table_id=id_, ts=END - 1, seed_ts=ts, rows=0, bytes=0) for ts in seed_ts]
        return {each.table.name: [r.ts for r in each.reads] for each in wanted_seeds(run.history, [], lambda _: bases)}

    assert of() == of(0) == of(CHANGED) == {"t": [CHANGED + 1, END]}
    assert of(CHANGED + 1) == of(0, CHANGED + 1) == {}
