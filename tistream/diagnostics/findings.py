"""Diagnostic results, and the runner of checks.

    def isolation() -> Finding: ...return ok(f"sessions are {level}", isolation=level)

    found = Checklist()
    if found.check("catalog", reachable):
        found.check("isolation", isolation)

A check returns `ok`, `warn` (it works, but look at it) or `fail` (it will not work); keywords are facts for programs. A
check that raises TiStreamError fails with the text of the error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from tistream.errors import TiStreamError

SKEW_WARN_MS, SKEW_FAIL_MS = 1_000, 60_000


class Severity(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. The runner sets `name`."""

    name: str
    verdict: Severity
    words: str
    facts: dict[str, object]


def ok(words: str, **facts: object) -> Finding:
    """The check passed."""
    return Finding("", Severity.OK, words, facts)


def warn(words: str, **facts: object) -> Finding:
    """It works, but needs attention."""
    return Finding("", Severity.WARN, words, facts)


def fail(words: str, **facts: object) -> Finding:
    """It will not work."""
    return Finding("", Severity.FAIL, words, facts)


class Checklist:
    """Runs checks and collects their findings, in order."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def check(self, name: str, run: Callable[[], Finding]) -> bool:
        """Run one check; False when it failed."""
        try:
            result = run()
        except TiStreamError as e:
            result = fail(f"{e}; {e.hint}" if e.hint else str(e), code=e.code)
        self.findings.append(replace(result, name=name))
        return result.verdict is not Severity.FAIL


def least_offset_ms(earliest_ms: int, latest_ms: int, before_ms: int, after_ms: int) -> int:
    """The smallest offset that explains a time read from another clock: how many milliseconds it is ahead of this
    machine's (negative: behind), and 0 where nothing proves a difference. A check on one machine therefore says 0.

    `earliest_ms`, `latest_ms`: the other clock showed a time between these, as far as its resolution tells.
    `before_ms`, `after_ms`: this machine's time before the question and after the answer."""
    return min(0, latest_ms - before_ms) or max(0, earliest_ms - after_ms)


def clock_skew(whose: str, offset_ms: int, **facts: object) -> Finding:
    """Judge a clock that is `offset_ms` milliseconds ahead of this machine's."""
    judge = ok if abs(offset_ms) < SKEW_WARN_MS else warn if abs(offset_ms) < SKEW_FAIL_MS else fail
    direction = "ahead of" if offset_ms >= 0 else "behind"
    return judge(f"{whose} clock is {abs(offset_ms)} ms {direction} this machine's", offset_ms=offset_ms, **facts)
