"""What somebody who looks found: one check, one finding. The same type for all that is looked at before or beside work.

A finding is `ok`, `warn` (it works, but look at it) or `fail` (it will not work). A check that raises has failed, in
the words of its error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from tistream.errors import TiStreamError

SKEW_WARN_MS, SKEW_FAIL_MS = 1_000, 60_000


class Verdict(StrEnum):
    """Of one check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The outcome of one check."""

    name: str
    verdict: Verdict
    words: str
    facts: dict[str, object] = field(default_factory=dict)


Look = tuple[Verdict, str, dict[str, object]]  #: of one check: verdict, words, facts


def check(name: str, look: Callable[[], Look]) -> Finding:
    """What `look` finds; its error is a failure."""
    try:
        verdict, words, facts = look()
    except TiStreamError as e:
        words = f"{e}; {e.hint}" if e.hint else str(e)
        return Finding(name=name, verdict=Verdict.FAIL, words=words, facts={"code": e.code})
    return Finding(name=name, verdict=verdict, words=words, facts=facts)


def skew(whose: str, offset_ms: int) -> tuple[Verdict, str]:
    """What a clock that is so far ahead of this machine's means, and how to say it."""
    verdict = Verdict.OK if abs(offset_ms) < SKEW_WARN_MS else Verdict.WARN
    if abs(offset_ms) >= SKEW_FAIL_MS:
        verdict = Verdict.FAIL
    return verdict, f"{whose} clock is {abs(offset_ms)} ms {'ahead of' if offset_ms >= 0 else 'behind'} this machine's"
