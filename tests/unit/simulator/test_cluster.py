from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from simulator.core.cluster import Cluster, Region
from simulator.core.mvcc import Lock, RowColumns, Version
from tistream.errors import InvalidInput, TiStreamError
from tistream.keyrange import KeyRange
from tistream.model.change import Op, RowKind

S = 100


def make_cluster(*bounds: bytes, stores: tuple[int, ...] = (1,)) -> Cluster:
    starts, ends = (b"", *bounds), (*bounds, b"")
    regions = [
        Region(region_id=i + 1, version=1, store_id=stores[i % len(stores)], range=KeyRange(*pair))
        for i, pair in enumerate(zip(starts, ends, strict=True))
    ]
    return Cluster(regions, floor_ts=S)


def put(start_ts: int, value: bytes, old: bytes | None = None, **more: int) -> Lock:
    return Lock(start_ts, Op.PUT, value, old, **more)


def told(rows: RowColumns) -> list[tuple[object, ...]]:
    """(kind, key, start_ts, commit_ts, value, old value) of each row."""
    kinds = [RowKind(k).name for k in rows.kind]
    return list(zip(kinds, rows.key, rows.start_ts, rows.commit_ts, rows.value, rows.old_value, strict=True))


def test_live_rows_come_in_order_of_application_and_a_commit_carries_no_value() -> None:
    cluster = make_cluster()
    feed = cluster.register(1, 1, S)
    cluster.prewrite(b"a", put(110, b"x"))
    cluster.commit(b"a", start_ts=110, commit_ts=120)
    cluster.commit_one_phase(b"b", Version(121, 122, Op.DELETE, None, b"was"))
    cluster.rollback(b"c", start_ts=123)
    assert told(feed.take_rows()) == [
        ("PREWRITE", b"a", 110, 0, b"x", None),
        ("COMMIT", b"a", 110, 120, None, None),
        ("COMMITTED", b"b", 121, 122, None, b"was"),
        ("ROLLBACK", b"c", 123, 0, None, None),
    ]
    assert len(feed.take_rows()) == 0


def test_opening_scan_gives_locks_and_versions_above_the_checkpoint_newest_first() -> None:
    cluster = make_cluster()
    cluster.load(b"a", Version(50, 60, Op.PUT, b"v0", None))
    for start_ts, value, old in ((110, b"v1", b"v0"), (130, b"v2", b"v1"), (150, b"v3", b"v2")):
        cluster.prewrite(b"a", put(start_ts, value, old))
        cluster.commit(b"a", start_ts=start_ts, commit_ts=start_ts + 5)
    cluster.prewrite(b"a", put(170, b"v4", b"v3"))
    cluster.prewrite(b"b", put(171, b"undone"))
    cluster.rollback(b"b", start_ts=171)
    feed = cluster.register(1, 1, 115)
    assert feed.initialized
    assert told(feed.rows) == [
        ("PREWRITE", b"a", 170, 0, b"v4", b"v3"),
        ("COMMITTED", b"a", 150, 155, b"v3", b"v2"),
        ("COMMITTED", b"a", 130, 135, b"v2", b"v1"),
    ]


def test_lossy_reorganisation_changes_keys_and_is_never_sent() -> None:
    cluster = make_cluster()
    live = cluster.register(1, 1, S)
    cluster.prewrite(b"a", put(110, b"x", txn_source=256))
    opened_over_the_lock = cluster.register(1, 1, S)
    cluster.tick(115)
    assert live.resolved_ts == 110
    cluster.commit(b"a", start_ts=110, commit_ts=120)
    cluster.commit_one_phase(b"b", Version(121, 122, Op.PUT, b"y", None, txn_source=0x300))
    opened_later = cluster.register(1, 1, S)
    assert [len(s.rows) for s in (live, opened_over_the_lock, opened_later)] == [0, 0, 0]
    assert cluster.read(b"a", 120) == b"x"
    assert cluster.read(b"a", 119) is None


def test_a_bidirectional_replication_mark_is_sent() -> None:
    cluster = make_cluster()
    feed = cluster.register(1, 1, S)
    cluster.prewrite(b"a", put(110, b"x", txn_source=1))
    assert len(feed.rows) == 1


def test_resolved_ts_stands_at_the_oldest_open_lock_of_the_region() -> None:
    cluster = make_cluster(b"m")
    low, high = cluster.register(1, 1, S), cluster.register(2, 1, S)
    cluster.prewrite(b"a", put(130, b"x"))
    cluster.prewrite(b"b", put(120, b"x"))
    cluster.tick(140)
    assert (low.resolved_ts, high.resolved_ts) == (120, 140)
    cluster.commit(b"b", start_ts=120, commit_ts=141)
    cluster.tick(150)
    assert (low.resolved_ts, high.resolved_ts) == (130, 150)
    cluster.rollback(b"a", start_ts=130)
    cluster.tick(160)
    assert (low.resolved_ts, high.resolved_ts) == (160, 160)


