"""Lock requests, byte by byte, and invalid answers."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tistream.codec.protobuf import message, octets, uint
from tistream.errors import CorruptObject
from tistream.keyrange import KeyRange
from tistream.tikv.core.kv_messages import ApiVersion, FaultKind, KvRefused, RegionFault
from tistream.tikv.core.lock_messages import (
    HeldLock,
    TxnStatus,
    check_txn_request,
    read_check_txn,
    read_resolve_lock,
    read_scan_lock,
    resolve_lock_request,
    scan_lock_request,
)
from tistream.tikv.core.pd_messages import Region

REGION = Region(id=28, conf_ver=5, version=13, start=b"", end=b"", leader_store_id=1, leader_peer_id=29)
CONTEXT = "0a0e081c12040805100d1a04081d1001"  #: as a recorded KvScan has it
ALL = KeyRange(b"a", b"z")


def test_requests_have_the_fields_of_kvrpcpb() -> None:
    """ScanLock 2 max_version, 3 start_key, 4 limit, 5 end_key; CheckTxnStatus 2 primary_key, 3 lock_ts, 5 current_ts, 6
    rollback_if_not_exist; ResolveLock 2 start_version, 3 commit_version, 5 keys."""
    assert scan_lock_request(REGION, ALL, 5, 7, ApiVersion.V1, None).hex() == CONTEXT + "10051a016120072a017a"
    assert check_txn_request(REGION, b"p", 3, 9, ApiVersion.V1, None).hex() == CONTEXT + "120170180328093001"
    keys = [b"k", b"l"]
    assert resolve_lock_request(REGION, 3, 9, keys, ApiVersion.V1, None).hex() == CONTEXT + "100318092a016b2a016c"
    assert resolve_lock_request(REGION, 3, 0, keys, ApiVersion.V1, None).hex() == CONTEXT + "10032a016b2a016c"


def test_fields_of_a_lock() -> None:
    body = octets(1, b"p") + uint(2, 99) + octets(3, b"k") + uint(4, 3000) + uint(6, 1) + uint(8, 1)
    (found,) = read_scan_lock(message(3, body), ALL)  # type: ignore[misc]
    assert found == HeldLock(key=b"k", primary=b"p", start_ts=99, ttl_ms=3000, kind=1, is_async=True)


@pytest.mark.parametrize(("kind", "holds"), [(0, True), (1, True), (4, True), (2, False), (3, False), (5, False)])
def test_only_locks_of_changes_hold_a_resolved_ts(kind: int, holds: bool) -> None:
    lock = HeldLock(key=b"k", primary=b"p", start_ts=99, ttl_ms=3000, kind=kind, is_async=False)
    assert lock.holds_resolved_ts is holds


def test_transaction_status() -> None:
    assert read_check_txn(uint(3, 3000)) == TxnStatus(ttl_ms=3000, commit_ts=0)
    assert read_check_txn(uint(4, 107)) == TxnStatus(ttl_ms=0, commit_ts=107)
    assert read_check_txn(uint(5, 1)) == TxnStatus(ttl_ms=0, commit_ts=0)
    assert read_resolve_lock(b"") is None


@pytest.mark.parametrize("read", [lambda a: read_scan_lock(a, ALL), read_check_txn, read_resolve_lock])
def test_faults_and_refusals(read: object) -> None:
    assert callable(read)
    fault = message(1, octets(1, b"words") + message(2, b""))
    assert read(fault) == RegionFault(kind=FaultKind.NOT_LEADER, message="words")
    with pytest.raises(KvRefused, match="no way"):
        read(message(2, octets(3, b"no way")))
    with pytest.raises(KvRefused, match="unknown reason"):
        read(message(2, message(8, uint(1, 5))))


@pytest.mark.parametrize(
    "body", [b"", octets(1, b"p") + octets(3, b"k"), octets(1, b"p") + uint(2, 9) + octets(3, b"zz"), uint(2, 9)]
)
def test_an_incomplete_or_unrequested_lock_is_damage(body: bytes) -> None:
    with pytest.raises(CorruptObject):
        read_scan_lock(message(3, body), ALL)


@given(st.binary(max_size=60))
def test_any_bytes_are_an_answer_or_an_error(answer: bytes) -> None:
    for read in (lambda a: read_scan_lock(a, ALL), read_check_txn, read_resolve_lock):
        with contextlib.suppress(CorruptObject, KvRefused):
            read(answer)
