"""Messages of PD and of TiKV's stores, written by a second hand and read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.real_tikv import lines
from tistream import ts
from tistream.codec.protobuf import BYTES, VARINT, merged, message, octets, signed, uint
from tistream.errors import CorruptObject, InvalidInput, TsExpired
from tistream.keyrange import KeyRange
from tistream.tikv.core import pd_messages as m
from tistream.tikv.core import wire
from tistream.tikv.core.kv_messages import KvRefused, Page, RegionFault, read_scan
from tistream.tikv.core.pd_messages import PdRefused
from tistream.tikv.pd import PdClient

PART = KeyRange(b"a", b"t")


def pair(key: bytes, value: bytes) -> bytes:
    return message(2, octets(2, key) + octets(3, value) + uint(4, 3))


def judge(answer: bytes) -> Page | RegionFault | None:
    try:
        result = read_scan(answer, PART)
    except (CorruptObject, KvRefused):
        return None
    if isinstance(result, Page):
        assert len(result.keys) == len(result.values) == len(result.commit_ts)
        assert result.keys == sorted(set(result.keys))
        assert all(key in PART for key in result.keys)
    return result


KEYS = st.sets(st.binary(min_size=1, max_size=9).filter(lambda k: k in PART), max_size=6).map(sorted)
ERRORS = st.sampled_from(
    [
        b"",
        message(1, octets(1, b"no") + message(2, uint(1, 4))),
        message(3, message(1, uint(2, 9) + octets(3, b"k"))),
        message(2, message(1, message(3, b"refused"))),
    ]
)


@given(keys=KEYS, values=st.lists(st.binary(max_size=40), min_size=6, max_size=6))
def test_what_was_written_is_read(keys: list[bytes], values: list[bytes]) -> None:
    page = judge(b"".join(map(pair, keys, values)))
    assert isinstance(page, Page)
    assert (page.keys, page.values, page.lock) == (keys, values[: len(keys)], None)


@given(answer=st.binary(max_size=200))
def test_any_bytes(answer: bytes) -> None:
    judge(answer)


@given(keys=KEYS, error=ERRORS, data=st.data())
def test_changed_answers(keys: list[bytes], error: bytes, data: st.DataObject) -> None:
    answer = bytearray(b"".join(pair(key, b"value of " + key) for key in keys) + error)
    for _ in range(data.draw(st.integers(0, 4))):
        if answer:
            answer[data.draw(st.integers(0, len(answer) - 1))] = data.draw(st.integers(0, 255))
    judge(bytes(answer[: data.draw(st.integers(0, len(answer)))]))


DATA = Path(__file__).parents[1] / "data" / "real_tikv"
FILES = [DATA / "txn_dev/stream.ndjson.zst", DATA / "txn_quiet/stream.ndjson.zst", DATA / "pd/pd_safepoint.ndjson.zst"]

READERS: dict[str, Callable[[bytes], Any]] = {
    "GetMembers": m.read_members,
    "GetAllStores": m.read_stores,
    "BatchScanRegions": m.read_batch_regions,
    "ScanRegions": m.read_scanned_regions,
    "GetRegion": m.read_region,
    "Tso": lambda answer: m.read_tso(answer, merged(answer, {2: VARINT}).get(2, 0)),
    "UpdateServiceGCSafePoint": partial(m.read, wire.UpdateServiceGcSafePointResponse),
    "SetGCBarrier": m.read_barrier,
    "DeleteGCBarrier": m.read_barrier,
    "GetGCState": partial(m.read, wire.GetGcStateResponse),
    "LoadKeyspace": partial(m.read, wire.LoadKeyspaceResponse),
    "GetAllKeyspaces": partial(m.read, wire.GetAllKeyspacesResponse),
}


@pytest.fixture(scope="module")
def calls() -> list[dict[str, Any]]:
    out = []
    for path in FILES:
        for line in lines(path):
            if line["dir"] == "pd":
                line["method"] = line["method"].rsplit("/", 1)[1]
                out.append(line | {"folder": path.parent.name})
    return out


class RecordedChannel:
    """Answers as recorded, and keeps the request."""

    def __init__(self, cluster_id: int, answer: bytes) -> None:
        self.cluster_id, self.answer, self.sent = cluster_id, answer, b""

    def call(self, method: str, request: Callable[[int], bytes]) -> bytes:
        self.sent = request(self.cluster_id)
        return self.answer

    def forget_leader(self) -> None:
        """Does nothing: a recorded refusal is repeated whatever the leader."""


def asked_again(method: str, request: bytes, answer: bytes) -> bytes | None:
    """Our request with the recorded one's contents; None for requests that we never make."""
    said = merged(request, {1: BYTES, 3: VARINT if method.startswith(("Update", "Scan")) else BYTES, 4: VARINT})
    cluster_id = merged(said.get(1, b""), {1: VARINT}).get(1, 0)
    if method == "Tso":
        return m.encoded(wire.TsoRequest(count=merged(request, {2: VARINT})[2]), cluster_id)
    pd = PdClient(["unused"])
    pd._channel = channel = RecordedChannel(cluster_id, answer)  # type: ignore[assignment]
    with contextlib.suppress(InvalidInput, PdRefused, TsExpired):
        match method:
            case "GetAllStores" if merged(request, {2: VARINT}):
                pd.stores()
            case "BatchScanRegions":
                key_range = merged(said[3], {1: BYTES, 2: BYTES})
                pd.scan_regions(key_range.get(1, b""), key_range.get(2, b""), said.get(4, 0))
            case "GetRegion":
                pd.get_region(merged(request, {2: BYTES}).get(2, b""))
            case "UpdateServiceGCSafePoint":
                name = merged(request, {2: BYTES}).get(2, b"").decode()
                pd.update_service_safe_point(name, said.get(4, 0), signed(said.get(3, 0)))
            case "SetGCBarrier":
                pd.hold_history(said[3].decode(), said[4], merged(request, {5: VARINT}).get(5, 0))
            case "DeleteGCBarrier":
                pd.release_history(said[3].decode())
            case "GetGCState":
                pd.gc_safe_point()
    return channel.sent or None


