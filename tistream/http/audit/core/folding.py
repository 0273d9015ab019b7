"""Folds what happens often into few entries of the audit log (pure).

    an operation            has an entry of its own, which exists before it begins
    a routine one           the first of a minute has one, the others are counted in it
    a refusal               equal ones of a minute (caller, address, operation, tenant, status, code) are one entry

A caller whose operations were refused REFUSALS_APART times within a minute gets no more entries in advance for that
operation: refusals are only counted, and what succeeds is recorded when it has. So a flood of requests is a flood of
neither rows nor statements. More than FOLDS_MAX kinds of refusals in a minute are counted as `(others)`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace

from tistream.catalog.rows.audit import Deed, Doer, Ended, Outcome, Result

WINDOW_S = 60.0
RECOUNT_S = 10.0  #: between two updates of one entry
REFUSALS_APART = 3
FOLDS_MAX = 1000
SEVERAL = "(several)"
_OTHERS = Doer(key_id="", principal="(others)", role="", address="(others)")
_MARKS_MAX = 10_000
_NEVER = float("-inf")


@dataclass(slots=True)
class Fold:
    """Equal operations that are one entry."""

    doer: Doer
    deed: Deed
    outcome: Outcome
    first_s: float
    last_s: float
    times: int = 0
    entry_no: int | None = None  #: None: it has no entry yet
    written: int = 0  #: `times` that its entry says
    due_s: float = _NEVER

    def ended(self, now_s: float) -> Ended:
        """As it is recorded now."""
        first_ms, last_ms = (max(0, round((now_s - at_s) * 1000)) for at_s in (self.first_s, self.last_s))
        return Ended(
            doer=self.doer, deed=self.deed, outcome=self.outcome, times=self.times, first_age_ms=first_ms,
            last_age_ms=last_ms,
        )  # fmt: skip

    def note_written(self, times: int, now_s: float) -> None:
        """Its entry says `times`."""
        self.written, self.due_s = times, now_s + RECOUNT_S


@dataclass(slots=True)
class _Mark:
    until_s: float
    times: int = 0


@dataclass(slots=True)
class Folding:
    """What one process has to record. Not safe for several threads at once."""

    _folds: dict[Hashable, Fold] = field(default_factory=dict)
    _replaced: list[Fold] = field(default_factory=list)  # not written yet
    _begun: dict[Hashable, _Mark] = field(default_factory=dict)  # routine operations with an entry
    _refused: dict[Hashable, _Mark] = field(default_factory=dict)

    def takes_entry(self, doer: Doer, deed: Deed, now_s: float, *, routine: bool) -> bool:
        """Whether the operation, which is about to begin, gets an entry of its own now."""
        refused = self._refused.get((doer, deed.operation))
        if refused is not None and now_s < refused.until_s and refused.times >= REFUSALS_APART:
            return False
        if not routine:
            return True
        key = (doer, deed.operation, deed.tenant, deed.target)
        begun = self._begun.get(key)
        if begun is not None and now_s < begun.until_s:
            return False
        _mark(self._begun, key, now_s)
        return True

    def note_refusal(self, doer: Doer, deed: Deed, now_s: float) -> None:
        """An operation with an entry of its own was refused."""
        key = (doer, deed.operation)
        mark = self._refused.get(key)
        if mark is None or now_s >= mark.until_s:
            mark = _mark(self._refused, key, now_s)
        mark.times += 1

    def count(self, doer: Doer, deed: Deed, outcome: Outcome, now_s: float, entry_no: int | None = None) -> None:
        """Count an operation that has ended. `entry_no`: it has this entry, in which its equals are counted from now
        on."""
        key = _key(doer, deed, outcome)
        fold = self._folds.get(key)
        if fold is None and entry_no is None and len(self._folds) >= FOLDS_MAX:
            doer, deed = _OTHERS, Deed(operation=_OTHERS.principal)
            key = _key(doer, deed, outcome)
            fold = self._folds.get(key)
        if fold is not None and entry_no is not None and fold.times > fold.written:
            self._replaced.append(fold)
        if fold is None or entry_no is not None or _is_over(fold, now_s):
            fold = self._folds[key] = Fold(doer, deed, outcome, first_s=now_s, last_s=now_s, entry_no=entry_no)
            if entry_no is not None:
                fold.note_written(1, now_s)
        fold.times, fold.last_s = fold.times + 1, now_s
        if fold.deed.target != deed.target:
            fold.deed = replace(fold.deed, target=SEVERAL)

    def due(self, now_s: float, *, at_once: bool = False) -> Iterator[Fold]:
        """What is not written as it is; entries that exist once in RECOUNT_S, or at the end of their minute."""
        for fold in (*self._replaced, *self._folds.values()):
            if fold.times > fold.written and (
                at_once or fold.entry_no is None or now_s >= min(fold.due_s, fold.first_s + WINDOW_S)
            ):
                yield fold

    def forget(self, now_s: float) -> None:
        """Drop what is over and written."""
        self._folds = {key: fold for key, fold in self._folds.items() if not _is_over(fold, now_s)}
        self._replaced = [fold for fold in self._replaced if fold.times > fold.written]
        for marks in (self._begun, self._refused):
            for key in [key for key, mark in marks.items() if now_s >= mark.until_s]:
                del marks[key]


def _key(doer: Doer, deed: Deed, outcome: Outcome) -> Hashable:
    target = deed.target if outcome.result is Result.DONE else ""
    return doer, deed.operation, deed.tenant, target, outcome


def _is_over(fold: Fold, now_s: float) -> bool:
    """Its minute is over, and its entry says all."""
    return now_s >= fold.first_s + WINDOW_S and fold.written == fold.times


def _mark(marks: dict[Hashable, _Mark], key: Hashable, now_s: float) -> _Mark:
    if len(marks) >= _MARKS_MAX:
        marks.clear()  # those marked have more entries than they need
    marks[key] = mark = _Mark(now_s + WINDOW_S)
    return mark
