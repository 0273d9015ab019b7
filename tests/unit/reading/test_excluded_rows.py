"""Records that belong to no table: each is counted by reason, and one without an explanation is a problem."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

from reading.decode import rows_of
from reading.excluded_rows import ExcludedRows, excluded_rows
from reading.scope import Scope
from schemas.ids import IdStatus
from tests.kit.recording import committed_rows, recorded_history
from tistream.codec.table_key import record_key
from tistream.ids import Tenant
from tistream.model import change
from tistream.runtime import metrics

TENANT = Tenant(1, 1)
STRANGER = 1 << 40


def of_stranger(count: int) -> pa.Table:
    """Rows under a physical id that no definition names."""
    ts = recorded_history().resolved_ts
    rows = [
        {
            "table_id": STRANGER, "op": change.Op.PUT, "key": record_key(STRANGER, n), "start_ts": ts - 1,
            "commit_ts": ts - n, "value": b"", "old_value": None, "expire_ts": 0, "flags": 0,
        }
        for n in range(count)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=change.COMMITTED)


def test_every_record_is_of_a_table_or_counted() -> None:
    rows, history = committed_rows(), recorded_history()
    of_tables = sum(len(index) for _, index in rows_of(history, rows, Scope(tenant=TENANT)))
    lost = excluded_rows(history, rows)
    assert of_tables + sum(part.rows for part in lost) == rows.num_rows
    reasons = Counter(part.status for part in lost)
    assert set(reasons) == {IdStatus.SYSTEM, IdStatus.COPY}, reasons


def test_pages_have_the_counts_of_the_full_read() -> None:
    rows, history = committed_rows(), recorded_history()
    whole, parts = Counter[tuple[int, IdStatus]](), Counter[tuple[int, IdStatus]]()
    for part in excluded_rows(history, rows):
        whole[part.physical_id, part.status] += part.rows
    for at in range(0, rows.num_rows, 1_000):
        for part in excluded_rows(history, rows.slice(at, 1_000)):
            parts[part.physical_id, part.status] += part.rows
    assert whole == parts


def test_rows_that_no_definition_names_are_a_problem() -> None:
    kept = ExcludedRows()
    before = metrics.LEFT_OUT.labels("unnamed")._value.get()
    kept.add(TENANT, excluded_rows(recorded_history(), of_stranger(3)))
    kept.add(TENANT, excluded_rows(recorded_history(), of_stranger(2)))
    (problem,) = kept.problems()
    assert problem.source == f"changes/{TENANT}"
    assert (problem.facts["physical_id"], problem.facts["rows"]) == (STRANGER, 3)
    assert metrics.LEFT_OUT.labels("unnamed")._value.get() - before == 5


@pytest.mark.parametrize("status", [IdStatus.RETIRED, IdStatus.COPY, IdStatus.SYSTEM, IdStatus.OLDER])
def test_rows_with_a_known_reason_are_no_problem(status: IdStatus) -> None:
    kept = ExcludedRows()
    (part,) = excluded_rows(recorded_history(), of_stranger(1))
    kept.add(TENANT, [type(part)(physical_id=7, status=status, rows=1, first_commit_ts=9)])
    assert kept.problems() == []


def test_nothing_of_nothing() -> None:
    assert excluded_rows(recorded_history(), change.COMMITTED.empty_table()) == []
