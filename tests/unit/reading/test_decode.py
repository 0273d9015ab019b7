"""Which table version a row belongs to, what is delivered, what is quarantined."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from reading.core.changes import DELETE, INSERT, TableChanges
from reading.decode import decode_rows, rows_of
from reading.scope import Scope
from tests.kit.log_builder import with_broken_value
from tests.kit.recording import committed_rows, recorded_history
from tistream.codec.table_key import index_key
from tistream.ids import Tenant
from tistream.model import change

ALL = Scope(tenant=Tenant(1, 1))


def table_of_each_row(rows: pa.Table) -> list[object]:
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
    found: dict[int, object] = {}
    for table, index in rows_of(recorded_history(), rows, scope):
        assert list(index) == sorted(index)
        for n in index.tolist():
            assert n not in found
            found[n] = table
    for n, table in enumerate(want):
        inside = table is not None and (
            (scope.database is None or table.db.lower() == scope.database.lower())  # type: ignore[attr-defined]
            and (scope.table is None or table.name.lower() == scope.table.lower())  # type: ignore[attr-defined]
        )
        assert found.get(n) is (table if inside else None)


def test_no_rows_no_tables() -> None:
    assert list(rows_of(recorded_history(), change.COMMITTED.empty_table(), ALL)) == []
    nothing = decode_rows(recorded_history(), change.COMMITTED.empty_table(), ALL)
    assert (nothing.changes, nothing.quarantined) == ((), ())


def test_index_entries_are_not_delivered() -> None:
    rows = committed_rows().slice(0, 2000)
    ids = rows["table_id"].to_pylist()
    keys = pa.array([index_key(i, 1, b"\x03" + b"\0" * 9) for i in ids], pa.binary())
    at = change.COMMITTED.get_field_index("key")
    entries = rows.set_column(at, change.COMMITTED.field("key"), keys)
    assert list(rows_of(recorded_history(), entries, ALL)) == []


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
    assert (bad.database, bad.table) == (tables[at].db, tables[at].name)  # type: ignore[attr-defined]
    assert "value" in bad.cause
    assert sum(map(len, hurt.changes)) == sum(map(len, whole.changes)) - 1
    for one, other in zip(hurt.changes, whole.changes, strict=True):
        if len(one) == len(other):
            assert one.after.equals(other.after)
            assert one.before.equals(other.before)
        else:
            kept = pa.array([not (k.as_py() == bad.key and t == bad.commit_ts) for k, t in _rows(other)])
            assert one.after.equals(other.after.filter(kept))
            assert one.key.equals(other.key.filter(kept))


def _rows(changes: object) -> list[tuple[pa.Scalar, int]]:
    return list(zip(changes.key, changes.commit_ts.tolist(), strict=True))  # type: ignore[attr-defined]


def test_without_old_values_deletes_have_the_columns_of_the_key() -> None:
    """The recording again, as a log backup would tell it: what a delete shows is what the old value would show."""
    rows = committed_rows()
    whole = decode_rows(recorded_history(), rows, ALL)
    places = [change.COMMITTED.get_field_index(n) for n in ("old_value", "flags")]
    nothing = pa.nulls(rows.num_rows, pa.binary())
    unknown = pa.array(np.full(rows.num_rows, change.FLAG_OLD_VALUE_UNKNOWN, np.uint8))
    bare = rows.set_column(places[0], change.COMMITTED.field("old_value"), nothing)
    bare = bare.set_column(places[1], change.COMMITTED.field("flags"), unknown)
    found = decode_rows(recorded_history(), bare, ALL)
    assert not found.quarantined
    shown, hidden = 0, 0
    for one, other in zip(found.changes, whole.changes, strict=True):
        deletes, wanted = np.flatnonzero(one.kind == DELETE), np.flatnonzero(other.kind == DELETE)
        assert set(one.kind[one.kind != DELETE]) <= {INSERT}
        at = {version: n for n, version in zip(deletes.tolist(), _versions(one, deletes), strict=True)}
        for place, version in zip(wanted.tolist(), _versions(other, wanted), strict=True):
            mine, true = one.before.slice(at[version], 1).to_pylist()[0], other.before.slice(place, 1).to_pylist()[0]
            key = {c.name for i in one.table.indexes if i.primary for c in i.columns if one.table.is_common_handle}
            key |= {c.name for c in one.table.columns if c.primary and one.table.pk_is_handle}
            for name, value in mine.items():
                if value is None:
                    hidden += true[name] is not None
                else:
                    assert name in key
                    assert value == (true[name].rstrip(" ") if isinstance(true[name], str) else true[name])
                    shown += 1
            assert not one.table.pk_is_handle or len([v for v in mine.values() if v is not None]) == 1
    assert shown > 500
    assert hidden > 500


def _versions(changes: TableChanges, at: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[tuple[bytes, int]]:
    picked = pa.array(at)
    return list(zip(changes.key.take(picked).to_pylist(), changes.commit_ts[at].tolist(), strict=True))


def test_deletes_without_an_old_value_are_no_changes() -> None:
    rows = committed_rows()
    place = change.COMMITTED.get_field_index("old_value")
    bare = rows.set_column(place, change.COMMITTED.field("old_value"), pa.nulls(rows.num_rows, pa.binary()))
    found = [decode_rows(recorded_history(), each, ALL).changes for each in (rows, bare)]
    whole, none = (sum(int((c.kind == DELETE).sum()) for c in changes) for changes in found)
    assert whole > 0
    assert none == 0