def test_a_later_flush_of_the_same_transaction_replaces_the_lock() -> None:
    cluster = make_cluster()
    cluster.prewrite(b"a", put(110, b"one", generation=1))
    cluster.prewrite(b"a", put(110, b"two", generation=2))
    cluster.commit(b"a", start_ts=110, commit_ts=120)
    assert [v.value for v in cluster.versions(b"a")] == [b"two"]


def test_a_leader_move_ends_the_subscription_and_the_next_one_sends_again() -> None:
    cluster = make_cluster()
    old = cluster.register(1, 1, S)
    cluster.prewrite(b"a", put(110, b"x"))
    cluster.commit(b"a", start_ts=110, commit_ts=120)
    cluster.prewrite(b"b", put(125, b"y"))
    moved = cluster.move_leader(1, 2)
    assert (old.ended, moved.version, moved.store_id) == ("leader moved", 1, 2)
    new = cluster.register(1, 1, S)
    cluster.commit(b"b", start_ts=125, commit_ts=130)
    assert told(old.take_rows())[-1] == ("PREWRITE", b"b", 125, 0, b"y", None)
    assert told(new.take_rows()) == [
        ("COMMITTED", b"a", 110, 120, b"x", None),
        ("PREWRITE", b"b", 125, 0, b"y", None),
        ("COMMIT", b"b", 125, 130, None, None),
    ]


def test_split_keeps_the_parents_id_on_the_right_and_raises_versions_by_the_new_regions() -> None:
    cluster = make_cluster()
    feed = cluster.register(1, 1, S)
    parts = cluster.split(1, [b"f", b"m"], [7, 8])
    assert [(p.region_id, p.version, p.range.start, p.range.end) for p in parts] == [
        (7, 3, b"", b"f"),
        (8, 3, b"f", b"m"),
        (1, 3, b"m", b""),
    ]
    assert feed.ended == "split"
    assert cluster.region_of(b"f").region_id == 8


def test_merge_gives_the_left_range_to_the_right_neighbour() -> None:
    cluster = make_cluster(b"m")
    left, right = cluster.register(1, 1, S), cluster.register(2, 1, S)
    merged = cluster.merge(1, 2)
    assert merged == Region(region_id=2, version=3, store_id=1, range=KeyRange())
    assert (left.ended, right.ended) == ("merged", "merged")
    assert cluster.regions() == [merged]


def test_a_command_that_cannot_be_is_refused() -> None:
    cluster = make_cluster(b"m", stores=(1, 2))
    cluster.prewrite(b"a", put(110, b"x"))
    refused: list[Callable[[], object]] = [
        lambda: cluster.prewrite(b"a", put(111, b"y")),
        lambda: cluster.commit(b"a", start_ts=111, commit_ts=120),
        lambda: cluster.commit(b"z", start_ts=110, commit_ts=120),
        lambda: cluster.commit_one_phase(b"a", Version(111, 120, Op.PUT, b"y", None)),
        lambda: cluster.load(b"q", Version(99, S + 1, Op.PUT, b"y", None)),
        lambda: cluster.register(1, 2, S),
        lambda: cluster.register(9, 1, S),
        lambda: cluster.register(1, 1, S - 1),
        lambda: cluster.split(1, [b"z"], [9]),
        lambda: cluster.split(1, [b"b", b"a"], [8, 9]),
        lambda: cluster.merge(1, 2),
        lambda: cluster.merge(2, 1),
        lambda: Cluster([replace(cluster.region(1), range=KeyRange(b"a"))], floor_ts=S),
        lambda: Cluster(cluster.regions()[:1], floor_ts=S),
        lambda: Cluster([], floor_ts=S),
    ]
    for command in refused:
        with pytest.raises(InvalidInput):
            command()
    with pytest.raises(TiStreamError, match="a tick lies before"):
        cluster.tick(109)


