"""The protocol of lost replies: a transaction takes effect once, whatever becomes of its replies."""

from __future__ import annotations

import itertools

import pytest

from tistream.catalog.database.lost_reply import Attempt, attempting, commit_or_read_back, settle
from tistream.errors import CatalogUnavailable

FAULTS = ("none", "refused", "reply lost", "commit lost")


class Row:
    """A row with a guarded update, as a catalog behind a network."""

    def __init__(self, *faults: str, reads_fail: int = 0) -> None:
        self.value, self.updates, self.reads = "old", 0, 0
        self._faults, self._reads_fail = list(faults), reads_fail

    def update(self) -> bool:
        fault = self._faults.pop(0) if self._faults else "none"
        if fault == "refused":
            raise CatalogUnavailable(determinate=True)
        matched = self.value == "old"
        if matched and fault != "commit lost":
            self.value = "new"
            self.updates += 1
        if fault != "none":
            raise CatalogUnavailable(determinate=False)
        return matched

    def is_updated(self) -> bool:
        self.reads += 1
        if self.reads <= self._reads_fail:
            raise CatalogUnavailable(determinate=True)
        return self.value == "new"


@pytest.mark.parametrize("reads_fail", [0, 1, 2])
@pytest.mark.parametrize("faults", list(itertools.product(FAULTS, repeat=3)), ids="-".join)
def test_a_repeated_attempt_takes_effect_once(faults: tuple[str, ...], reads_fail: int) -> None:
    row, attempt = Row(*faults, reads_fail=reads_fail), Attempt()
    for _ in range(2 * len(faults) + reads_fail):
        try:
            if settle([attempt], lambda _: row.is_updated(), False):
                break
            with attempting([attempt]):
                assert row.update(), "never attempted after it took effect"
                break
        except CatalogUnavailable:
            continue
    assert (row.value, row.updates, attempt.unsure) == ("new", 1, False)


@pytest.mark.parametrize(
    ("fault", "result", "value", "reads"),
    [
        ("none", True, "new", 0),
        ("refused", None, "old", 0),
        ("reply lost", True, "new", 1),
        ("commit lost", None, "old", 1),
    ],
)
def test_a_single_attempt_is_read_back_at_once(fault: str, result: bool | None, value: str, reads: int) -> None:
    row = Row(fault)
    if result is None:
        with pytest.raises(CatalogUnavailable) as raised:
            commit_or_read_back(row.update, lambda: row.is_updated() or None)
        assert raised.value.determinate is (fault == "refused")
    else:
        assert commit_or_read_back(row.update, lambda: row.is_updated() or None) is result
    assert (row.value, row.reads) == (value, reads)


def test_a_read_may_find_that_the_transaction_will_never_take_effect() -> None:
    assert commit_or_read_back(Row("commit lost").update, lambda: False) is False


def test_a_failed_read_is_not_taken_for_an_answer() -> None:
    row = Row("reply lost", reads_fail=1)
    with pytest.raises(CatalogUnavailable) as raised:
        commit_or_read_back(row.update, lambda: row.is_updated() or None)
    assert raised.value.determinate is True, "the error of the read"


def test_one_transaction_settles_all_of_its_attempts_together() -> None:
    lost, sure = [Attempt(), Attempt()], Attempt()
    with pytest.raises(CatalogUnavailable), attempting(lost):
        raise CatalogUnavailable(determinate=False)
    assert settle([*lost, sure], len, 0) == len(lost)
    assert settle([*lost, sure], len, 0) == 0
