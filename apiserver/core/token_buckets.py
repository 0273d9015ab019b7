"""Token buckets per caller or tenant (pure).

A bucket holds at most `burst` tokens and refills at `rate` per second. A request costs one token and is refused when
there is none. Bytes are known only after sending, so a bucket of bytes may go negative: the next request waits until it
is positive again. Full buckets are dropped.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

_BUCKETS_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketPolicy:
    """One kind of bucket."""

    name: str  #: in response headers, such as `caller-requests`
    rate: float  #: tokens a second
    burst: float  #: tokens at most
    of_bytes: bool = False

    @property
    def window_s(self) -> int:
        """Seconds in which an empty bucket fills up."""
        return max(1, math.ceil(self.burst / self.rate))


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float


class Buckets:
    """All buckets of one policy. Not thread-safe."""

    def __init__(self, policy: BucketPolicy) -> None:
        self.policy = policy
        self._of: OrderedDict[str, _Bucket] = OrderedDict()

    def wait_s(self, who: str, now_s: float) -> float:
        """Seconds until `who` may send another request."""
        need = 1.0 if not self.policy.of_bytes else 0.0
        lacks = need - self._filled(who, now_s).tokens
        return max(0.0, lacks / self.policy.rate)

    def take(self, who: str, tokens: float, now_s: float) -> None:
        """Take tokens, even below zero."""
        self._filled(who, now_s).tokens -= tokens

    def left(self, who: str, now_s: float) -> int:
        """Whole tokens available."""
        return max(0, math.floor(self._filled(who, now_s).tokens))

    def _filled(self, who: str, now_s: float) -> _Bucket:
        policy = self.policy
        bucket = self._of.get(who)
        if bucket is None:
            bucket = self._of[who] = _Bucket(tokens=policy.burst, at_s=now_s)
            self._forget(now_s)
        bucket.tokens = min(policy.burst, bucket.tokens + (now_s - bucket.at_s) * policy.rate)
        bucket.at_s = now_s
        self._of.move_to_end(who)
        return bucket

    def _forget(self, now_s: float) -> None:
        """Drop the least recently used buckets: those that are full, and those above _BUCKETS_MAX."""
        while len(self._of) > 1:
            oldest = next(iter(self._of.values()))
            full = oldest.tokens + (now_s - oldest.at_s) * self.policy.rate >= self.policy.burst
            if not full and len(self._of) <= _BUCKETS_MAX:
                return
            self._of.popitem(last=False)
