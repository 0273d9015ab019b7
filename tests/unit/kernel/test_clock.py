"""The clock that leases count by goes on while the machine is suspended."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from replicator.core.lane import LaneCore
from tistream.clock import SystemClock

ROOT = Path(__file__).parents[3]
SERVICES = (
    "replicator", "destinations", "sorter", "metaserver", "pusher", "dispatcher", "backup", "reading", "apiserver",
    "tistream/catalog", "tistream/runtime", "tistream/tikv", "tistream/objectstore",
)  # fmt: skip


def test_a_lease_ends_while_the_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux: after ten minutes of sleep CLOCK_BOOTTIME is ten minutes later, and CLOCK_MONOTONIC is where it was."""
    asleep_s, real = [0.0], time.clock_gettime
    begin_s = real(time.CLOCK_MONOTONIC)
    monkeypatch.setattr(time, "monotonic", lambda: begin_s)
    monkeypatch.setattr(time, "clock_gettime", lambda of: begin_s + (asleep_s[0] if of == time.CLOCK_BOOTTIME else 0.0))
    clock = SystemClock()
    lane = LaneCore(checkpoint_ts=1, record="", record_ts=0, target_ts=0, lease_s=6.0)
    lane.owned(clock.monotonic(), is_free=True)
    lane.confirmed(clock.monotonic())
    assert lane.allowed_s(clock.monotonic()) > 5
    asleep_s[0] = 600.0
    assert lane.allowed_s(clock.monotonic()) < 0


def test_services_count_by_the_clock_that_they_are_given() -> None:
    """None of them counts a lease by `time.monotonic`, which stands still in a sleep."""
    modules = [path for folder in SERVICES for path in (ROOT / folder).rglob("*.py")]
    assert len(modules) > 200
    assert [str(path.relative_to(ROOT)) for path in modules if "time.monotonic" in path.read_text()] == []
