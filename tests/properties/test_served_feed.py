"""Whatever the workload, the faults and the registrations: each registration of the served model keeps its promise by
itself, and says nothing that was not committed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from pusher.core.cdcpb import RegionErrorKind
from simulator.loopback.core.feed_wire import Request
from simulator.profiles import DEFAULT, PIPELINED, TINY, TOPOLOGY_STORM
from simulator.serve.content import workload_cluster
from simulator.serve.faults import CALM, STORM, Faults
from simulator.serve.feed import ServedFeed
from simulator.workload import Workload
from tests.kit.change_data import RegionEvent, read_change_data
from tistream.keyrange import KeyRange
from tistream.model.change import RowKind

FLOOR = 1 << 40
PROFILES = [DEFAULT, TOPOLOGY_STORM, PIPELINED, TINY]


@dataclass
class Told:
    """What one registration was told."""

    range: KeyRange  #: of the region and the request
    checkpoint_ts: int
    prewritten: set[tuple[bytes, int]] = field(default_factory=set)
    versions: set[tuple[bytes, int]] = field(default_factory=set)  #: key, commit_ts
    initialized: bool = False
    resolved_ts: int = 0


class Client:
    """Registers at random, and checks everything that it hears."""

    def __init__(self, seed: int, faults: Faults, profile_number: int) -> None:
        profile = PROFILES[profile_number]
        self.rand = random.Random(seed)
        self.cluster = workload_cluster(profile, floor_ts=FLOOR)
        self.workload = Workload(seed, self.cluster, profile)
        self.feed = ServedFeed(self.cluster, cluster_id=1, rand=random.Random(seed + 1), faults=faults)
        self.living: dict[tuple[int, int], Told] = {}
        self.over: list[Told] = []
        self.now = 0.0
        self.requests = 0

    def act(self) -> None:
        self.now += 0.01
        dice = self.rand.random()
        if dice < 0.15:
            self.register()
        elif dice < 0.2:
            self.feed.tick(self.workload.tick(), self.now)
        elif dice < 0.21 and self.living:
            request_id, region_id = self.rand.choice(list(self.living))
            self.feed.request(1, 1, self.request(request_id, region_id, 0, KeyRange(), 0, deregister=True), self.now)
        elif dice < 0.22:
            self.feed.stream_over(1)
            self.over += self.living.values()
            self.living.clear()
        else:
            self.workload.step()
            self.feed.pump(self.now)
        self.hear()

    def register(self) -> None:
        region = self.rand.choice(self.cluster.regions())
        bound = self.rand.choice(self.cluster.regions()).range.start
        key_range = self.rand.choice([KeyRange(), KeyRange(bound), KeyRange(b"m", b"n"), KeyRange(b"", bound or b"u")])
        both = region.range.intersect(key_range)
        if both is None:
            return
        checkpoint_ts = self.rand.choice([FLOOR, self.cluster.now_ts, self.rand.randint(FLOOR, self.cluster.now_ts)])
        self.requests += 1
        self.living[self.requests, region.region_id] = Told(both, checkpoint_ts)
        version = region.version - (self.rand.random() < 0.05)
        message = self.request(self.requests, region.region_id, version, key_range, checkpoint_ts)
        self.feed.request(1, region.store_id, message, self.now)

    def request(
        self, request_id: int, region_id: int, version: int, key_range: KeyRange, checkpoint_ts: int, **more: bool
    ) -> Request:
        return Request(
            cluster_id=1,
            region_id=region_id,
            version=version,
            request_id=request_id,
            range=key_range,
            checkpoint_ts=checkpoint_ts,
            kv_api=0,
            deregister=more.get("deregister", False),
            ticdc_version="8.5.4",
        )

    def hear(self) -> None:
        for stream, data in self.feed.take_output():
            assert stream == 1
            said = read_change_data(data)
            for event in said.events:
                self.hear_event(event)
            if said.resolved is not None:
                for region_id in said.resolved.regions.tolist():
                    registration = self.living[said.resolved.request_id, region_id]
                    assert registration.initialized
                    registration.resolved_ts = max(registration.resolved_ts, said.resolved.ts)
                    self.check(registration)

    def hear_event(self, event: RegionEvent) -> None:
        registration = self.living[event.request_id, event.region_id]
        for row in event.rows.to_pylist() if event.rows is not None else []:
            key, lock = row["key"], (row["key"], row["start_ts"])
            assert key in registration.range
            if row["kind"] == RowKind.PREWRITE:
                registration.prewritten.add(lock)
            elif row["kind"] in (RowKind.COMMIT, RowKind.COMMITTED):
                assert row["commit_ts"] > registration.resolved_ts or (key, row["commit_ts"]) in registration.versions
                if row["kind"] == RowKind.COMMIT and registration.initialized:
                    assert lock in registration.prewritten
                registration.versions.add((key, row["commit_ts"]))
        assert not (event.initialized and registration.initialized)
        registration.initialized |= event.initialized
        if event.error is not None and event.error.kind is not None:
            assert event.error.kind not in (RegionErrorKind.COMPATIBILITY, RegionErrorKind.CLUSTER_ID_MISMATCH)
            self.over.append(self.living.pop((event.request_id, event.region_id)))

    def check(self, registration: Told) -> None:
        """Everything in its range above its checkpoint and up to its resolved ts was told."""
        for row in self.workload.committed:
            if row.key in registration.range and registration.checkpoint_ts < row.commit_ts <= registration.resolved_ts:
                assert (row.key, row.commit_ts) in registration.versions

    def check_nothing_made_up(self) -> None:
        committed = {(row.key, row.commit_ts) for row in self.workload.committed}
        for registration in [*self.over, *self.living.values()]:
            assert registration.versions <= committed


faults = st.sampled_from([CALM, STORM, replace(STORM, scan_rows=1, scan_s=0.5, held=0.5, held_s=1.0)])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32), faults, st.integers(0, len(PROFILES) - 1))
def test_each_registration_keeps_its_promise(seed: int, faults: Faults, profile_number: int) -> None:
    client = Client(seed, faults, profile_number)
    for _ in range(300):
        client.act()
    client.check_nothing_made_up()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(0, len(PROFILES) - 1))
def test_who_stays_hears_everything(seed: int, profile_number: int) -> None:
    client = Client(seed, CALM, profile_number)
    for _ in range(200):
        client.act()
    client.workload.drain()
    client.feed.pump(client.now)
    client.hear()
    end_ts = client.workload.tick()
    client.feed.tick(end_ts, client.now)
    client.hear()
    for registration in client.living.values():
        assert (registration.initialized, registration.resolved_ts) == (True, end_ts)
        client.check(registration)
