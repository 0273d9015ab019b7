"""Snapshot reads: requests and answers recorded from a real TiKV."""

from __future__ import annotations

import pytest

from tistream.codec.protobuf import message, octets, uint
from tistream.errors import CorruptObject
from tistream.keyrange import KeyRange
from tistream.tikv.core.kv_messages import (
    ApiVersion,
    FaultKind,
    KvRefused,
    Lock,
    Page,
    RegionFault,
    read_scan,
    scan_request,
)
from tistream.tikv.core.pd_messages import Region

REGION = Region(id=28, conf_ver=5, version=13, start=b"", end=b"", leader_store_id=1, leader_peer_id=29)
ALL = KeyRange()


def pair(key: bytes, value: bytes, commit_ts: int = 0) -> bytes:
    return message(2, octets(2, key) + octets(3, value) + uint(4, commit_ts))


def locked(key: bytes, start_ts: int) -> bytes:
    return message(1, message(1, octets(1, b"first") + uint(2, start_ts) + octets(3, key) + uint(4, 3000)))


def test_requests_are_the_recorded_ones_with_low_priority_and_not_filling_the_cache() -> None:
    request = scan_request(REGION, KeyRange(b"plaintxn", b"plaintxn\xff"), 5, 470614250502225922, ApiVersion.V1)
    assert request.hex() == (
        "0a12081c12040805100d1a04081d1001300140011208706c61696e74786e1805208280b0dbada5fdc3063a09706c61696e74786eff"
    )
    region = Region(id=92, conf_ver=5, version=13, start=b"", end=b"", leader_store_id=2, leader_peer_id=93)
    prefix = b"x\0\0\0mx"
    request = scan_request(region, KeyRange(prefix, prefix + b"\xff"), 5, 470613964276285642, ApiVersion.V2)
    assert request.hex().startswith("0a15085c12040805100d1a04085d100230014001a801021206780000006d781805")


def test_a_recorded_page() -> None:
    scan = read_scan(bytes.fromhex("120d1208706c61696e74786e1a0176"), KeyRange(b"plaintxn", b"plaintxn\xff"))
    assert scan == Page(keys=[b"plaintxn"], values=[b"v"], commit_ts=[0])


def test_a_recorded_refusal_is_reported_once() -> None:
    text = "Error(ApiVersionNotMatched { cmd: scan, storage_api_version: V1, req_api_version: V2 })"
    body = message(3, text.encode())
    with pytest.raises(KvRefused) as e:
        read_scan(message(2, message(1, body)) + message(3, body), ALL)
    assert e.value.message == text


def test_pairs_before_a_lock_are_valid() -> None:
    answer = pair(b"a", b"1", 7) + message(2, locked(b"b", 99)) + pair(b"c", b"3")
    lock = Lock(key=b"b", primary=b"first", start_ts=99, ttl_ms=3000)
    assert read_scan(answer, ALL) == Page(keys=[b"a"], values=[b"1"], commit_ts=[7], lock=lock)
    assert read_scan(message(3, locked(b"b", 99)[2:]), ALL) == Page(keys=[], values=[], commit_ts=[], lock=lock)


@pytest.mark.parametrize(
    ("body", "kind", "backoff_ms"),
    [
        (message(2, uint(1, 28)), FaultKind.NOT_LEADER, 0),
        (message(5, b""), FaultKind.EPOCH_NOT_MATCH, 0),
        (message(6, octets(1, b"busy") + uint(2, 250)), FaultKind.SERVER_IS_BUSY, 250),
        (message(20, b""), FaultKind.MISMATCH_PEER_ID, 0),
        (message(99, b""), FaultKind.OTHER, 0),
    ],
)
def test_region_errors(body: bytes, kind: FaultKind, backoff_ms: int) -> None:
    fault = read_scan(message(1, octets(1, b"words") + body) + pair(b"a", b"1"), ALL)
    assert fault == RegionFault(kind=kind, message="words", backoff_ms=backoff_ms)


def test_an_error_without_a_text_is_a_refusal() -> None:
    assert read_scan(message(1, b""), ALL) == RegionFault(kind=FaultKind.OTHER, message="")
    with pytest.raises(KvRefused, match="unknown reason"):
        read_scan(message(2, message(1, uint(9, 1))), ALL)


@pytest.mark.parametrize(
    "answer",
    [
        pair(b"a", b"1") + pair(b"a", b"1"),
        pair(b"b", b"1") + pair(b"a", b"1"),
        pair(b"z", b"1"),
        message(2, uint(2, 5)),
        b"\x12\xff",
    ],
)
def test_damage(answer: bytes) -> None:
    with pytest.raises(CorruptObject):
        read_scan(answer, KeyRange(b"a", b"m"))
