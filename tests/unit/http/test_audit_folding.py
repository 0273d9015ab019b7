"""Which operations get an entry in advance, and which are counted in one."""

from __future__ import annotations

from dataclasses import replace

from tistream.catalog.rows.audit import Deed, Doer, Outcome, Result
from tistream.http.audit.core.folding import FOLDS_MAX, RECOUNT_S, REFUSALS_APART, SEVERAL, WINDOW_S, Folding
from tistream.ids import Tenant

ANN = Doer(key_id="a", principal="ann", role="owner", address="10.0.0.7")
MOVE = Deed(operation="move_task", target="task_id=1")
DONE, REFUSED = Outcome(result=Result.DONE, status=200), Outcome(result=Result.REFUSED, status=401, code="TS-1080")


def written(folding: Folding, now_s: float) -> list[tuple[str, int, int | None]]:
    """Write what is due, as the trail does: (operation, times, entry before)."""
    rows = []
    for number, fold in enumerate(folding.due(now_s), 1):
        rows.append((fold.deed.operation, fold.times, fold.entry_no))
        fold.entry_no = fold.entry_no or number
        fold.note_written(fold.times, now_s)
    folding.forget(now_s)
    return rows


def test_equal_refusals_of_a_minute_are_one() -> None:
    folding = Folding()
    for n in range(500):
        folding.count(ANN, replace(MOVE, target=f"task_id={n}", request_id=f"r{n}"), REFUSED, n / 10)
    (fold,) = folding.due(50)
    assert (fold.times, fold.deed.request_id, fold.deed.target) == (500, "r0", SEVERAL)
    assert (fold.ended(60).first_age_ms, fold.ended(60).last_age_ms) == (60_000, 10_100)
    assert written(folding, 50) == [("move_task", 500, None)]
    folding.count(ANN, MOVE, REFUSED, 51)
    assert written(folding, 52) == [], "an entry is not written at each request"
    assert written(folding, 50 + RECOUNT_S) == [("move_task", 501, 1)]
    folding.count(ANN, MOVE, REFUSED, WINDOW_S)
    assert written(folding, WINDOW_S) == [("move_task", 1, None)], "the next minute has its own"


def test_each_caller_address_operation_tenant_and_code_is_another() -> None:
    folding = Folding()
    others = [
        (replace(ANN, key_id="b"), MOVE, REFUSED),
        (replace(ANN, address="::1"), MOVE, REFUSED),
        (ANN, replace(MOVE, operation="drain_worker"), REFUSED),
        (ANN, replace(MOVE, tenant=Tenant(1, 1)), REFUSED),
        (ANN, MOVE, replace(REFUSED, code="TS-1081")),
        (ANN, MOVE, replace(REFUSED, status=403)),
    ]
    for doer, deed, outcome in [(ANN, MOVE, REFUSED), *others]:
        folding.count(doer, deed, outcome, 0)
    assert [fold.times for fold in folding.due(1)] == [1] * 7


def test_a_flood_of_many_callers_has_a_bound() -> None:
    folding = Folding()
    for n in range(5 * FOLDS_MAX):
        folding.count(replace(ANN, address=str(n)), MOVE, REFUSED, 0)
    due = list(folding.due(1))
    assert len(due) == FOLDS_MAX + 1
    assert sum(fold.times for fold in due) == 5 * FOLDS_MAX
    assert (due[-1].doer.principal, due[-1].doer.address, due[-1].outcome) == ("(others)", "(others)", REFUSED)


def test_who_is_refused_all_the_time_gets_no_more_entries_in_advance() -> None:
    folding = Folding()
    for _ in range(REFUSALS_APART):
        assert folding.takes_entry(ANN, MOVE, 0, routine=False)
        folding.note_refusal(ANN, MOVE, 0)
    assert not folding.takes_entry(ANN, replace(MOVE, target="task_id=2"), 1, routine=False)
    assert folding.takes_entry(ANN, replace(MOVE, operation="drain_worker"), 1, routine=False)
    assert folding.takes_entry(replace(ANN, address="::1"), MOVE, 1, routine=False)
    assert folding.takes_entry(ANN, MOVE, WINDOW_S, routine=False)


def test_a_routine_operation_has_one_entry_a_minute_which_exists_before_the_first() -> None:
    folding = Folding()
    assert folding.takes_entry(ANN, MOVE, 0, routine=True)
    assert not folding.takes_entry(ANN, MOVE, 1, routine=True), "the first may still run"
    assert folding.takes_entry(ANN, replace(MOVE, target="task_id=2"), 1, routine=True)
    folding.count(ANN, MOVE, DONE, 2, entry_no=7)
    folding.count(ANN, MOVE, DONE, 3)
    assert written(folding, 4) == []
    assert written(folding, 2 + RECOUNT_S) == [("move_task", 2, 7)]
    folding.count(ANN, MOVE, DONE, 55)
    assert folding.takes_entry(ANN, MOVE, WINDOW_S, routine=True)
    folding.count(ANN, MOVE, DONE, WINDOW_S + 1, entry_no=8)
    folding.count(ANN, MOVE, DONE, WINDOW_S + 2)
    assert written(folding, WINDOW_S + 2 + RECOUNT_S) == [("move_task", 3, 7), ("move_task", 2, 8)]
    folding.forget(3 * WINDOW_S)
    assert list(folding.due(3 * WINDOW_S, at_once=True)) == []


def test_what_could_not_be_written_is_kept_and_counts_on() -> None:
    """While the catalog is away."""
    folding = Folding()
    folding.count(ANN, MOVE, REFUSED, 0)
    folding.forget(500)
    folding.count(ANN, MOVE, REFUSED, 500)
    assert written(folding, 501) == [("move_task", 2, None)]
