"""No order of actions breaks a promise of the protocols, and each of their rules is needed."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.specs import epochs, lanes, watermarks
from tests.specs.__main__ import SPECS
from tests.specs.explore import Spec, State, explore

STATES = 15_000  #: of each size with all rules
STATES_WITHOUT = 200_000  #: within these a violation must come

#: size -> the rules that it shows
SHOWN: dict[ModuleType, dict[str, str]] = {
    watermarks: {
        "lives": """rows_before_watermarks files_in_sequence dead_by_cut_ts dead_above_cut_ts early_commits_wait
            ready_rows_known written_rows_known duplicates_first locks_hold_resolved resolved_after_records
            cut_after_records scan_sends_locks scan_from_checkpoint counts_when_ready""",
        "moves": "admission",
        "restarts": "waiting_commit_keeps restored_w_stays restored_rows_leave restored_commits_leave",
        "slices": "lowest_slice",
        "tasks": "lowest_task",
    },
    epochs: {
        "owners": "epoch_guard new_epoch kept_is_known",
        "retries": """durable_guard created_once bytes_first own_files_stay taken_rows_stay tombstone_first together
            in_turn referred_stays reclaimed_by_saved""",
    },
    lanes: {
        "leases": "lease lease_from_asking new_owner_waits wait_from_answer late_is_dropped",
        "values": "epoch_guard attempt_first same_stretch all_written deadline_passes",
        "thirds": "given_up_for_one silent_when_given_up",
        "files": "attempt_first same_stretch all_written",
        "cursor": "cursor_guard cursor_together all_written",
    },
}
WITHOUT = [(of, size, rule) for of, sizes in SHOWN.items() for size, rules in sizes.items() for rule in rules.split()]


def named(value: object) -> str | None:
    """For the names of tests."""
    return value.__name__.rpartition(".")[2] if isinstance(value, ModuleType) else None


@pytest.mark.parametrize(("of", "size"), [(of, size) for of in SHOWN for size in of.SIZES], ids=named)
def test_all_rules_together_keep_the_promises(of: ModuleType, size: str) -> None:
    explored = explore(SPECS[of](**of.SIZES[size]), STATES)
    assert not explored.violations, explored
    assert explored.states >= STATES or explored.complete


@pytest.mark.parametrize(("of", "size", "rule"), WITHOUT, ids=named)
def test_without_a_rule_a_promise_breaks(of: ModuleType, size: str, rule: str) -> None:
    explored = explore(SPECS[of](of.RULES.keys() - {rule}, **of.SIZES[size]), STATES_WITHOUT)
    assert explored.violations, f"{size}: {rule} is not needed within {explored}"
    print(explored)


def test_each_rule_is_left_out_once() -> None:
    for of, sizes in SHOWN.items():
        assert of.RULES.keys() == set(" ".join(sizes.values()).split())
        assert of.SIZES.keys() == sizes.keys()


@pytest.mark.parametrize("size", ["files", "cursor"])
def test_files_that_are_created_once_and_a_cursor_of_their_own_need_no_lease(size: str) -> None:
    times = {"lease", "lease_from_asking", "new_owner_waits", "wait_from_answer", "deadline_passes", "late_is_dropped"}
    explored = explore(lanes.Lanes(lanes.RULES.keys() - times, **lanes.SIZES[size]), STATES)
    assert not explored.violations, explored


class Steps(Spec):
    """Two counters that rise to 9; 7 and 3 break the promise."""

    rules_known = {"to_nine": "both stop at 9", "never": "7 and 3 do not meet"}

    def initial(self) -> State:
        return (0, 0)

    def actions(self, state: State) -> Iterator[tuple[str, State]]:
        left, right = state
        if left < 9:
            yield "left", (left + 1, right)
        if right < 9:
            yield "right", (left, right + 1)

    def violations(self, state: State) -> list[str]:
        return [] if "never" in self.rules or state != (7, 3) else ["they meet"]


def test_the_explorer_sees_every_state_once_and_the_shortest_way() -> None:
    every = explore(Steps(), 1000)
    assert (every.states, every.steps, every.depth, every.complete) == (100, 180, 18, True)
    broken = explore(Steps({"to_nine"}), 1000)
    assert broken.violations == ["they meet"]
    assert sorted(broken.path) == ["left"] * 7 + ["right"] * 3
    part = explore(Steps(), 20)
    assert (part.complete, part.violations) == (False, ())


def test_a_rule_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no rules \\['to_ten'\\]"):
        Steps({"to_ten"})
