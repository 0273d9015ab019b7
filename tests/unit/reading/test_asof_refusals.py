"""Which of several MODIFY COLUMNs a refused read as of a timestamp names, and which timestamps it offers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from reading.asof.core import columns
from tests.kit.column_run import MODIFY_COLUMN, ColumnRun, Ddl, TableRun, Write
from tests.kit.tidb_columns import TYPES, Type, column_info
from tistream.errors import NotConvertible

FIRST, SECOND, LATER = 200, 300, 400


def kind(tp: int) -> Type:
    return next(each for each in TYPES if each.tp == tp and not each.flag & 32)


VARCHAR, INT, JSON = kind(15), kind(3), kind(245)


def run(*kinds: Type, value: bytes, first: str = "ALTER TABLE t MODIFY COLUMN c first") -> ColumnRun:
    """A column of the first type, changed to the others; its row was written under the first one."""
    infos = [column_info(each, 2 + n, "c", 1) for n, each in enumerate(kinds)]
    names = ["ALTER TABLE t ADD COLUMN c ...", first, "ALTER TABLE t MODIFY COLUMN c second"]
    ddls = [
        Ddl(commit_ts=at, type=5 if n == 0 else MODIFY_COLUMN, columns=(info,), query=names[n])
        for n, (at, info) in enumerate(zip((120, FIRST, SECOND), infos, strict=False))
    ]
    return ColumnRun([TableRun(name="t", ddls=ddls, writes=[Write(handle=1, commit_ts=150, value={2: value})])])


def refusal(columns_run: ColumnRun, **overrides: Any) -> dict[str, object]:
    table = columns_run.history.find("d", "t", LATER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "readings", partial(columns.readings, **overrides))
        with pytest.raises(NotConvertible) as caught:
            columns_run.as_of(table.name, LATER)
    return caught.value.facts


def test_the_change_at_which_the_value_is_lost_is_named() -> None:
    lost_first = refusal(run(VARCHAR, INT, VARCHAR, value=b"abc"))
    assert (lost_first["ddl"], lost_first["ddl_ts"]) == ("ALTER TABLE t MODIFY COLUMN c first", str(FIRST))
    lost_second = refusal(run(VARCHAR, INT, JSON, value=b"12"))
    assert (lost_second["ddl"], lost_second["ddl_ts"]) == ("ALTER TABLE t MODIFY COLUMN c second", str(SECOND))
    assert lost_second["readable_upto_ts"] == str(SECOND - 1)
    _, before = run(VARCHAR, INT, JSON, value=b"12").as_of("t", SECOND - 1)
    assert before is not None
    assert before.column("c").to_pylist() == [12]


def test_a_timestamp_below_the_log_is_not_offered() -> None:
    facts = refusal(run(VARCHAR, INT, value=b"abc"), log_start_ts=FIRST, seeded_ts=500)
    assert (facts["readable_upto_ts"], facts["readable_from_ts"]) == (None, "500")
    facts = refusal(run(VARCHAR, INT, value=b"abc"), log_start_ts=FIRST - 1)
    assert (facts["readable_upto_ts"], facts["readable_from_ts"]) == (str(FIRST - 1), None)


def test_a_very_long_statement_is_shortened() -> None:
    long_run = run(VARCHAR, INT, value=b"abc")
    events = long_run.history.events(FIRST - 1, FIRST)
    assert refusal(long_run)["ddl"] == events[0].job_query
    said = str(refusal(run(VARCHAR, INT, value=b"abc", first="ALTER " * 1000))["ddl"])
    assert (len(said), said[-3:]) == (1003, "...")
