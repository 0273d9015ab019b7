"""The audit log's rows: begun and completed, added, counted, found, and pruned by age only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kit.catalog_cases import OTHER, T, shift, together
from tistream.catalog.database import tables
from tistream.catalog.database.engine import Catalog, now_ms
from tistream.catalog.rows.audit import AuditEntry, Deed, Doer, Ended, Outcome, Result
from tistream.catalog.tenancy import audit_log
from tistream.catalog.tenancy.audit_log import (
    EntryFilter,
    add_entries,
    close_entry,
    list_entries,
    open_entry,
    prune_audit_log,
    recount,
)

ANN = Doer(key_id="5krc7s57dyuk2", principal="ann", role="owner", address="10.0.0.7")
BOB = replace(ANN, key_id="znpop3rk7vzhk", principal="Bob", role="viewer")
PAUSE = Deed(operation="pause_tenant", tenant=T, request_id="request-1")
DONE, REFUSED = Outcome(result=Result.DONE, status=200), Outcome(result=Result.REFUSED, status=403, code="TS-1081")
ALL = EntryFilter()


def newest(catalog: Catalog, **which: object) -> list[AuditEntry]:
    return list_entries(catalog, EntryFilter(**which), limit=1000)  # type: ignore[arg-type]


def test_an_operation_is_unknown_until_it_has_ended(catalog: Catalog) -> None:
    entry_no = open_entry(catalog, ANN, PAUSE)
    (begun,) = newest(catalog)
    assert (begun.result, begun.status, begun.code) == ("unknown", 0, "")
    shift(catalog, tables.audit_log.c.at_ms, -5000)
    close_entry(catalog, entry_no, replace(PAUSE, target="key_id=a", tenant=OTHER), REFUSED)
    (ended,) = newest(catalog)
    assert (ended.result, ended.status, ended.code) == ("refused", 403, "TS-1081")
    assert (ended.tenant, ended.target) == (OTHER, "key_id=a")
    assert ended.last_ms - ended.at_ms >= 5000
    same = ("entry_no", "key_id", "principal", "role", "address", "operation", "request_id", "times")
    assert [getattr(begun, name) for name in same] == [getattr(ended, name) for name in same]


def test_what_has_ended_is_added_with_its_age_and_counted(catalog: Catalog) -> None:
    flood = Ended(doer=BOB, deed=PAUSE, outcome=REFUSED, first_age_ms=3000, last_age_ms=1000, times=7)
    numbers = add_entries(catalog, [flood, replace(flood, doer=ANN, times=1)])
    assert add_entries(catalog, []) == ()
    with catalog.reading() as conn:
        now = now_ms(conn)
    by_bob = next(entry for entry in newest(catalog) if entry.entry_no == numbers[0])
    assert (by_bob.times, by_bob.principal) == (7, "Bob")
    assert by_bob.last_ms - by_bob.at_ms == 2000
    assert 0 <= now - by_bob.at_ms - 3000 < 10_000
    recount(catalog, {numbers[0]: replace(flood, times=90, last_age_ms=0, deed=replace(PAUSE, target="(several)"))})
    counted = {entry.entry_no: entry for entry in newest(catalog)}
    assert [counted[number].times for number in numbers] == [90, 1]
    assert (counted[numbers[0]].target, counted[numbers[0]].at_ms) == ("(several)", by_bob.at_ms)
    assert counted[numbers[0]].last_ms > by_bob.last_ms


def test_entries_are_found_by_what_one_knows(catalog: Catalog) -> None:
    for doer, deed, outcome in (
        (ANN, PAUSE, DONE),
        (BOB, PAUSE, REFUSED),
        (BOB, replace(PAUSE, operation="create_key", tenant=None), DONE),
    ):
        close_entry(catalog, open_entry(catalog, doer, deed), deed, outcome)
    third, second, first = newest(catalog)
    assert newest(catalog, principal="ann") == newest(catalog, principal=ANN.key_id) == [first]
    assert newest(catalog, principal="bob") == [], "names are compared exactly"
    assert newest(catalog, operation="create_key") == [third]
    assert newest(catalog, tenant=T) == [second, first]
    assert newest(catalog, tenant=OTHER) == []
    assert newest(catalog, result="refused") == [second]
    assert newest(catalog, principal="Bob", result="done") == [third]
    assert newest(catalog, principal="schlüssel\U0001f511") == newest(catalog, operation="ü") == []
    for times, entry in enumerate((first, second, third), 1):
        with catalog.transaction() as conn:
            of_it = tables.audit_log.c.entry_no == entry.entry_no
            conn.execute(tables.audit_log.update().where(of_it).values(at_ms=1000 * times))
    assert [e.at_ms for e in newest(catalog, since_ms=2000)] == [3000, 2000]
    assert [e.at_ms for e in newest(catalog, until_ms=2000)] == [1000]
    assert [e.at_ms for e in newest(catalog, since_ms=2000, until_ms=3000)] == [2000]


def test_pages_have_each_entry_once_also_of_one_moment(catalog: Catalog) -> None:
    add_entries(catalog, [Ended(doer=ANN, deed=PAUSE, outcome=DONE)] * 7)
    seen, place = [], None
    while page := list_entries(catalog, ALL, limit=3, before=place):
        seen += page
        place = page[-1].at_ms, page[-1].entry_no
    assert [entry.entry_no for entry in seen] == [7, 6, 5, 4, 3, 2, 1]
    assert [entry.entry_no for entry in list_entries(catalog, ALL, limit=3, above=2)] == [3, 4, 5]


def test_any_text_is_stored(catalog: Catalog) -> None:
    """Requests choose ids and names; what fits no column is cut, and no character is refused."""
    hostile = Doer(key_id="ü" * 99, principal="订单\udcff\n" * 200, role=" r ", address="::1%\x00" + "é" * 300)
    entry_no = open_entry(
        catalog, hostile, Deed(operation="o" * 500, target="\U0001f511" * 900, request_id="\x1b" * 99)
    )
    (entry,) = newest(catalog)
    assert entry.entry_no == entry_no
    assert (len(entry.principal), len(entry.target), len(entry.operation)) == (255, 500, 128)
    assert entry.principal.startswith("订单?\n")
    assert (entry.key_id, entry.request_id) == ("?" * 32, "?" * 64)
    assert newest(catalog, principal=entry.principal) == [entry]


def test_numbers_are_in_commit_order(catalog: Catalog) -> None:
    def work(_: int) -> list[int]:
        return [open_entry(catalog, ANN, PAUSE) for _ in range(10)]

    numbers = [number for those in together(4, work) for number in those]
    assert sorted(numbers) == list(range(1, 41))


def test_only_age_removes_an_entry(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "_PRUNED_AT_ONCE", 3)
    add_entries(catalog, [Ended(doer=ANN, deed=PAUSE, outcome=DONE)] * 8)
    assert prune_audit_log(catalog, keep_s=60) == 0
    shift(catalog, tables.audit_log.c.at_ms, -61_000)
    add_entries(catalog, [Ended(doer=BOB, deed=PAUSE, outcome=DONE)])
    assert prune_audit_log(catalog, keep_s=0) == 0, "0 keeps all"
    assert prune_audit_log(catalog, keep_s=60) == 8
    assert [entry.principal for entry in newest(catalog)] == ["Bob"]
