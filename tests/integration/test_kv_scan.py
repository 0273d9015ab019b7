"""A cluster read at a timestamp over gRPC, while it splits, moves, is busy and holds locks."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from importlib.resources import files
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pusher.schema_scan import read_schema
from simulator.core.mvcc import Lock, Version
from simulator.serve.content import cluster_of, recorded_cluster
from simulator.serve.core.kv import KvReads
from simulator.serve.served import ServedCluster
from tests.kit.waiting import WAIT_S, eventually
from tistream.clock import SystemClock
from tistream.errors import CorruptObject, InvalidInput, StoreUnavailable
from tistream.keyrange import KeyRange
from tistream.model.change import Op
from tistream.tikv.core.kv_messages import ApiVersion, KvRefused
from tistream.tikv.kv_scan import KvReader
from tistream.tikv.pd import PdClient

RECORDING = Path(str(files("simulator") / "recording"))
S = 470613530891255808
ALL = KeyRange()
PAIRS = [(b"k%03d" % i, b"value %d" % i) for i in range(300)]


@pytest.fixture
def served() -> Iterator[ServedCluster]:
    versions = [(key, Version(S - 9, S - 8, Op.PUT, value, None)) for key, value in PAIRS]
    with ServedCluster(cluster_of(versions, floor_ts=S, regions=5)) as cluster:
        yield cluster


@pytest.fixture
def stop() -> threading.Event:
    return threading.Event()


@pytest.fixture
def reader(served: ServedCluster, stop: threading.Event) -> Iterator[KvReader]:
    yield from a_reader(served, stop)


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch, stop: threading.Event) -> Iterator[tuple[KvReader, list[bytes]]]:
    """A reader of stores that give the answer in the list."""
    answers = [b""]
    monkeypatch.setattr(KvReads, "scan", lambda *_: answers[0])
    versions = [(key, Version(S - 9, S - 8, Op.PUT, value, None)) for key, value in PAIRS]
    with ServedCluster(cluster_of(versions, floor_ts=S, regions=5)) as served:
        for reader in a_reader(served, stop, patience_s=0.0):
            yield reader, answers


def a_reader(served: ServedCluster, stop: threading.Event, patience_s: float = 20.0) -> Generator[KvReader]:
    pd = PdClient([served.pd_address])
    reader = KvReader(pd, clock=SystemClock(), stop=stop, patience_s=patience_s)
    yield reader
    reader.close()
    pd.close()


def read(reader: KvReader, part: KeyRange = ALL, ts: int = S) -> list[tuple[bytes, bytes]]:
    return [p for page in reader.read(part, ts) for p in zip(page.keys, page.values, strict=True)]


def test_every_pair_once_in_order(reader: KvReader) -> None:
    assert read(reader) == PAIRS
    assert read(reader, KeyRange(b"k010", b"k020")) == PAIRS[10:20]
    assert read(reader, KeyRange(b"l", b"m")) == []


def test_splits_moves_and_busy_servers_between_two_pages(served: ServedCluster, reader: KvReader) -> None:
    pairs: list[tuple[bytes, bytes]] = []
    for n, page in enumerate(reader.read(KeyRange(), S)):
        pairs += zip(page.keys, page.values, strict=True)
        with served.changing() as cluster:
            region = cluster.region_of(page.keys[-1] + b"\0")
            if n % 2:
                cluster.move_leader(region.region_id, region.store_id % 3 + 1)
            elif page.keys[-1] + b"\0" > region.range.start:
                cluster.split(region.region_id, [page.keys[-1] + b"\0"], [1000 + n])
        served.reads.busy_next = 1 if n == 2 else 0
    assert pairs == PAIRS


def test_a_lock_is_waited_for(served: ServedCluster, reader: KvReader) -> None:
    start_ts = S + 10
    with served.changing() as cluster:
        cluster.prewrite(b"k100", Lock(start_ts, Op.PUT, b"new", None))
    pairs: list[tuple[bytes, bytes]] = []
    read_ts = served.tso()
    thread = threading.Thread(target=lambda: pairs.extend(read(reader, ts=read_ts)))
    thread.start()
    eventually(lambda: "locks the key" in reader.problem)
    assert f"{start_ts} locks the key {b'k100'.hex()}" in reader.problem
    assert thread.is_alive()
    with served.changing() as cluster:
        cluster.commit(b"k100", start_ts=start_ts, commit_ts=start_ts + 5)
    thread.join(WAIT_S)
    assert pairs == [(key, b"new" if key == b"k100" else value) for key, value in PAIRS]


def test_a_store_that_stays_busy_is_told_in_the_end(served: ServedCluster, stop: threading.Event) -> None:
    served.reads.busy_next = 1000
    impatient = next(readers := a_reader(served, stop, patience_s=0.1))
    with pytest.raises(StoreUnavailable, match="region 1 cannot be read: SERVER_IS_BUSY"):
        read(impatient)
    stop.set()
    with pytest.raises(StoreUnavailable):
        read(impatient)
    readers.close()


def test_a_refusal_names_store_region_and_request(reader: KvReader) -> None:
    with pytest.raises(KvRefused, match=r"storage_api_version: V1.*store=\d, region=5, request=KvScan") as e:
        list(reader.read(KeyRange(b"x\0\0\1", b"x\0\0\2"), S, ApiVersion.V2))
    assert e.value.code == "TS-1036"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(answer=st.binary(max_size=40))
def test_hostile_answers_name_store_region_and_request(hostile: tuple[KvReader, list[bytes]], answer: bytes) -> None:
    reader, answers = hostile
    answers[:] = [answer]
    part, error = KeyRange(b"k000", b"k010"), None
    try:
        for page in reader.read(part, S):
            assert all(key in part for key in page.keys)
    except (CorruptObject, KvRefused) as e:
        error = e
    except StoreUnavailable:
        assert reader.problem != ""  # it may be a region error, or a lock
    if error is not None:
        said = [error.facts[name] for name in ("store", "region", "request")]
        assert said == [1, 1, f"KvScan {part} at {S}"]


def test_the_schema_of_the_recorded_cluster_is_the_recorded_one(stop: threading.Event) -> None:
    with ServedCluster(recorded_cluster(RECORDING, floor_ts=S, regions=12)) as served:
        for reader in a_reader(served, stop):
            schema = orjson.loads(read_schema(reader, S))
    assert schema == orjson.loads((RECORDING / "schema_snapshot.json").read_bytes())


def test_a_cluster_without_tidb_has_no_schema(reader: KvReader) -> None:
    with pytest.raises(InvalidInput, match=r"no mysql\.tidb_ddl_job"):
        read_schema(reader, S)


def test_a_page_above_the_message_size_is_split(stop: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small rows first, so that many are asked for at once when the large ones come."""
    limit = ("grpc.max_receive_message_length", 1 << 16)
    monkeypatch.setattr("tistream.tikv.channels._OPTIONS", (limit,))
    monkeypatch.setattr("tistream.tikv.kv_scan._PAGE_BYTES", 1 << 15)
    pairs = [(b"k0%05d" % i, b"v") for i in range(3000)] + [(b"k1%05d" % i, b"x" * 4096) for i in range(60)]
    versions = [(key, Version(S - 9, S - 8, Op.PUT, value, None)) for key, value in pairs]
    with ServedCluster(cluster_of(versions, floor_ts=S, regions=1)) as served:
        for reader in a_reader(served, stop):
            assert read(reader) == pairs
            assert "RESOURCE_EXHAUSTED" not in reader.problem


def test_a_slow_store_gets_more_time(served: ServedCluster, reader: KvReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads over much that was deleted before it finds a pair."""
    plain = KvReads.scan

    def slow(self: KvReads, store: int, data: bytes) -> bytes:
        time.sleep(0.25)
        return plain(self, store, data)

    reader._call_s = 0.05
    monkeypatch.setattr(KvReads, "scan", slow)
    assert [p for page in reader.read(KeyRange(b"k000", b"k010"), S) for p in page.keys] == [k for k, _ in PAIRS[:10]]
