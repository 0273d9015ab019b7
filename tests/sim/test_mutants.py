"""Evidence that the simulator checks something: each rule is broken once, and must be noticed.

docs/correctness.md, "Mutants", says which tests catch those that no run of the simulator notices.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simulator.dst.all_mutants import MUTANTS
from simulator.dst.run import run

DOC = Path(__file__).parents[2] / "docs" / "correctness.md"
NO_BOUNDS: frozenset[str] = frozenset({"bounds"})  # small ones would hide some of what a mutant does
SEEDS = 128  # tried, after the recorded one: a change of the simulator may move what a seed does

#: mutant -> a seed of its scenario that showed it
FIRST = {
    "confirmed-by-the-lost": 20,
    "plain-without-a-key": 6,
    "refusal-is-damage": 0,
    "minute-from-the-answer": 0,
    "root-never-expires": 0,
    "rejected-goes-on": 0,
    "deleted-served": 0,
    "seed-left-out": 0,
    "tasks-outlive-tenant": 0,
    "replaced-too-early": 0,
    "successor-unnamed": 0,
    "future-counts": 0,
    "worker-clock": 0,
    "skew-ignored": 0,
    "held-overtaken": 0,
    "held-for-good": 4,
    "above-cut-counts": 0,
    "swap-of-what-is-gone": 0,
    "swapped-one-by-one": 0,
    "compacted-unverified": 0,
    "leased-object-collected": 0,
    "lease-not-renewed": 1,
    "acknowledged-by-any-epoch": 1,
    "hand-over-keeps-epoch": 0,
    "second-start-not-fenced": 7,
    "handed-over-ahead": 0,
    "handed-over-behind": 0,
    "acknowledged-beyond-page": 0,
    "acknowledged-backwards": 0,
    "member-lease-never-ends": 1,
    "member-lease-ignored": 1,
    "checkpoint-of-the-furthest": 0,
    "newest-collected": 0,
    "older-brought-back": 0,
    "expired-by-now": 1,
    "floor-above-the-base": 5,
    "collected-above-the-floor": 1,
    "errors-spread": 0,
    "merge-holds": 16,
    "durable-watermark-forgotten": 11,
    "job-ended-without-epoch": 1,
    "job-lease-ignored": 0,
    "job-open-twice": 0,
    "unpublished-collected": 5,
    "base-lost-to-floor": 0,
    "unreadable-tried-first": 0,
    "paused-maintained": 0,
    "promise-not-saved": 0,
    "promise-of-another": 0,
    "prewrites-contradict": 0,
    "bytes-not-compared": 0,
    "quarantine-not-heeded": 0,
    "cache-kept-on-transfer": 2,
    "clock-kept-on-transfer": 1,
    "region-ts-dropped-on-merge": 3,
    "region-ts-not-copied-on-split": 1,
    "flights-not-resolved": 0,
    "delete-flag-lost": 0,
    "expiry-dropped": 0,
    "interval-not-recorded": 0,
    "marked-once-ready": 0,
    "checkpoint-of-a-failed-batch": 0,
    "passed-without-letter": 0,
    "attempted-too-late": 0,
    "attempt-not-repeated": 1,
    "lane-lease-ignored": 7,
    "owner-before-ignored": 3,
    "hold-ignored": 0,
    "continues-at-the-floor": 5,
    "rebalanced-ahead": 0,
    "lanes-with-a-hole": 0,
    "lanes-that-overlap": 0,
    "refused-key-in-two-lanes": 4,
    "versions-at-once": 0,
    "ttl-by-the-host": 0,
    "expired-for-ever": 2,
    "part-without-positions": 0,
    "part-without-state": 0,
    "new-task-above-durable-watermark": 0,
    "parts-let-go": 0,
    "split-task-stays": 0,
    "halves-stay": 0,
    "parts-of-old-epoch": 0,
    "merged-at-two-durable-watermarks": 0,
    "merged-unmet": 25,
    "merged-with-one-half": 2,
    "no-durable-watermark-guard": 2,
    "no-epoch-guard": 9,
    "stale-snapshot": 38,
    "torn-snapshot": 0,
    "let-go-too-early": 0,
    "never-let-go": 0,
    "objects-not-kept": 0,
    "flags-of-later": 0,
    "kept-unheard": 152,
    "register-keeps-epochs": 0,
    "assignment-keeps-epoch": 0,
    "never-read-back": 1,
    "own-file-deleted": 1,
    "commit-before-put": 28,
    "first-object-only": 0,
    "later-puts-not-checked": 7,
    "reclaim-from-memory": 0,
    "floor-forgets-tasks": 6,
    "deleted-before-given-up": 0,
    "collected-without-tombstone": 0,
    "look-connects": 0,
    "gap-skipped": 6,
    "gap-accepted": 6,
    "closed-goes-on": 16,
    "cursor-cuts-commit": 4,
    "deletes-of-nothing": 5,
    "served-by-the-highest": 0,
    "served-without-schemas": 9,
    "written-left-out": 3,
    "counts-before-ready": 0,
    "dead-by-start-ts": 0,
    "dead-at-cut-ts": 0,
    "dead-while-commit-waits": 3,
    "overlapped-commit-deleted": 1,
    "promise-before-duplicates": 0,
    "fake-wins": 4,
    "lower-generation-wins": 0,
    "earlier-row-wins": 1,
    "early-commits-forgotten": 4,
    "undecided-not-held": 2,
    "commits-not-awaited": 0,
    "partly-decided-written": 0,
    "watermarks-before-data": 0,
    "duplicates-not-merged": 0,
    "written-rows-come-again": 0,
    "taken-rows-leave": 1,
    "restore-lifts-w": 10,
    "restore-keeps-written": 3,
    "restore-keeps-commits": 8,
    "restore-lets-go": 95,
    "resolved-before-records": 1,
    "cut-before-records": 1,
    "cut-falls": 1,
    "older-life-goes-on": 4,
    "locks-not-resolved": 1,
    "closing-row-awaited": 2,
    "incarnation-issued-twice": 1,
    "opens-above-frontier": 0,
    "scan-from-above": 0,
    "scan-without-prewrites": 0,
    "scan-behind-live": 0,
    "bytes-change-on-retry": 0,
    "feature-beside-older": 0,
    "generation-not-checked": 0,
    "identity-not-checked": 17,
    "bucket-not-looked-at": 0,
    "epochs-not-raised": 0,
    "incarnations-not-raised": 0,
    "rows-of-before-kept": 0,
    "inputs-gone-early": 1,
    "files-gone-early": 3,
    "revoked-key-back": 0,
    "key-before-revocation": 0,
    "registration-left-out": 2,
    "deletion-left-out": 0,
    "repeat-without-entry": 0,
    "older-admitted": 0,
    "feature-without-demand": 0,
}


def test_the_seeds_are_those_of_the_mutants() -> None:
    assert set(FIRST) <= MUTANTS.keys()
    assert len(MUTANTS) > 70


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_fits_the_code_and_is_put_back(name: str) -> None:
    with MUTANTS[name].patch():
        pass
    with MUTANTS[name].patch():  # the code is as it was, so it fits again
        pass


@pytest.mark.parametrize("name", FIRST)
def test_a_broken_rule_is_noticed(name: str) -> None:
    mutant = MUTANTS[name]
    without: frozenset[str] = frozenset() if mutant.scenario == "isolation" else NO_BOUNDS
    with mutant.patch():
        assert any(not run(seed, mutant.scenario, without=without).held for seed in (FIRST[name], *range(SEEDS)))


def test_the_document_speaks_of_every_mutant_with_its_scenario() -> None:
    """Those that no run notices are marked. Rules are in `--list-mutants`."""
    rows = re.findall(r"^\| `(\w+)` \| (`[a-z-]+`.*) \|$", DOC.read_text(), re.MULTILINE)
    pairs = [(scenario, *pair) for scenario, names in rows for pair in re.findall(r"`([a-z-]+)`( \(test\))?", names)]
    scenarios = {name: scenario for scenario, name, _ in pairs if name in MUTANTS}
    assert scenarios == {mutant.name: mutant.scenario for mutant in MUTANTS.values()}
    assert {name for _, name, mark in pairs if name in MUTANTS and not mark} == FIRST.keys()
