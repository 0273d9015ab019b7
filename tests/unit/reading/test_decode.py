"""Which table version a row belongs to, what is delivered, what is quarantined; records of no table are counted."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from reading.core.changes import DELETE, INSERT, TableChanges
from reading.rows.decode import decode_rows, rows_of
from reading.rows.excluded_rows import ExcludedRows, excluded_rows
from reading.rows.scope import Scope
from schemas.ids import IdStatus
from schemas.model import Table
from tests.kit.log_builder import with_broken_value
from tests.kit.made_rows import log_row, log_table, with_columns, without_old_values
from tests.kit.recording import committed_rows, recorded_history
from tistream.codec.table_key import index_key, record_key
from tistream.ids import Tenant
from tistream.model import change
from tistream.runtime import metrics

ALL = Scope(tenant=Tenant(1, 1))


def table_of_each_row(rows: pa.Table) -> list[Table | None]:
    """By asking the history row by row."""
    history = recorded_history()
    pairs = zip(rows["table_id"].to_pylist(), rows["commit_ts"].to_pylist(), strict=True)
    return [history.table_at(table_id, ts - 1) for table_id, ts in pairs]


@pytest.mark.parametrize(
    "scope", [ALL, Scope(tenant=ALL.tenant, database="SHOP"), Scope(tenant=ALL.tenant, database="shop", table="Tags")]
)
def test_each_row_goes_to_the_version_in_force_just_before_its_commit(scope: Scope) -> None:
    rows = committed_rows()
    want = table_of_each_row(rows)
    version_of_row: dict[int, object] = {}
    for table, index in rows_of(recorded_history(), rows, scope):
        assert list(index) == sorted(index)
        for n in index.tolist():
            assert n not in version_of_row
            version_of_row[n] = table
    for n, then in enumerate(want):
        inside = then is not None and (
            (scope.database is None or then.db.lower() == scope.database.lower())
            and (scope.table is None or then.name.lower() == scope.table.lower())
        )
        assert version_of_row.get(n) is (then if inside else None)


def test_no_rows_no_tables() -> None:
    assert list(rows_of(recorded_history(), change.COMMITTED.empty_table(), ALL)) == []
    nothing = decode_rows(recorded_history(), change.COMMITTED.empty_table(), ALL)
    assert (nothing.changes, nothing.quarantined) == ((), ())


def test_index_entries_are_not_delivered() -> None:
    rows = committed_rows().slice(0, 2000)
    ids = rows["table_id"].to_pylist()
    keys = pa.array([index_key(i, 1, b"\x03" + b"\0" * 9) for i in ids], pa.binary())
    assert list(rows_of(recorded_history(), with_columns(rows, key=keys), ALL)) == []


def test_a_row_that_cannot_be_decoded_takes_nothing_with_it() -> None:
    rows = committed_rows()
    tables = table_of_each_row(rows)
    puts = np.flatnonzero((rows["op"].to_numpy() == change.Op.PUT) & np.array([t is not None for t in tables]))
    at = int(puts[len(puts) // 2])
    whole = decode_rows(recorded_history(), rows, ALL)
    assert not whole.quarantined
    hurt = decode_rows(recorded_history(), with_broken_value(rows, at), ALL)
    (bad,) = hurt.quarantined
    assert (bad.key, bad.commit_ts) == (rows["key"][at].as_py(), rows["commit_ts"][at].as_py())
    assert bad.table_id == rows["table_id"][at].as_py()
    then = tables[at]
    assert then is not None
    assert (bad.database, bad.table) == (then.db, then.name)
    assert "value" in bad.cause
    assert sum(map(len, hurt.changes)) == sum(map(len, whole.changes)) - 1
    for one, other in zip(hurt.changes, whole.changes, strict=True):
        if len(one) == len(other):
            assert one.after.equals(other.after)
            assert one.before.equals(other.before)
        else:
            is_same = pa.array([not (k.as_py() == bad.key and t == bad.commit_ts) for k, t in _rows(other)])
            assert one.after.equals(other.after.filter(is_same))
            assert one.key.equals(other.key.filter(is_same))


def _rows(changes: object) -> list[tuple[pa.Scalar, int]]:
    return list(zip(changes.key, changes.commit_ts.tolist(), strict=True))  # type: ignore[attr-defined]


def test_without_old_values_deletes_have_the_columns_of_the_key() -> None:
    """The recording again, as a log backup would tell it: what a delete shows is what the old value would show."""
    rows = committed_rows()
    whole = decode_rows(recorded_history(), rows, ALL)
    bare = without_old_values(rows)
    keys_only = decode_rows(recorded_history(), bare, ALL)
    assert not keys_only.quarantined
    shown, hidden = 0, 0
    for one, other in zip(keys_only.changes, whole.changes, strict=True):
        deletes, others = np.flatnonzero(one.kind == DELETE), np.flatnonzero(other.kind == DELETE)
        assert set(one.kind[one.kind != DELETE]) <= {INSERT}
        at = {version: n for n, version in zip(deletes.tolist(), _versions(one, deletes), strict=True)}
        for place, version in zip(others.tolist(), _versions(other, others), strict=True):
            seen, true = one.before.slice(at[version], 1).to_pylist()[0], other.before.slice(place, 1).to_pylist()[0]
            key = {c.name for i in one.table.indexes if i.primary for c in i.columns if one.table.is_common_handle}
            key |= {c.name for c in one.table.columns if c.primary and one.table.pk_is_handle}
            for name, value in seen.items():
                if value is None:
                    hidden += true[name] is not None
                else:
                    assert name in key
                    assert value == (true[name].rstrip(" ") if isinstance(true[name], str) else true[name])
                    shown += 1
            assert not one.table.pk_is_handle or len([v for v in seen.values() if v is not None]) == 1
    assert shown > 500
    assert hidden > 500


def _versions(changes: TableChanges, at: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[tuple[bytes, int]]:
    picked = pa.array(at)
    return list(zip(changes.key.take(picked).to_pylist(), changes.commit_ts[at].tolist(), strict=True))


def test_deletes_without_an_old_value_are_no_changes() -> None:
    rows = committed_rows()
    bare = with_columns(rows, old_value=pa.nulls(rows.num_rows, pa.binary()))
    decoded = [decode_rows(recorded_history(), each, ALL).changes for each in (rows, bare)]
    whole, none = (sum(int((c.kind == DELETE).sum()) for c in changes) for changes in decoded)
    assert whole > 0
    assert none == 0


TENANT = Tenant(1, 1)
STRANGER = 1 << 40


def of_stranger(count: int) -> pa.Table:
    """Rows under a physical id that no definition names."""
    ts = recorded_history().resolved_ts
    return log_table(*(log_row(STRANGER, ts - n, record_key(STRANGER, n)) for n in range(count)))


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
    excluded = ExcludedRows()
    before = metrics.LEFT_OUT.labels("unnamed")._value.get()
    excluded.add(TENANT, excluded_rows(recorded_history(), of_stranger(3)))
    excluded.add(TENANT, excluded_rows(recorded_history(), of_stranger(2)))
    (problem,) = excluded.problems()
    assert problem.source == f"changes/{TENANT}"
    assert (problem.facts["physical_id"], problem.facts["rows"]) == (STRANGER, 3)
    assert metrics.LEFT_OUT.labels("unnamed")._value.get() - before == 5


@pytest.mark.parametrize("status", [IdStatus.RETIRED, IdStatus.COPY, IdStatus.SYSTEM, IdStatus.OLDER])
def test_rows_with_a_known_reason_are_no_problem(status: IdStatus) -> None:
    excluded = ExcludedRows()
    (part,) = excluded_rows(recorded_history(), of_stranger(1))
    excluded.add(TENANT, [type(part)(physical_id=7, status=status, rows=1, first_commit_ts=9)])
    assert excluded.problems() == []


def test_nothing_of_nothing() -> None:
    assert excluded_rows(recorded_history(), change.COMMITTED.empty_table()) == []
