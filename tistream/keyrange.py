"""Half-open ranges of user keys: `[start, end)`, bytes compared as they are.

An empty `end` is plus infinity, an empty `start` is minus infinity. Keys here are always plain user keys, never in the
memcomparable form that region boundaries have on the wire.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class KeyRange:
    """A half-open key range; `end == b""` is plus infinity."""

    start: bytes = b""
    end: bytes = b""

    def __post_init__(self) -> None:
        if self.end and self.end <= self.start:
            raise ValueError(f"empty key range [{self.start.hex()}, {self.end.hex()})")

    def __contains__(self, key: bytes) -> bool:
        return key >= self.start and (not self.end or key < self.end)

    def intersect(self, other: KeyRange) -> KeyRange | None:
        """The common part, or None."""
        start = max(self.start, other.start)
        end = min_end(self.end, other.end)
        return None if end and end <= start else KeyRange(start, end)

    def covers(self, other: KeyRange) -> bool:
        """Whether every key of `other` is in this range."""
        return self.intersect(other) == other

    def __str__(self) -> str:
        return f"[{self.start.hex() or '-inf'}, {self.end.hex() or '+inf'})"


def min_end(a: bytes, b: bytes) -> bytes:
    """The smaller of two range ends, where empty is plus infinity."""
    return min(a, b) if a and b else a or b


def end_before(a: bytes, b: bytes) -> bool:
    """Whether range end `a` lies before range end `b`, where empty is plus infinity."""
    return bool(a) and (not b or a < b)


def prefix_range(prefix: bytes) -> KeyRange:
    """All keys that begin with `prefix`."""
    stem = prefix.rstrip(b"\xff")
    return KeyRange(prefix, stem[:-1] + bytes([stem[-1] + 1]) if stem else b"")


def gaps(whole: KeyRange, parts: Iterable[KeyRange]) -> list[KeyRange]:
    """The subranges of `whole` that the parts do not cover, in key order."""
    out: list[KeyRange] = []
    at = whole.start
    for part in sorted(filter(None, (whole.intersect(p) for p in parts))):
        if part.start > at:
            out.append(KeyRange(at, part.start))
        if not part.end:
            return out
        at = max(at, part.end)
    if not whole.end or at < whole.end:
        out.append(KeyRange(at, whole.end))
    return out