def test_requests_are_the_recorded_ones(calls: list[dict[str, Any]]) -> None:
    compared: dict[str, int] = {}
    for call in calls:
        recorded = bytes.fromhex(call["req_hex"])
        ours = asked_again(call["method"], recorded, bytes.fromhex(call["resp_hex"]))
        if ours is not None:
            assert ours == recorded, call["method"]
            compared[call["method"]] = compared.get(call["method"], 0) + 1
    assert compared["BatchScanRegions"] == 939 + 3
    assert compared["Tso"] >= 226 + 41
    assert compared["UpdateServiceGCSafePoint"] > 10
    assert set(compared) >= {"GetAllStores", "GetRegion", "SetGCBarrier", "DeleteGCBarrier", "GetGCState"}


def test_regions_of_a_covered_range_tile_it(calls: list[dict[str, Any]]) -> None:
    for call in calls:
        if call["method"] != "BatchScanRegions":
            continue
        covered = merged(merged(bytes.fromhex(call["req_hex"]), {3: BYTES})[3], {1: BYTES, 2: BYTES})
        regions = m.read_batch_regions(bytes.fromhex(call["resp_hex"]))
        assert regions[0].start <= covered.get(1, b"")
        assert not regions[-1].end or (2 in covered and regions[-1].end >= covered[2])
        assert [a.end for a in regions[:-1]] == [b.start for b in regions[1:]]
        assert all(r.id and r.version and r.conf_ver and r.leader_store_id in (1, 2, 4, 5) for r in regions)


