"""PD's answers and the reads of a served cluster, asked over gRPC with messages that are written here by hand."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import grpc
import pytest

from simulator.capture import SNAPSHOT, read_lines
from simulator.core.mvcc import Lock, Version
from simulator.serve.content import cluster_of, recorded_cluster
from simulator.serve.served import ServedCluster
from tistream.codec.protobuf import BYTES, VARINT, fields, merged, message, octets, uint
from tistream.errors import NotFound, TsExpired
from tistream.model.change import Op
from tistream.tikv.core.pd_messages import Region
from tistream.tikv.core.regions import plain_range
from tistream.tikv.pd import PdClient

RECORDING = Path(str(files("simulator") / "recording"))
S = 470613530891255808
KEYS = [b"k%d" % i for i in range(8)]


class Reader:
    """Asks the stores that PD names."""

    def __init__(self, served: ServedCluster) -> None:
        self.pd = PdClient([served.pd_address])
        self._channels = {s.id: grpc.insecure_channel(s.address) for s in self.pd.stores()}

    def regions(self) -> list[Region]:
        return self.pd.scan_regions(b"", b"", 1000)

    def call(self, store: int, method: str, request: bytes) -> bytes:
        answer: bytes = self._channels[store].unary_unary(f"/tikvpb.Tikv/{method}")(request, timeout=10)
        return answer

    def scan(self, region: Region, start: bytes, ts: int, *, limit: int = 100, **options: Any) -> bytes:
        store = options.get("store", region.leader_store_id)
        request = message(1, context(region, store=store, api_version=options.get("api_version", 0)))
        request += octets(2, start) + uint(3, limit) + uint(4, ts) + uint(5, options.get("key_only", 0))
        return self.call(store, "KvScan", request + octets(7, options.get("end", b"")))

    def close(self) -> None:
        self.pd.close()
        for channel in self._channels.values():
            channel.close()


def context(region: Region, *, store: int, api_version: int = 0) -> bytes:
    epoch = uint(1, region.conf_ver) + uint(2, region.version)
    return uint(1, region.id) + message(2, epoch) + message(3, uint(1, 9) + uint(2, store)) + uint(21, api_version)


def pairs(answer: bytes) -> list[tuple[bytes, bytes]]:
    said = [merged(pair, {1: BYTES, 2: BYTES, 3: BYTES}) for _, pair in fields(answer, {2: BYTES})]
    return [(pair.get(2, b""), pair.get(3, b"")) for pair in said if 1 not in pair]


def locks(answer: bytes) -> list[tuple[bytes, int]]:
    """(key, start_ts) of the locks that were met."""
    errors = [merged(pair, {1: BYTES}).get(1, b"") for _, pair in fields(answer, {2: BYTES})]
    met = [merged(merged(error, {1: BYTES})[1], {2: VARINT, 3: BYTES}) for error in errors if error]
    return [(lock[3], lock[2]) for lock in met]


def region_error(answer: bytes) -> dict[int, Any]:
    kinds = {1: BYTES, 2: BYTES, 3: BYTES, 4: BYTES, 5: BYTES, 6: BYTES, 8: BYTES}
    return merged(merged(answer, {1: BYTES}).get(1, b""), kinds)


@pytest.fixture
def served() -> Iterator[ServedCluster]:
    versions = [(key, Version(S - 9, S - 8, Op.PUT, b"v" + key, None)) for key in KEYS]
    with ServedCluster(cluster_of(versions, floor_ts=S, regions=4), keyspaces={"one": 7}) as cluster:
        yield cluster


@pytest.fixture
def reader(served: ServedCluster) -> Iterator[Reader]:
    reader = Reader(served)
    yield reader
    reader.close()


def test_a_recorded_snapshot_is_read_region_by_region() -> None:
    with ServedCluster(recorded_cluster(RECORDING, floor_ts=S, regions=7, stores=3)) as served:
        reader = Reader(served)
        received: dict[bytes, bytes] = {}
        for region in reader.regions():
            at, pages = plain_range(region).start, 0  # type: ignore[union-attr]
            while page := pairs(reader.scan(region, at, S, limit=10)):
                received.update(page)
                at, pages = page[-1][0] + b"\0", pages + 1
            assert pages > 1
        reader.close()
    lived = {bytes.fromhex(v["key"]): bytes.fromhex(v["value"]) for _, v in read_lines(RECORDING / SNAPSHOT)}
    assert received == lived
    assert len(lived) > 100


def test_a_scan_reads_at_its_version(served: ServedCluster, reader: Reader) -> None:
    region = next(r for r in reader.regions() if plain_range(r).start == b"k2")  # type: ignore[union-attr]
    with served.changing() as cluster:
        cluster.commit_one_phase(b"k2", Version(S + 1, S + 2, Op.PUT, b"new", b"vk2"))
        cluster.commit_one_phase(b"k3", Version(S + 3, S + 4, Op.DELETE, None, b"vk3"))
    assert pairs(reader.scan(region, b"k2", S + 1)) == [(b"k2", b"vk2"), (b"k3", b"vk3")]
    assert pairs(reader.scan(region, b"k2", S + 3)) == [(b"k2", b"new"), (b"k3", b"vk3")]
    assert pairs(reader.scan(region, b"k2", S + 4)) == [(b"k2", b"new")]
    assert pairs(reader.scan(region, b"k2", S, limit=1)) == [(b"k2", b"vk2")]
    assert pairs(reader.scan(region, b"k2", S, end=b"k3")) == [(b"k2", b"vk2")]
    assert pairs(reader.scan(region, b"k2", S, end=b"k2")) == []
    assert pairs(reader.scan(region, b"k2", S, key_only=1)) == [(b"k2", b""), (b"k3", b"")]


def test_locks_stand_in_their_keys_places(served: ServedCluster, reader: Reader) -> None:
    region = next(r for r in reader.regions() if plain_range(r).start == b"k2")  # type: ignore[union-attr]
    with served.changing() as cluster:
        cluster.prewrite(b"k2", Lock(S + 5, Op.PUT, b"x", b"vk2"))
    before = reader.scan(region, b"k2", S + 4)
    assert (pairs(before), locks(before)) == ([(b"k2", b"vk2"), (b"k3", b"vk3")], [])
    after = reader.scan(region, b"k2", S + 5)
    assert (pairs(after), locks(after)) == ([(b"k3", b"vk3")], [(b"k2", S + 5)])
    with served.changing() as cluster:
        cluster.commit(b"k2", start_ts=S + 5, commit_ts=S + 6)
    assert pairs(reader.scan(region, b"k2", S + 6)) == [(b"k2", b"x"), (b"k3", b"vk3")]


def test_a_single_key_is_read(served: ServedCluster, reader: Reader) -> None:
    region = next(r for r in reader.regions() if plain_range(r).start == b"k2")  # type: ignore[union-attr]

    def get(key: bytes, ts: int) -> dict[int, Any]:
        request = message(1, context(region, store=region.leader_store_id)) + octets(2, key) + uint(3, ts)
        return merged(reader.call(region.leader_store_id, "KvGet", request), {2: BYTES, 3: BYTES, 4: VARINT})

    assert get(b"k2", S) == {3: b"vk2"}
    assert get(b"k2x", S) == {4: 1}
    with served.changing() as cluster:
        cluster.prewrite(b"k2", Lock(S + 5, Op.DELETE, None, b"vk2"))
    assert 1 in merged(get(b"k2", S + 5)[2], {1: BYTES})


def test_what_does_not_fit_is_a_region_error(served: ServedCluster, reader: Reader) -> None:
    old = next(r for r in reader.regions() if plain_range(r).start == b"k2")  # type: ignore[union-attr]
    other = old.leader_store_id % 3 + 1
    assert 2 in region_error(reader.scan(old, b"k2", S, store=other))
    assert 4 in region_error(reader.scan(old, b"k1", S))
    assert 8 in region_error(
        reader.call(other, "KvScan", message(1, context(old, store=old.leader_store_id)) + octets(2, b"k2"))
    )
    with served.changing() as cluster:
        cluster.split(old.id, [b"k3"], [77])
    error = region_error(reader.scan(old, b"k2", S))
    now = [merged(body, {1: VARINT, 2: BYTES}) for _, body in fields(error[5], {1: BYTES})]
    assert [n[1] for n in now] == [77, old.id]
    with served.changing() as cluster:
        left = cluster.regions()[0]
        cluster.move_leader(left.region_id, cluster.regions()[1].store_id)
        cluster.merge(left.region_id, cluster.regions()[1].region_id)
    stale = Region(id=left.region_id, conf_ver=1, version=1, start=b"", end=b"", leader_store_id=left.store_id)
    assert 3 in region_error(reader.scan(stale, b"", S))
    served.reads.busy_next = 1
    assert 6 in region_error(reader.scan(old, b"k2", S))


def test_api_versions_and_history_that_is_gone(served: ServedCluster, reader: Reader) -> None:
    region = reader.regions()[0]
    for said in (reader.scan(region, b"", S, api_version=2), reader.scan(region, b"", S - 1)):
        assert 3 in merged(merged(said, {3: BYTES})[3], {3: BYTES})
        assert pairs(said) == []


def test_a_dead_store_does_not_answer(served: ServedCluster, reader: Reader) -> None:
    region = reader.regions()[0]
    dead = region.leader_store_id
    with served.changing() as cluster:
        cluster.kill_store(dead, {r.region_id: dead % 3 + 1 for r in cluster.regions(dead)})
    with pytest.raises(grpc.RpcError) as e:
        reader.scan(region, b"", S)
    assert e.value.code() is grpc.StatusCode.UNAVAILABLE
    assert reader.regions()[0].leader_store_id == dead % 3 + 1


@pytest.mark.parametrize("old_pd", [False, True])
def test_history_is_held_and_collected(old_pd: bool) -> None:
    with ServedCluster(cluster_of([], floor_ts=S), old_pd=old_pd, keyspaces={"one": 7}) as served:
        pd = PdClient([served.pd_address])
        pd.hold_history("me", S + 10, 60)
        assert served.pd.collect_garbage(S + 20) == S + 10
        pd.release_history("me")
        assert served.pd.collect_garbage(S + 20) == S + 20
        with pytest.raises(TsExpired):
            pd.hold_history("me", S + 10, 60)
        assert pd.keyspace("one").id == 7
        with pytest.raises(NotFound):
            pd.keyspace("two")
        assert S < pd.tso() < served.tso() < pd.tso()
        pd.close()
