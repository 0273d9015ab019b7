"""The RawKV client against stores that answer over gRPC: a storm of faults, writers in several threads, each API
version, what is refused, and what takes too long."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from simulator.raw_workload import RawProfile, RawWorkload, raw_cluster
from simulator.serve.core.raw import ENTRY_BYTES_MAX, KEY_BYTES_MAX, Applied
from simulator.serve.faults import CALM, STORM, Faults
from simulator.serve.served import ServedCluster
from tests.kit.manual_clock import ManualClock
from tests.kit.waiting import eventually
from tistream import ts as tso
from tistream.clock import SystemClock
from tistream.codec.raw.keys import KeyMode, keyspace_prefix
from tistream.errors import InvalidInput, StoreUnavailable
from tistream.keyrange import KeyRange
from tistream.tikv.core.api_versions import Api
from tistream.tikv.core.raw_messages import RawRefused, RawSpace
from tistream.tikv.pd import PdClient
from tistream.tikv.raw_client import RawClient, WriteLimits, learn_api
from tistream.tikv.region_leaders import OutOfTime

KEYSPACE, OTHERS = 2, 1
PREFIX = keyspace_prefix(KeyMode.RAW, KEYSPACE)
SWIFT = WriteLimits(backoff_base_s=0.01, backoff_max_s=0.2, batch_keys=40)


@contextmanager
def a_cluster(
    api: Api = Api.V2, *, faults: Faults = CALM, storm: bool = False, regions: int = 6
) -> Iterator[ServedCluster]:
    """Two keyspaces of a thousand keys. `storm`: regions and stores change, and the other keyspace is written."""
    profile = RawProfile(keyspaces=(OTHERS, KEYSPACE), keys=1000)
    actions = tuple((name, n * 10 if name == "put" else n) for name, n in profile.actions)
    cluster = raw_cluster(profile, floor_ts=tso.compose(SystemClock().unix_ms()), regions=regions)
    workload = RawWorkload(3, cluster, replace(profile, keyspaces=(OTHERS,), actions=actions)) if storm else None
    with ServedCluster(
        cluster,
        raw=workload,
        api=api,
        plain_boundaries=api is not Api.V2,
        steps_per_s=300 if storm else 0,
        faults=faults,
        seed=5,
    ) as served:
        yield served


@contextmanager
def a_client(served: ServedCluster, api: Api = Api.V2, limits: WriteLimits = SWIFT) -> Iterator[RawClient]:
    with closing(PdClient([served.pd_address], patience_s=3.0)) as pd:
        client = RawClient(pd, RawSpace(api, KEYSPACE), clock=SystemClock(), limits=limits)
        with closing(client):
            yield client


ENDS: dict[str, type] = {"written": type(None), "out of patience": StoreUnavailable, "out of time": OutOfTime}


def column(values: list[bytes]) -> pa.BinaryArray:
    return pa.array(values, pa.binary())


def everything(client: RawClient) -> dict[bytes, bytes]:
    pages = list(client.scan(page_keys=70))
    return {k: v for page in pages for k, v in zip(page.keys.to_pylist(), page.values.to_pylist(), strict=True)}


def test_writers_in_a_storm() -> None:
    """Each thread has its own keys, and writes them again and again; the last write of each stays."""
    writers, rounds = 4, 25
    expected: dict[bytes, bytes | None] = {}
    seen: dict[bytes, list[int]] = {}
    lock = threading.Lock()
    with a_cluster(faults=STORM, storm=True) as served, a_client(served, limits=replace(SWIFT, write_s=2.0)) as client:

        def note(write: Applied) -> None:
            seen.setdefault(write.key, []).append(-1 if write.value is None else int(write.value.split(b"-")[1]))

        def write(writer: int) -> None:
            rand = random.Random(writer)
            for at in range(rounds):
                numbers = sorted(rand.sample(range(writer, 1000, writers), 120))
                keys = [b"k%08d" % n for n in numbers]
                values = [b"w%d-%d" % (writer, at) for _ in keys]
                if at % 5 == 4:
                    client.batch_delete(column(keys))
                else:
                    client.batch_put(column(keys), column(values))
                with lock:
                    expected.update(zip(keys, values if at % 5 != 4 else [None] * len(keys), strict=True))

        served.raw_kv.on_write = note
        with ThreadPoolExecutor(writers) as threads:
            for done in [threads.submit(write, writer) for writer in range(writers)]:
                done.result(timeout=100)
        served.settle()
        assert everything(client) == {key: value for key, value in expected.items() if value is not None}
        assert served.raw is not None
        assert served.raw.disorder == ""
    for key, rounds_seen in seen.items():
        puts = [at for at in rounds_seen if at >= 0]
        assert puts == sorted(puts), key
    assert sum(map(len, seen.values())) > writers * rounds * 120, "no write was repeated: there was no storm"


@pytest.mark.parametrize("api", Api)
def test_each_api_version(api: Api) -> None:
    """Regions of API V1 are cut at plain keys; the version is learned from a refusal."""
    keys = [(b"" if api is Api.V2 else PREFIX) + b"k%08d" % n for n in range(300)]
    with a_cluster(api) as served, a_client(served, api) as client:
        with closing(PdClient([served.pd_address])) as pd:
            assert learn_api(pd, clock=SystemClock()) is api
        client.batch_put(column(keys), column([b"v" + key for key in keys]))
        assert everything(client) == {key: b"v" + key for key in keys}
        assert len(client.regions(KeyRange(keys[0], keys[-1]))) > 1
        total = client.checksum()
        key_bytes = len(PREFIX) + 9
        assert (total.pairs, total.size) == (300, 300 * (key_bytes + 1 + len(keys[0])))
        soon = np.array([int(time.time()) + 90, 5, 0], np.uint64)
        if api is Api.V1:
            with pytest.raises(InvalidInput):
                client.batch_put(column(keys[:3]), column(keys[:3]), soon)
            with pytest.raises(InvalidInput):
                client.get_ttl(keys[0])
            assert client.get(keys[0]) == b"v" + keys[0]  # the store lives
        else:
            client.batch_put(column(keys[:3]), column([b"", b"", b""]), soon)
            assert 80 < (client.get_ttl(keys[0]) or 0) <= 91
            assert client.get(keys[1]) is None
            assert (client.get(keys[2]), client.get_ttl(keys[2])) == (b"", 0)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_all_entries_that_are_refused_are_named_and_the_others_are_written(concurrency: int) -> None:
    bad = [b"b" * KEY_BYTES_MAX, b"m" * KEY_BYTES_MAX, b"z" * KEY_BYTES_MAX]
    good = [b"a%02d" % n for n in range(40)] + [b"p%02d" % n for n in range(40)]
    keys = sorted([*good, *bad, b"n"])
    values = [bytes(ENTRY_BYTES_MAX) if key == b"n" else b"v" for key in keys]
    limits = replace(SWIFT, concurrency=concurrency, batch_keys=30)
    with a_cluster() as served, a_client(served, limits=limits) as client:
        with pytest.raises(RawRefused) as refused:
            client.batch_put(column(keys), column(values))
        assert [key for key, _ in refused.value.refused] == sorted([*bad, b"n"])
        assert [client.get(key) for key in good] == [b"v"] * len(good)
        causes = dict(refused.value.refused)
        assert "max key size exceeded" in causes[bad[0]]
        assert "too large for the region's log" in causes[b"n"]


def test_a_refusal_of_every_request_names_no_entry() -> None:
    with a_cluster(Api.V1) as served, a_client(served) as client:
        with pytest.raises(RawRefused, match="Api version") as refused:
            client.batch_put(column([b"a", b"b"]), column([b"1", b"2"]))
        assert (refused.value.refused, refused.value.facts) == ((), {})


def test_a_final_refusal_names_its_key() -> None:
    keys = column([b"a", b"b" * KEY_BYTES_MAX, b"c"])
    with a_cluster() as served, a_client(served) as client:
        with pytest.raises(RawRefused, match="max key size exceeded") as refused:
            client.batch_put(keys, column([b"1", b"2", b"3"]))
        assert refused.value.facts["key"] == (b"b" * KEY_BYTES_MAX).hex()
        with pytest.raises(RawRefused, match="too large for the region's log") as refused:
            client.batch_put(column([b"a", b"b"]), column([b"1", bytes(ENTRY_BYTES_MAX)]))
        assert refused.value.facts["key"] == b"b".hex()
        with pytest.raises(InvalidInput, match="rise"):
            client.batch_put(column([b"a", b"a"]), column([b"1", b"2"]))


def test_no_request_outlives_the_time_it_has() -> None:
    """The store is slow: a request ends with the time that it had, and is not applied later."""
    keys, applied = [b"k%08d" % n for n in range(0, 1000, 100)], list[Applied]()
    with a_cluster() as served, a_client(served) as client:
        client.batch_put(column(keys), column(keys))
        served.raw_kv.on_write = applied.append
        served.raw_latency_s = lambda store_id: 2.0
        until = time.monotonic() + 0.3
        with pytest.raises(OutOfTime):
            client.batch_put(column(keys), column(keys), allowed=lambda: until - time.monotonic())
        with pytest.raises(OutOfTime):
            client.batch_put(column(keys), column(keys), allowed=lambda: 0.0)
        time.sleep(1.0)
        assert applied == []


@pytest.mark.parametrize("ends", ["written", "out of patience", "out of time"])
def test_a_write_without_an_answer_does_not_overtake_the_next(ends: str) -> None:
    """The store has the request and applies it after its connection is cut; however the call ends, not after it."""
    applied, late = list[bytes | None](), 0
    limits = replace(SWIFT, write_s=1.0, patience_s=0.0 if ends == "out of patience" else 20.0)

    def first(client: RawClient, key: list[bytes]) -> None:
        until = time.monotonic() + (0.8 if ends == "out of time" else 60)
        allowed = lambda: until - time.monotonic()  # noqa: E731
        if key == [b"a"]:
            client.batch_put(column(key), column([b"old"]), allowed=allowed)
        else:
            client.batch_delete(column(key), allowed=allowed)

    with a_cluster() as served, a_client(served, limits=limits) as client, ThreadPoolExecutor(1) as threads:
        for key in [b"a"], [b"z"]:
            client.batch_put(column(key), column([b"before"]))
            applied.clear()
            served.raw_kv.on_write = lambda write: applied.append(write.value)
            served.feed.faults, served.raw_latency_s = Faults(raw_late=1.0), lambda store_id: 0.25
            call = threads.submit(first, client, key)
            eventually(lambda: served.late_writes)
            late, served.feed.faults, served.raw_latency_s = served.late_writes, CALM, lambda store_id: 0.0
            raised = call.exception(timeout=60)
            assert isinstance(raised, ENDS[ends]), raised
            client.batch_put(column(key), column([b"new"]))
            eventually(lambda: served.late_writes == 0)
            assert len(applied) == late + (2 if ends == "written" else 1), "each late one was applied"
            assert (applied[-1], client.get(key[0])) == (b"new", b"new")


def test_the_client_gives_up_without_stores() -> None:
    """Only the first write is waited for: after it each store is asked with a read first."""
    clock, limits = ManualClock(), WriteLimits(backoff_max_s=0.5)
    with (
        a_cluster() as served,
        closing(PdClient([served.pd_address])) as pd,
        closing(RawClient(pd, RawSpace(Api.V2, KEYSPACE), clock=clock, limits=limits)) as client,
    ):
        client.batch_put(column([b"k"]), column([b"v"]))
        with served.changing():
            for store_id in served.store_ids:
                served.raw_kv.died(store_id)
        with pytest.raises(StoreUnavailable, match="does not serve RawKV"):
            client.batch_put(column([b"k"]), column([b"v"]))
    assert [round(seconds, 3) for seconds in clock.waited_s if seconds > limits.backoff_max_s] == [limits.write_s]