def test_a_scan_in_pieces_sends_what_it_saw_at_its_first_piece_behind_the_live_rows() -> None:
    cluster = make_cluster()
    for key, start_ts in ((b"a", 110), (b"b", 111), (b"c", 112)):
        cluster.prewrite(key, put(start_ts, b"one"))
    feed = cluster.register(1, 1, S, at_once=False)
    cluster.commit(b"a", start_ts=110, commit_ts=120)
    assert not cluster.scan(feed, 1)
    cluster.prewrite(b"c", put(112, b"two"))
    cluster.commit(b"b", start_ts=111, commit_ts=121)
    cluster.tick(130)
    assert (feed.initialized, feed.resolved_ts) == (False, 0)
    assert cluster.scan(feed)
    assert told(feed.rows) == [
        ("COMMIT", b"a", 110, 120, None, None),
        ("COMMITTED", b"a", 110, 120, b"one", None),
        ("PREWRITE", b"c", 112, 0, b"two", None),
        ("COMMIT", b"b", 111, 121, None, None),
        ("PREWRITE", b"b", 111, 0, b"one", None),
        ("PREWRITE", b"c", 112, 0, b"one", None),
    ]
    assert feed.rows.scan == [False, True, False, False, True, True]
    cluster.tick(140)
    assert feed.resolved_ts == 112


def test_a_scan_of_an_ended_subscription_sends_nothing_and_never_completes() -> None:
    cluster = make_cluster()
    cluster.prewrite(b"a", put(110, b"x"))
    feed = cluster.register(1, 1, S, at_once=False)
    cluster.move_leader(1, 2)
    assert not cluster.scan(feed)
    assert len(feed.rows) == 0


@pytest.mark.parametrize(("length", "carried"), [(255, True), (256, False)])
def test_a_commit_carries_its_value_when_asked_to_and_when_it_is_short(length: int, carried: bool) -> None:
    cluster = make_cluster()
    feed = cluster.register(1, 1, S)
    cluster.prewrite(b"a", put(110, b"v" * length, b"old"))
    cluster.commit(b"a", start_ts=110, commit_ts=120, with_value=True)
    assert told(feed.rows)[-1] == ("COMMIT", b"a", 110, 120, b"v" * length if carried else None, None)


def test_a_lock_that_is_written_again_is_told_again_or_without_its_value_or_not_at_all() -> None:
    cluster = make_cluster()
    feed = cluster.register(1, 1, S)
    cluster.prewrite(b"a", put(110, b"short"))
    cluster.prewrite(b"b", put(110, b"v" * 256, b"old"))
    cluster.prewrite(b"c", put(110, b"lossy", txn_source=256))
    assert [cluster.rewrite_lock(key) for key in (b"a", b"b", b"c")] == [True, False, False]
    assert cluster.rewrite_lock(b"b", fake=True)
    assert told(feed.rows)[2:] == [("PREWRITE", b"a", 110, 0, b"short", None), ("PREWRITE", b"b", 110, 0, b"", b"old")]
    with pytest.raises(InvalidInput, match="no lock"):
        cluster.rewrite_lock(b"d")


def test_an_overlapped_rollback_leaves_the_commit() -> None:
    cluster = make_cluster()
    feed = cluster.register(1, 1, S)
    cluster.commit_one_phase(b"a", Version(110, 120, Op.PUT, b"x", None))
    cluster.rollback(b"a", start_ts=120)
    assert told(feed.rows)[-1] == ("ROLLBACK", b"a", 120, 0, None, None)
    assert cluster.read(b"a", 120) == b"x"


def test_a_dying_store_loses_what_was_not_taken_and_leads_nothing_until_it_is_asked_to() -> None:
    cluster = make_cluster(b"m", stores=(1, 2))
    lost, other = cluster.register(1, 1, S), cluster.register(2, 1, S)
    cluster.prewrite(b"a", put(110, b"x"))
    for heirs in ({}, {1: 1}, {1: 2, 2: 1}):
        with pytest.raises(InvalidInput, match="living heirs"):
            cluster.kill_store(1, heirs)
    cluster.kill_store(1, {1: 3})
    assert (lost.ended, len(lost.rows), other.ended) == ("store died", 0, "")
    assert (cluster.region(1).store_id, cluster.dead_stores) == (3, frozenset({1}))
    with pytest.raises(InvalidInput, match="dead store"):
        cluster.move_leader(2, 1)
    cluster.start_store(1)
    assert cluster.move_leader(2, 1).store_id == 1


def test_a_removed_store_is_dead_and_does_not_come_back() -> None:
    cluster = make_cluster(b"m", stores=(1, 2))
    with pytest.raises(InvalidInput, match="living store"):
        cluster.remove_store(1)
    cluster.kill_store(1, {1: 2})
    cluster.remove_store(1)
    with pytest.raises(InvalidInput, match="removed store"):
        cluster.start_store(1)
    cluster.start_stores()
    assert cluster.dead_stores == cluster.removed_stores == frozenset({1})


def test_a_tick_of_one_store_leaves_the_others_where_they_are() -> None:
    cluster = make_cluster(b"m", stores=(1, 2))
    one, two = cluster.register(1, 1, S), cluster.register(2, 1, S)
    cluster.tick(110, store_id=2)
    assert (one.resolved_ts, two.resolved_ts, cluster.ticked_ts) == (0, 110, 110)
