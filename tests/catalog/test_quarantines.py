"""Quarantined stores on every backend: recorded once, bounding what is served, decided once."""

from __future__ import annotations

import pytest

from tests.kit.catalog_cases import START, T, activate, advance, flush, together
from tistream import ts as tso
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import list_events
from tistream.catalog.tenancy.served import QuarantineState
from tistream.catalog.work.quarantines import (
    decisions,
    list_quarantines,
    lowest_quarantine,
    record_quarantine,
    reject_store,
)
from tistream.catalog.work.stores import issue_incarnation, newest_incarnation
from tistream.catalog.work.tasks import served_edge
from tistream.errors import NotFound
from tistream.ids import Tenant
from tistream.model.contradiction import ContradictingRow, Contradiction

OTHER = Tenant(7, 1)
STORE = 4
MOST = tso.TSO_END - 1


def found(good_ts: int, *, seq: int = 2, key: bytes = b"t\x00\xff") -> Contradiction:
    row = ContradictingRow(key=key, start_ts=good_ts, commit_ts=good_ts + 1, region_id=8, promised_ts=START + 20)
    return Contradiction(
        store_id=STORE, incarnation=1, seq=seq, good_ts=good_ts, promised_ts=row.promised_ts, rows=3, sample=[row] * 30
    )


class TestQuarantines:
    def test_the_log_is_served_up_to_the_lowest_until_the_store_is_rejected(self, catalog: Catalog) -> None:
        low, high, ddl = activate(catalog)
        activate(catalog, OTHER)
        assert issue_incarnation(catalog, T, STORE)[0] == 1
        flush(catalog, None, *(advance(task, START, START + 20) for task in (low, high, ddl)))
        assert not record_quarantine(catalog, T, low, 5, found(START + 9)), "another owner's epoch"
        assert served_edge(catalog, T).good_ts is None
        together(4, lambda n: record_quarantine(catalog, T, (low, high)[n % 2], 0, found(START + 9 - n % 2)))
        rows = list_quarantines(catalog, T, state=QuarantineState.QUARANTINED)
        assert max(row.served_ts for row in rows) == START + 20, "the first to be recorded"
        assert {(row.good_ts, len(row.sample)) for row in rows} == {(START + 9, 20), (START + 8, 20)}
        assert sorted(row.task_id for row in rows) == [low, high]
        lowest = lowest_quarantine(catalog, T)
        assert lowest is not None
        assert (lowest.good_ts, lowest.sample[0]["key"]) == (START + 8, "7400ff")
        assert served_edge(catalog, T)[:2] == (START + 8, START + 8)
        assert served_edge(catalog, OTHER)[:2] == (START, None)
        now = decisions(catalog, [T, OTHER])
        assert (now.held, now.rejected, len(now.open)) == ({T: frozenset({STORE})}, {}, 2)
        with pytest.raises(NotFound):
            reject_store(catalog, OTHER, STORE)
        assert len(reject_store(catalog, T, STORE, actor="ops")) == 2
        with pytest.raises(NotFound):
            reject_store(catalog, T, STORE)
        assert newest_incarnation(catalog, T, STORE) == 2
        assert served_edge(catalog, T) == (START + 20, None, (START + 8, START + 20))
        now = decisions(catalog, [T, OTHER])
        assert (now.held, now.rejected, now.open) == ({}, {T: frozenset({(STORE, 1)})}, [])
        assert {row.decided_by for row in list_quarantines(catalog)} == {"ops"}
        kinds = [event.kind for event in list_events(catalog, limit=100)]
        assert (kinds.count("store.quarantined"), kinds.count("store.rejected")) == (2, 1)

    def test_a_record_holds_the_largest_values(self, catalog: Catalog) -> None:
        low, *_ = activate(catalog)
        row = ContradictingRow(key=b"\xff" * 20_000, start_ts=1, commit_ts=MOST, region_id=1, promised_ts=MOST)
        large = Contradiction(
            store_id=2**63 - 1,
            incarnation=2**31,
            seq=2**40,
            good_ts=MOST,
            promised_ts=MOST,
            rows=2**40,
            sample=[row] * 20,
        )
        assert record_quarantine(catalog, T, low, 0, large)
        (record,) = list_quarantines(catalog, T)
        assert (record.store_id, record.seq, record.good_ts, record.rows) == (2**63 - 1, 2**40, MOST, 2**40)
        assert len(record.sample) == 20
