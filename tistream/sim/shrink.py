"""Makes a failing run smaller: fewer upstream actions, faults and events, as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable

from tistream.sim.run import Outcome

Again = Callable[[int | None, frozenset[str]], Outcome]


def smaller(
    outcome: Outcome, again: Again, actions: int | None, without: frozenset[str]
) -> tuple[Outcome, int | None, frozenset[str]]:
    """The smallest run found, its number of actions and what is left out of it. Greedy: one thing after another."""
    kind = _kind(outcome)

    def same(tried: Outcome) -> bool:
        return not tried.held and _kind(tried) == kind

    for count in (10, 20, 40, 60, 80):
        if actions is not None and count >= actions:
            break
        tried = again(count, without)
        if same(tried):
            outcome, actions = tried, count
            break
    for label in sorted(outcome.labels, key=lambda name: "#" not in name):
        tried = again(actions, without | {label})
        if same(tried):
            outcome, without = tried, without | {label}
    return outcome, actions, without


def _kind(outcome: Outcome) -> str:
    """The first word of the first violation."""
    return outcome.violations[0].partition(":")[0] if outcome.violations else ""
