"""MODIFY COLUMN between all pairs of types: a frame shows a row from before as a read AS OF does, or refuses it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from reading.asof.core import columns
from reading.asof.core.projection import projected
from reading.core.changes import TableChanges
from reading.core.conform import DeliveredColumns
from reading.core.split import order_messages
from reading.pages import arrow
from reading.rows.scope import Scope
from schemas.layout import row_layout
from tests.kit.column_run import MODIFY_COLUMN, TENANT, ColumnRun, Ddl, TableRun, Write
from tests.kit.tidb_columns import TYPES, Default, Type, column_info, stored
from tistream.codec.newest import STATE
from tistream.codec.row.layout import storage_type
from tistream.codec.row.native import native
from tistream.errors import NotConvertible
from tistream.spark.columns import Conform, spark_schema

MADE, CHANGED, AGAIN, LATER = 120, 200, 300, 500
LEAST = {"BIGINT": 10, "DOUBLE": 8, "DECIMAL(65,30)": 12, "VARCHAR(20)": 25, "LONGBLOB": 15, "DATETIME": 2, "SET": 2}
SCOPE = Scope(tenant=TENANT, database="d", table="t")


def values_of(kind: Type) -> list[Default]:
    return [*kind.defaults[:2], kind.zero]


def changed_to(*kinds: Type, nth: int) -> ColumnRun:
    """A table with a column of each type, then each of `kinds`. One row from the beginning, one with NULLs."""
    olds = list(enumerate(TYPES, 2))
    ddls = [Ddl(commit_ts=MADE, type=5, columns=tuple(column_info(old, n, f"c{n}", n - 1) for n, old in olds))]
    ddls += [
        Ddl(
            commit_ts=at,
            type=MODIFY_COLUMN,
            columns=tuple(column_info(new, n + 100 * step, f"c{n}", n - 1) for n, _ in olds),
            query="ALTER TABLE t MODIFY COLUMN",
        )
        for step, (at, new) in enumerate(zip((CHANGED, AGAIN), kinds, strict=False), 1)
    ]
    row = {n: stored(old, values_of(old)[nth % len(values_of(old))]) for n, old in olds}
    writes = [Write(handle=1, commit_ts=150, value=row), Write(handle=2, commit_ts=160, value=dict.fromkeys(row))]
    return ColumnRun([TableRun(name="t", ddls=ddls, writes=writes)])


def as_of(run: ColumnRun, name: str) -> list[Any] | None:
    """What a read AS OF gives of one column of the two rows; None where it refuses."""
    table = projected(run.history.find("d", "t", LATER), [name])
    rows = run.rows.select(STATE.names)
    try:
        batch = columns.decoded(columns.readings(run.history, table, LATER), rows)
    except NotConvertible:
        return None
    (spec,) = row_layout(table).columns
    values: list[Any] = native(spec, batch.column(0)).to_pylist()
    # Spark has no DECIMAL of more than 38 digits
    return [f"{v:f}" if v is not None and pa.types.is_decimal256(storage_type(spec)) else v for v in values]


def in_frame(whole: DeliveredColumns, changes: list[TableChanges], name: str) -> list[Any] | None:
    """The same in a frame whose columns are of the same timestamp."""
    target = replace(whole, shown=projected(whole.table, [name]))
    query = spark_schema(arrow.no_rows(target).schema)
    try:
        page = arrow.in_columns_of(target, changes)
    except NotConvertible:
        return None
    (batch,) = Conform(query, str(LATER)).batches(page)
    values: list[Any] = batch.column(batch.schema.get_field_index(name)).to_pylist()
    return values


def check(run: ColumnRun) -> int:
    """The number of columns that both show."""
    shown, changes = 0, order_messages(run.decoded().changes, split=False)
    target = arrow.target_of(run.history, SCOPE, LATER)
    for n, old in enumerate(TYPES, 2):
        ours, theirs = in_frame(target, changes, f"c{n}"), as_of(run, f"c{n}")
        assert ours is None or ours == theirs, old.sql
        shown += ours is not None
        assert (ours is None) == (theirs is None), (old.sql, "refused by one only")
    return shown


@pytest.mark.parametrize("new", TYPES, ids=[kind.sql for kind in TYPES])
def test_every_type_becomes_every_type(new: Type) -> None:
    shown = check(changed_to(new, nth=TYPES.index(new)))
    assert shown >= LEAST.get(new.sql, 0)


def test_two_changes_one_after_the_other() -> None:
    kinds = {kind.sql: kind for kind in TYPES}
    fewer = replace(kinds["DECIMAL(10,3)"], decimal=1, sql="DECIMAL(10,1)")
    assert check(changed_to(fewer, kinds["DECIMAL(10,3)"], nth=0)) > 3, "rounded in between"
    assert check(changed_to(kinds["BIGINT"], kinds["VARCHAR(20)"], nth=0)) > 10
