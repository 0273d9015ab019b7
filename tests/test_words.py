"""Replaced names and phrases do not come back. docs/glossary.md has the terms that took their place."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.kit.checkout import files_of

ROOT = Path(__file__).parents[1]
SUFFIXES = (".py", ".md", ".html", ".js", ".css", ".sql", ".yaml", ".yml", ".toml", ".tf", ".svg")
#: other texts, or the texts of others
EXCLUDED = ("tests/", "simulator/recording/", "apiserver/console/static/vendor/")

#: name of something in the code -> what it is called now
IDENTIFIERS = {
    "BrokenPromise": "UpstreamContractViolated",
    "Hole": "WatermarkGap",
    "KeyGuard": "Authenticator",
    "OWNER_LEASE_MS": "LEADER_LEASE_MS",
    "PIN_TTL_MS": "READ_LEASE_TTL_MS",
    "RegionBoard": "RegionCache",
    "Rota": "FairSchedule",
    "STANDS_AFTER_S": "STALLED_AFTER_S",
    "TenureClosed": "SubscriptionClosed",
    "TenureOpened": "SubscriptionOpened",
    "TenureReady": "SubscriptionReady",
    "acquire_owner": "acquire_leadership",
    "advance_uppers": "advance_durable_timestamps",
    "expired_pins": "expired_leases",
    "feed_flight": "feed.flight",
    "hole_wait": "gap_wait",
    "kept_answers": "idempotency_keys",
    "lowest_upper": "lowest_durable_ts",
    "move_out": "spill",
    "new_upper": "new_durable_ts",
    "open_pin": "open_lease",
    "owner_epoch": "leader_epoch",
    "pin_id": "lease_id",
    "read_choice": "a conflict rule",
    "renew_owner": "renew_leadership",
    "reopen_id": "resubscribe_id",
    "rosters": "inventory",
    "seen_upper": "seen_durable_ts",
    "stands_still": "stalled",
    "swaps_seen": "replacements_seen",
    "tenure": "subscription",
    "tenure_open_ts": "subscription_open_ts",
    "tenure_ready_ts": "subscription_ready_ts",
    "tenures_of": "subscriptions_of",
    "uppers": "durable timestamps",
    "wait_for_upper": "wait_for_durable_ts",
}

#: words of prose -> plain words
PHRASES = {
    "as ever": "nothing",
    "broken promise": "upstream contract violation",
    "comes to rest": "settles",
    "goes on": "continues, advances, runs",
    "has a turn": "is scheduled",
    "hears of": "receives, learns",
    "is told": "receives, learns, is reported",
    "no hole": "no watermark gap",
    "nobody": "no reader, no worker",
    "reopen": "resubscribe",
    "says of itself": "reports",
    "somebody": "a user, another process",
    "speaks for": "covers",
    "stand still": "are stalled",
    "stands still": "is stalled",
    "stood still": "was stalled",
    "what has come": "what was received",
    "whoever": "a caller, a process, a reader, ...",
    "whose turn": "which is scheduled",
    "with one voice": "alike",
}

#: words on screens -> what is shown now
SCREENS = {
    "Do nothing": "Cancel",
    "Heard of": "Last seen",
    "Make a key": "Create key",
    "Steer": "Actions",
    "Tables of then": "Tables at this point",
    "There is no such thing": "Not found",
    "key that counts": "No API keys yet",
}


@cache
def texts() -> dict[str, str]:
    """By path: the product, its documentation and its templates."""
    names = (path.relative_to(ROOT).as_posix() for path in files_of(ROOT) if path.suffix in SUFFIXES)
    return {name: (ROOT / name).read_text("utf-8") for name in names if not name.startswith(EXCLUDED)}


def found(pattern: re.Pattern[str], under: str = "") -> list[str]:
    """path:line: text, of each match below a folder. A phrase may run over the end of a line, in a comment too."""
    return [
        f"{path}:{text.count(chr(10), 0, match.start()) + 1}: {' '.join(match[0].split())}"
        for path, text in texts().items()
        if path.startswith(under)
        for match in pattern.finditer(text)
    ]


def pattern_of(words: list[str], flags: int = 0) -> re.Pattern[str]:
    gap = r"(?:\s+(?:#:?\s+|//\s+)?)"
    return re.compile(r"\b(?:" + "|".join(gap.join(map(re.escape, w.split(" "))) for w in words) + r")\b", flags)


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("the task goes on", True),
        ("the task goes\n    # on", True),
        ("the task goes\non", True),
        ("it Goes On", True),
        ("undergoes one change", False),
    ],
)
def test_a_phrase_is_found_over_the_end_of_a_line(text: str, is_found: bool) -> None:
    assert bool(pattern_of(["goes on"], re.IGNORECASE).search(text)) == is_found


def test_no_replaced_identifier_is_back() -> None:
    assert not found(pattern_of(list(IDENTIFIERS))), f"their names now: {IDENTIFIERS}"


def test_no_replaced_phrase_is_back() -> None:
    assert not found(pattern_of(list(PHRASES), re.IGNORECASE)), f"in plain words: {PHRASES}"


def test_no_replaced_text_is_back_on_screen() -> None:
    assert not found(pattern_of(list(SCREENS)), "apiserver/console/"), f"on screen: {SCREENS}"
