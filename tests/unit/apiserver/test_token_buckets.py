"""Token buckets."""

from __future__ import annotations

import pytest

from apiserver.core import token_buckets
from apiserver.core.token_buckets import BucketPolicy, Buckets

REQUESTS = BucketPolicy(name="caller-requests", rate=2, burst=4)
BYTES = BucketPolicy(name="caller-bytes", rate=100, burst=1000, of_bytes=True)


def test_a_full_bucket_gives_its_burst_and_then_its_rate() -> None:
    buckets = Buckets(REQUESTS)
    for _ in range(4):
        assert buckets.wait_s("a", 0.0) == 0
        buckets.take("a", 1, 0.0)
    assert buckets.wait_s("a", 0.0) == 0.5
    assert buckets.wait_s("b", 0.0) == 0, "others have their own"
    assert buckets.wait_s("a", 0.5) == 0
    buckets.take("a", 1, 0.5)
    assert buckets.wait_s("a", 0.5) == 0.5
    assert buckets.left("a", 100.0) == 4, "it never holds more than its burst"


def test_bytes_go_into_debt_which_is_waited_for() -> None:
    buckets = Buckets(BYTES)
    buckets.take("a", 1300, 0.0)
    assert buckets.wait_s("a", 0.0) == pytest.approx(3.0)
    assert buckets.left("a", 0.0) == 0
    assert buckets.wait_s("a", 3.0) == 0


def test_over_any_time_no_more_is_given_than_burst_and_rate() -> None:
    buckets, given, now = Buckets(REQUESTS), 0, 0.0
    for _ in range(1000):
        now += 0.01
        if buckets.wait_s("a", now) == 0:
            buckets.take("a", 1, now)
            given += 1
    assert given in range(22, 25), "4 and 10 s at 2"


def test_what_is_full_again_is_forgotten_and_the_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    buckets = Buckets(REQUESTS)
    for n in range(50):
        buckets.take(f"caller {n}", 1, n / 10)
    assert len(buckets._of) < 10
    monkeypatch.setattr(token_buckets, "_BUCKETS_MAX", 20)
    for n in range(50):
        buckets.take(f"other {n}", 4, 10.0)
    assert len(buckets._of) == 20
