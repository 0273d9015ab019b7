"""The served RawKV feed of the model, whatever regions, stores and PD do: each registration is sent the newest version
of each key and then every write, in the order of writes, and nothing at or below what was resolved."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from pusher.core.cdcpb import RegionErrorKind
from simulator.loopback.core.feed_wire import KV_API_RAW, KV_API_TIDB, Request
from simulator.raw_workload import RawProfile, RawRow, RawWorkload, raw_cluster
from simulator.serve.faults import CALM, STORM, Faults
from simulator.serve.feed import ServedFeed
from tests.kit.change_data import read_change_data
from tistream import ts as tso
from tistream.codec.raw.keys import KeyMode, keyspace_range
from tistream.keyrange import KeyRange
from tistream.model.change import RowKind
from tistream.tikv.core.api_versions import Api

FLOOR = tso.compose(1_750_000_000_000)
STEPS = 400
WANTED = keyspace_range(KeyMode.RAW, 1)  # a region holds other keyspaces, too
Row = tuple[int, Any, bytes | None, int]  # commit_ts, op, value, expire_ts


@dataclass
class Told:
    """What one registration was told, by key."""

    range: KeyRange
    checkpoint_ts: int
    before: dict[bytes, int]  #: writes of each key when it was registered
    rows: dict[bytes, list[Row]] = field(default_factory=dict)
    initialized: bool = False
    resolved_ts: int = 0


class Client:
    """Registers regions at random checkpoints, and keeps what it hears."""

    def __init__(self, seed: int, faults: Faults, *, hybrid: bool) -> None:
        profile = RawProfile(hybrid=hybrid)
        self.rand = random.Random(seed)
        self.cluster = raw_cluster(profile, floor_ts=FLOOR)
        self.workload = RawWorkload(seed, self.cluster, profile)
        self.feed = ServedFeed(self.cluster, cluster_id=1, rand=random.Random(seed), faults=faults, api=Api.V2)
        self.living: dict[tuple[int, int], Told] = {}
        self.over: list[Told] = []
        self.now, self.requests = 0.0, 0

    def play(self) -> None:
        for step in range(STEPS):
            self.now += 0.04
            self.workload.advance_to(FLOOR + (int(self.now * 1000) << 18))
            assert self.workload.step()
            assert self.workload.disorder == ""
            if self.rand.random() < 0.1:
                self.register()
            self.feed.pump(self.now)
            if step % 20 == 0:
                self.feed.tick(self.workload.tick(), self.now)
            self.hear()
        self.over += self.living.values()

    def register(self, kv_api: int = KV_API_RAW) -> None:
        region = self.rand.choice(list(self.cluster.regions_touching(WANTED)))
        range_ = region.range.intersect(WANTED)
        assert range_ is not None
        self.requests += 1
        resolved_ts = self.workload.writes.resolved(region.region_id) or 0
        checkpoint_ts = self.rand.choice([0, max(0, resolved_ts - self.rand.randrange(5000 << 18))])
        if kv_api == KV_API_TIDB:
            checkpoint_ts = FLOOR
        self.living[self.requests, region.region_id] = Told(range_, checkpoint_ts, self.counts())
        request = Request(
            cluster_id=1,
            region_id=region.region_id,
            version=region.version,
            request_id=self.requests,
            range=range_,
            checkpoint_ts=checkpoint_ts,
            kv_api=kv_api,
            deregister=False,
            ticdc_version="8.5.4",
        )
        self.feed.request(1, region.store_id, request, self.now)

    def counts(self) -> dict[bytes, int]:
        return {key: len(rows) for key, rows in self.workload.versions.items()}

    def hear(self) -> None:
        for _, data in self.feed.take_output():
            message = read_change_data(data)
            for event in message.events:
                place = event.request_id, event.region_id
                registration = self.living.get(place)
                if registration is None:
                    continue
                if event.rows is not None:
                    self.take(registration, event.rows.to_pylist())
                registration.initialized = registration.initialized or event.initialized
                if event.error is not None:
                    self.over.append(self.living.pop(place))
            if (resolved := message.resolved) is not None:
                for region_id in resolved.regions.tolist():
                    if (registration := self.living.get((resolved.request_id, region_id))) is not None:
                        registration.resolved_ts = max(registration.resolved_ts, resolved.ts)

    def take(self, registration: Told, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            key = row["key"]
            assert key in registration.range
            assert (row["kind"], row["start_ts"], row["old_value"]) == (RowKind.COMMITTED, row["commit_ts"], None)
            assert row["commit_ts"] > max(registration.checkpoint_ts, registration.resolved_ts)
            registration.rows.setdefault(key, []).append((row["commit_ts"], row["op"], row["value"], row["expire_ts"]))


@pytest.mark.parametrize("faults", [CALM, STORM], ids=["calm", "storm"])
@pytest.mark.parametrize("hybrid", [False, True], ids=["cache", "hybrid"])
def test_a_registration_gets_the_newest_versions_and_every_later_write(faults: Faults, hybrid: bool) -> None:
    skipped = said = refused = 0
    for seed in range(4):
        client = Client(seed, faults, hybrid=hybrid)
        client.play()
        refused += client.workload.refused
        for registration in (registration for registration in client.over if registration.initialized):
            is_whole = faults is CALM and registration in client.living.values()
            for key in filter(registration.range.__contains__, client.workload.versions):
                skipped += check(registration, key, client.workload.versions[key], is_whole=is_whole)
            said += sum(map(len, registration.rows.values()))
    assert refused or hybrid, "PD was away for longer than the timestamps of a store lasted"
    assert skipped, "some scans began below versions that were overwritten"
    assert said > 500


def check(registration: Told, key: bytes, truth: list[RawRow], *, is_whole: bool) -> int:
    """Compare what was said of a key with its writes; how many above the checkpoint were never sent."""
    number = {row.commit_ts: i for i, row in enumerate(truth)}
    rows, before = registration.rows.get(key, []), registration.before.get(key, 0)
    at = [number[row[0]] for row in rows]
    assert rows == [(truth[i].commit_ts, truth[i].op, truth[i].value, truth[i].expire_ts) for i in at]
    live = sorted({i for i in at if i >= before})
    assert live == list(range(before, before + len(live))), "every later write"
    assert [i for i in at if i < before] in ([], [before - 1]), "one version of those before"
    assert len(at) <= len(live) + 1
    orders = [at, *(at[:i] + at[i + 1 :] for i in range(len(at)))]
    assert any(order == sorted(order) for order in orders), "but for the scan's, rows come in the order of writes"
    if before and truth[before - 1].commit_ts > registration.checkpoint_ts:
        assert before - 1 in at or live, "the newest version"
    if is_whole:
        assert before + len(live) == len(truth)
    first = min(at, default=0)
    return sum(row.commit_ts > registration.checkpoint_ts for row in truth[:first])


def test_others_hear_nothing_of_raw_keys_and_delete_range_is_not_heard_of() -> None:
    client = Client(1, CALM, hybrid=False)
    client.register(KV_API_TIDB)
    client.register()
    for _ in range(30):
        client.workload.advance_to(client.cluster.now_ts + (50 << 18))
        client.workload._put()
        client.feed.pump(1.0)
        client.hear()
    tidb, raw = client.living.values()
    assert tidb.initialized
    assert not tidb.rows
    assert raw.rows
    said = sum(map(len, raw.rows.values()))
    client.cluster.vanish(WANTED)
    client.feed.pump(2.0)
    client.hear()
    assert sum(map(len, raw.rows.values())) == said
    assert list(client.workload.writes.scan(WANTED)) == []


@pytest.mark.parametrize("api", [Api.V1, Api.V1TTL])
def test_servers_of_older_apis_refuse_the_raw_feed(api: Api) -> None:
    client = Client(1, CALM, hybrid=False)
    client.feed = ServedFeed(client.cluster, cluster_id=1, rand=random.Random(1), api=api)
    client.register()
    events = [event for _, data in client.feed.take_output() for event in read_change_data(data).events]
    assert [event.error.kind for event in events if event.error] == [RegionErrorKind.COMPATIBILITY]
