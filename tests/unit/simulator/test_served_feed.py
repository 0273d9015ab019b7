"""What the modelled stores say to registrations: errors in a store's order, rows cut to the range, resolved ts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from pusher.core.cdcpb import RegionErrorKind
from simulator.core.cluster import Cluster, Region
from simulator.core.mvcc import Lock, Version
from simulator.loopback.core.feed_wire import Request
from simulator.serve.faults import CALM, STORM, Faults
from simulator.serve.feed import ServedFeed
from tests.kit.change_data import RegionEvent, read_change_data
from tistream.keyrange import KeyRange
from tistream.model.change import Op, RowKind

ID = 77
FLOOR = 1000


@dataclass
class Rig:
    """Three regions on store 1, and what was said on the streams."""

    faults: Faults = CALM
    scans_max: int = 100
    resolved: list[tuple[int, list[int], int]] = field(default_factory=list)  #: request id, regions, ts
    raw: list[bytes] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        bounds = [b"", b"h", b"p", b""]
        self.cluster = Cluster(
            [
                Region(region_id=i + 1, version=3, store_id=1, range=KeyRange(bounds[i], bounds[i + 1]))
                for i in range(3)
            ],
            floor_ts=FLOOR,
        )
        self.feed = ServedFeed(
            self.cluster, cluster_id=ID, rand=random.Random(1), faults=self.faults, scans_max=self.scans_max
        )

    def ask(self, region_id: int = 1, *, stream: int = 1, store: int = 1, **changed: object) -> list[RegionEvent]:
        request = Request(
            cluster_id=ID,
            region_id=region_id,
            version=3,
            request_id=1,
            range=KeyRange(),
            checkpoint_ts=FLOOR,
            kv_api=0,
            deregister=False,
            ticdc_version="8.5.4",
        )
        self.feed.request(stream, store, replace(request, **changed), self.now)  # type: ignore[arg-type]
        return self.said()

    def said(self, *, seconds: float = 10.0) -> list[RegionEvent]:
        self.now += seconds
        self.feed.pump(self.now)
        events: list[RegionEvent] = []
        for _, data in self.feed.take_output():
            self.raw.append(data)
            message = read_change_data(data)
            events += message.events
            if message.resolved is not None:
                r = message.resolved
                self.resolved.append((r.request_id, r.regions.tolist(), r.ts))
        return events

    def tick(self, ts: int) -> list[RegionEvent]:
        self.feed.tick(ts, self.now)
        return self.said()


def errors(events: Sequence[RegionEvent]) -> list[RegionErrorKind]:
    return [e.error.kind for e in events if e.error is not None]


def rows(events: Sequence[RegionEvent]) -> list[tuple[int, bytes, int, int]]:
    return [
        (r["kind"], r["key"], r["start_ts"], r["commit_ts"])
        for e in events
        if e.rows is not None
        for r in e.rows.to_pylist()
    ]


def put(start_ts: int, commit_ts: int, value: bytes = b"v", txn_source: int = 0) -> Version:
    return Version(start_ts, commit_ts, Op.PUT, value, None, txn_source)


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"cluster_id": 5}, RegionErrorKind.CLUSTER_ID_MISMATCH),
        ({"cluster_id": 5, "kv_api": 1}, RegionErrorKind.CLUSTER_ID_MISMATCH),
        ({"kv_api": 1}, RegionErrorKind.COMPATIBILITY),
        ({"kv_api": 2, "region_id": 99}, RegionErrorKind.COMPATIBILITY),
        ({"region_id": 99}, RegionErrorKind.REGION_NOT_FOUND),
        ({"version": 2}, RegionErrorKind.EPOCH_NOT_MATCH),
        ({"version": 2, "store": 2}, RegionErrorKind.EPOCH_NOT_MATCH),
        ({"store": 2}, RegionErrorKind.NOT_LEADER),
    ],
)
def test_what_does_not_fit_is_refused(wrong: dict[str, int], kind: RegionErrorKind) -> None:
    rig = Rig()
    (event,) = rig.ask(**{"region_id": 1, **wrong})
    assert errors([event]) == [kind]
    assert event.request_id == 1
    assert len(rig.feed) == 0
    if kind is RegionErrorKind.NOT_LEADER:
        assert event.error is not None
        assert event.error.leader_store_id == 1


@pytest.mark.parametrize("version", ["", "unreadable", "4.0.7", "5.2.9"])
def test_old_clients_are_not_asked_for_their_cluster(version: str) -> None:
    rig = Rig()
    assert errors(rig.ask(cluster_id=5, ticdc_version=version)) == []
    assert len(rig.feed) == 1


@pytest.mark.parametrize(("version", "hears"), [("", False), ("4.0.7", False), ("4.0.8", True), ("8.5.4-rc", True)])
def test_the_version_decides_about_resolved_ts(version: str, hears: bool) -> None:
    rig = Rig()
    rig.ask(ticdc_version=version)
    rig.tick(2000)
    assert [r for _, r, _ in rig.resolved] == ([[1]] if hears else [])


def test_a_second_registration_of_a_pair_is_refused_and_the_first_lives_on() -> None:
    rig = Rig()
    rig.ask()
    (event,) = rig.ask(version=2)
    assert errors([event]) == [RegionErrorKind.DUPLICATE_REQUEST]
    rig.cluster.commit_one_phase(b"a", put(1500, 1501))
    assert rows(rig.said()) == [(RowKind.COMMITTED, b"a", 1500, 1501)]
    assert errors(rig.ask(request_id=2)) == []
    assert len(rig.feed) == 2


def test_the_scan_comes_first_and_ends_with_initialized() -> None:
    rig = Rig()
    rig.cluster.load(b"a", put(900, 950))
    rig.cluster.commit_one_phase(b"a", put(1100, 1101, b"one"))
    rig.cluster.commit_one_phase(b"a", put(1200, 1201, b"two"))
    rig.cluster.prewrite(b"b", Lock(1300, Op.DELETE, None, b"old"))
    rig.cluster.commit_one_phase(b"z", put(1100, 1101))
    events = rig.ask(checkpoint_ts=1101)
    assert rows(events) == [(RowKind.COMMITTED, b"a", 1200, 1201), (RowKind.PREWRITE, b"b", 1300, 0)]
    assert [e.initialized for e in events] == [True]
    rig.cluster.commit(b"b", start_ts=1300, commit_ts=1400)
    rig.cluster.rollback(b"c", start_ts=1410)
    assert rows(rig.said()) == [(RowKind.COMMIT, b"b", 1300, 1400), (RowKind.ROLLBACK, b"c", 1410, 0)]


def test_a_range_is_all_that_is_sent() -> None:
    rig = Rig()
    rig.cluster.commit_one_phase(b"a", put(1100, 1101))
    rig.cluster.commit_one_phase(b"c", put(1100, 1101))
    assert rows(rig.ask(range=KeyRange(b"b", b"d"))) == [(RowKind.COMMITTED, b"c", 1100, 1101)]
    rig.cluster.commit_one_phase(b"d", put(1200, 1201))
    assert rows(rig.said()) == []


def test_what_another_feed_wrote_can_be_left_out() -> None:
    rig = Rig()
    rig.cluster.commit_one_phase(b"a", put(1100, 1101, txn_source=1))
    rig.cluster.commit_one_phase(b"b", put(1100, 1101, txn_source=0x100))
    rig.cluster.prewrite(b"c", Lock(1300, Op.PUT, b"v", None, 0, 7))
    seen = rows(rig.ask())
    assert {key for _, key, _, _ in seen} == {b"a", b"c"}
    assert rows(rig.ask(request_id=2, filter_loop=True)) == []
    rig.cluster.commit(b"c", start_ts=1300, commit_ts=1301, with_value=True)
    assert rows(rig.said()) == [(RowKind.COMMIT, b"c", 1300, 1301)]  # for the first registration only


def test_deregistering_is_answered_for_each_registration() -> None:
    rig = Rig()
    for region_id in (1, 2, 3):
        rig.ask(region_id)
    (event,) = rig.ask(2, deregister=True)
    assert (event.region_id, errors([event])) == (2, [RegionErrorKind.REGION_NOT_FOUND])
    assert rig.ask(2, deregister=True) == []
    ended = rig.ask(0, deregister=True)
    assert sorted(e.region_id for e in ended) == [1, 3]
    assert len(rig.feed) == 0


def test_a_split_names_the_regions_and_a_merge_none() -> None:
    rig = Rig()
    rig.ask(1)
    rig.cluster.split(1, [b"c"], [9])
    (event,) = rig.said()
    assert event.error is not None
    assert [(r.id, r.version) for r in event.error.regions] == [(9, 4), (1, 4)]
    rig.ask(2)
    rig.ask(3)
    rig.cluster.merge(2, 3)
    kinds = errors(rig.said())
    assert len(kinds) == 2
    assert set(kinds) <= {RegionErrorKind.EPOCH_NOT_MATCH, RegionErrorKind.REGION_NOT_FOUND}
    assert all(not e.error.regions for e in rig.said() if e.error)


def test_a_moved_leader_is_named() -> None:
    rig = Rig()
    rig.ask(1)
    rig.cluster.prewrite(b"a", Lock(1300, Op.PUT, b"v", None))
    rig.cluster.move_leader(1, 2)
    rows_event, error_event = rig.said()
    assert rows([rows_event]) == [(RowKind.PREWRITE, b"a", 1300, 0)]  # what was sent before its end
    assert error_event.error is not None
    assert (error_event.error.kind, error_event.error.leader_store_id) == (RegionErrorKind.NOT_LEADER, 2)


def test_resolved_ts_wait_for_the_scan_and_for_locks() -> None:
    rig = Rig(faults=replace(CALM, scan_s=50.0))
    rig.ask(1, request_id=4)
    rig.tick(1500)
    assert rig.resolved == []
    rig.cluster.prewrite(b"a", Lock(1600, Op.PUT, b"v", None))
    rig.said(seconds=60.0)
    rig.tick(1700)
    assert rig.resolved == [(4, [1], 1600)]


def test_resolved_ts_come_in_groups_with_the_smallest_of_each() -> None:
    rig = Rig()
    ids = range(100, 160)
    rig.cluster.split(3, [b"q%02d" % i for i in range(60)], list(ids))
    for region_id in ids:
        rig.ask(region_id, version=63)
    rig.ask(1, request_id=2)
    for i in range(10):
        rig.cluster.prewrite(b"q%02d" % i, Lock(2000 + i, Op.PUT, b"v", None))  # in the ten regions behind the first
    rig.tick(3000)
    groups = [(len(regions), ts) for request_id, regions, ts in rig.resolved if request_id == 1]
    assert groups == [(8, 2000), (32, 2008), (20, 3000)]
    assert [(r, ts) for request_id, r, ts in rig.resolved if request_id == 2] == [([1], 3000)]


@pytest.mark.parametrize("packed", [False, True])
def test_both_forms_of_region_lists(packed: bool) -> None:
    rig = Rig(faults=replace(CALM, packed=1.0 if packed else 0.0))
    rig.ask(1)
    rig.ask(2)
    rig.tick(2000)
    assert rig.resolved == [(1, [1, 2], 2000)]
    assert (rig.raw[-1][2] == 0x0A) is packed  # the tag of the field


def test_too_many_scans_make_a_store_busy() -> None:
    rig = Rig(faults=replace(CALM, scan_s=1e9), scans_max=2)
    rig.ask(1)
    rig.ask(2)
    (event,) = rig.ask(3)
    assert event.error is not None
    assert (event.error.kind, event.error.backoff_ms) == (RegionErrorKind.SERVER_IS_BUSY, 50)
    rig.said(seconds=2e9)
    assert errors(rig.ask(3)) == []


def test_a_client_that_does_not_read_is_congested() -> None:
    rig = Rig()
    rig.ask(1)
    rig.ask(2, stream=2)
    rig.feed.congest(1)
    (event,) = rig.said()
    assert (event.region_id, errors([event])) == (1, [RegionErrorKind.CONGESTED])
    assert len(rig.feed) == 1


def test_streams_and_stores_that_are_gone_leave_nothing() -> None:
    rig = Rig()
    rig.ask(1)
    rig.ask(2, stream=2)
    rig.cluster.commit_one_phase(b"a", put(1100, 1101))
    rig.feed.stream_over(1)
    assert rig.said() == []
    rig.cluster.kill_store(1, {1: 2, 2: 2, 3: 2})
    rig.feed.store_died(1)
    assert rig.said() == []
    assert len(rig.feed) == 0


def test_every_error_comes_in_a_storm() -> None:
    rig = Rig(faults=replace(STORM, refused=0.5, failed=0.5))
    kinds: set[RegionErrorKind] = set()
    for i in range(200):
        kinds |= set(errors([*rig.ask(1, request_id=i + 1), *rig.tick(2000 + i)]))
        rig.feed.stream_over(1)
    assert kinds >= {
        RegionErrorKind.NOT_LEADER,
        RegionErrorKind.REGION_NOT_FOUND,
        RegionErrorKind.EPOCH_NOT_MATCH,
        RegionErrorKind.DUPLICATE_REQUEST,
        RegionErrorKind.SERVER_IS_BUSY,
        RegionErrorKind.CONGESTED,
    }
