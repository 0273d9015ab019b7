"""What real stores sent, through the core of the TiKV feed: every row, and every promise, of each registration.

txn_quiet is one region and hand-made transactions; txn_dev three stores with splits, merges, leader moves, one store
killed, and registrations of several request ids at once; raw_dev the same stores with two keyspaces of RawKV.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pusher.core.batcher import Batcher
from pusher.core.source import Resolved, SubscriptionClosed, SubscriptionReady, Tick
from tests.kit.real_tikv_feed import FeedPlayer
from tistream.model.change import Op, RowKind

DATA = Path(__file__).parents[1] / "data" / "real_tikv"
#: registrations that were recorded, and at least so many rows; what the recorded messages show
RECORDED = {"txn_quiet": (3, 100), "txn_dev": (912, 500_000), "raw_dev": (362, 18_000)}


@pytest.fixture(scope="module", params=list(RECORDED))
def played(request: pytest.FixtureRequest) -> FeedPlayer:
    player = FeedPlayer(DATA / request.param)
    count, rows = RECORDED[request.param]
    assert len(player.wire) == count
    assert sum(subscription.rows.num_rows for subscription in player.wire) > rows
    return player


def test_every_registration_becomes_a_subscription(played: FeedPlayer) -> None:
    def facts_of(subscriptions: object) -> list[tuple[object, ...]]:
        return [(t.region_id, t.range, t.checkpoint_ts, t.over) for t in subscriptions]  # type: ignore[attr-defined]

    assert facts_of(played.core) == facts_of(played.wire)
    for subscription, wire in zip(played.core, played.wire, strict=True):
        assert subscription.version >= wire.version, "a store may have said more than PD had"


def test_every_row_is_told_once_and_in_order(played: FeedPlayer) -> None:
    for subscription, wire in zip(played.core, played.wire, strict=True):
        assert subscription.rows.equals(wire.rows)


def test_every_promise_is_told_and_no_other(played: FeedPlayer) -> None:
    for subscription, wire in zip(played.core, played.wire, strict=True):
        assert subscription.initialized == wire.initialized
        assert subscription.resolved_ts == wire.resolved_ts


def test_no_promise_was_broken(played: FeedPlayer) -> None:
    """Of each subscription: no commit at or below what was told resolved before."""
    for subscription in played.core:
        highest = 0
        for batch, promised in zip(subscription.batches, subscription.promised, strict=True):
            kinds = batch["kind"].to_numpy()
            decided = batch["commit_ts"].to_numpy()[(kinds == RowKind.COMMIT) | (kinds == RowKind.COMMITTED)]
            highest = max(highest, promised)
            assert not len(decided) or decided.min() > highest


def test_behind_initialized_every_commit_has_its_prewrite(played: FeedPlayer) -> None:
    for subscription in played.core:
        prewritten = set()
        for batch, ready in zip(subscription.batches, subscription.behind_initialized, strict=True):
            for kind, op, key, start_ts in zip(
                *(batch[name].to_pylist() for name in ("kind", "op", "key", "start_ts")), strict=True
            ):
                assert op != Op.NONE or kind == RowKind.ROLLBACK
                if kind == RowKind.PREWRITE:
                    prewritten.add((key, start_ts))
                elif kind == RowKind.COMMIT and ready:
                    assert (key, start_ts) in prewritten


def test_a_pusher_can_write_it(played: FeedPlayer) -> None:
    for events in played.events.values():
        batcher = Batcher()
        ready: set[int] = set()
        closed: set[int] = set()
        files = 0
        for event in events:
            files += len(batcher.handle(event))
            if isinstance(event, SubscriptionReady):
                ready.add(event.subscription)
            elif isinstance(event, Resolved):
                assert set(event.subscriptions.tolist()) <= ready - closed
            elif isinstance(event, SubscriptionClosed):
                closed.add(event.subscription)
        assert files >= sum(isinstance(event, Tick) for event in events)