def test_timestamps_lie_near_the_machines_clock_and_rise(calls: list[dict[str, Any]]) -> None:
    last: dict[int, int] = {}
    for call in calls:
        if call["method"] == "Tso" and call["resp_hex"]:
            answer = bytes.fromhex(call["resp_hex"])
            count = merged(bytes.fromhex(call["req_hex"]), {2: VARINT})[2]
            stamp = m.read_tso(answer, count)
            cluster_id = m.check_header(answer)
            assert abs(ts.physical_ms(stamp) - call["t_ms"]) < 1000
            assert stamp - count >= last.get(cluster_id, 0)
            last[cluster_id] = stamp
            with pytest.raises(CorruptObject):
                m.read_tso(answer, count + 1)


def test_members_and_stores(calls: list[dict[str, Any]]) -> None:
    answer = next(bytes.fromhex(c["resp_hex"]) for c in calls if c["method"] == "GetMembers")
    members = m.read_members(answer)
    assert members == m.Members(
        cluster_id=7710532567073277423, urls=("http://127.0.0.1:2379",), leader_urls=("http://127.0.0.1:2379",)
    )
    for call in calls:
        if call["method"] == "GetAllStores" and call["folder"] != "pd":
            stores = {s.id: s for s in m.read_stores(bytes.fromhex(call["resp_hex"]))}
            assert {i: s.address for i, s in stores.items()} == {
                1: "127.0.0.1:20162",
                4: "127.0.0.1:20161",
                5: "127.0.0.1:20160",
            }
            assert {s.version for s in stores.values()} == {"9.0.0-beta.2"}
            assert {s.state for s in stores.values()} <= {m.StoreState.UP, m.StoreState.OFFLINE}


def test_holds_on_history(calls: list[dict[str, Any]]) -> None:
    answers: dict[str, list[bytes]] = {}
    for call in calls:
        if "grpc_error" not in call:
            answers.setdefault(call["method"], []).append(bytes.fromhex(call["resp_hex"]))
    barriers = []
    refused = []
    for answer in answers["SetGCBarrier"]:
        try:
            barriers.append(m.read_barrier(answer))
        except PdRefused as e:
            refused.append(e.message)
    assert [b and (b.id, b.ttl_s) for b in barriers] == [("bar-1", 60)]
    assert ["ErrGCBarrierTSBehindTxnSafePoint" in text for text in refused] == [True, False]
    deleted = [m.read_barrier(answer) for answer in answers["DeleteGCBarrier"]]
    assert deleted == [barriers[0], None]
    states = [m.read(wire.GetGcStateResponse, answer).state for answer in answers["GetGCState"]]
    assert {s.keyspace_scope.keyspace_id for s in states} == {m.NULL_KEYSPACE}
    assert [tuple(b.id for b in s.barriers) for s in states] == [
        (),
        ("ts-a", "ts-b", "ts-c"),
        ("ts-a",),
        ("ts-a", "ts-d", "ts-e"),
        ("bar-1", "ts-a", "ts-d", "ts-e"),
        (),
    ]
    assert [s.txn_safe_point for s in states[2:]] == [470613832356069577] * 4
    safe_points = answers["UpdateServiceGCSafePoint"]
    lowest = [m.read(wire.UpdateServiceGcSafePointResponse, answer).min_safe_point for answer in safe_points]
    assert lowest == sorted(lowest)
    assert set(lowest) == {0, 470613832356069577}


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(READERS)), st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(method: str, data: bytes) -> None:
    with contextlib.suppress(CorruptObject, PdRefused):
        READERS[method](data)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_answers_are_read_or_refused(calls: list[dict[str, Any]], data: st.DataObject) -> None:
    readable = [c for c in calls if c["method"] in READERS and c["resp_hex"]]
    call = readable[data.draw(st.integers(0, len(readable) - 1))]
    answer = bytearray.fromhex(call["resp_hex"])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(answer) - 1))
        answer[at] = data.draw(st.integers(0, 255))
    cut = bytes(answer[: data.draw(st.integers(0, len(answer)))])
    with contextlib.suppress(CorruptObject, PdRefused):
        READERS[call["method"]](cut)
