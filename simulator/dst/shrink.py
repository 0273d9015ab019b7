"""Makes a failing run smaller: fewer upstream actions, faults and events, as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable

from simulator.dst.run import Outcome

Again = Callable[[int | None, frozenset[str]], Outcome]

_ACTIONS = (5, 10, 20, 30, 40, 60, 80, 100, 120, 160, 200, 250)


def smaller(
    outcome: Outcome, again: Again, actions: int | None, without: frozenset[str]
) -> tuple[Outcome, int | None, frozenset[str]]:
    """The smallest failing run found: its number of actions and what is left out of it. Greedy, one omission after
    another."""
    kind = _kind(outcome)

    def same(tried: Outcome) -> bool:
        return not tried.held and _kind(tried) == kind

    def fewer(outcome: Outcome, actions: int | None) -> tuple[Outcome, int | None]:
        for count in _ACTIONS:
            if actions is not None and count >= actions:
                break
            if same(tried := again(count, without)):
                return tried, count
        return outcome, actions

    outcome, actions = fewer(outcome, actions)
    for label in sorted(outcome.labels, key=lambda name: "#" not in name):
        if same(tried := again(actions, without | {label})):
            outcome, without = tried, without | {label}
    outcome, actions = fewer(outcome, actions)
    return outcome, actions, without


def _kind(outcome: Outcome) -> str:
    """The first word of the first violation."""
    return outcome.violations[0].partition(":")[0] if outcome.violations else ""
