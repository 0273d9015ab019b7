"""Answers about locks, also invalid ones."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tistream.codec.protobuf import message, octets, parse, uint
from tistream.errors import CorruptObject
from tistream.keyrange import KeyRange
from tistream.tikv.core import wire
from tistream.tikv.core.kv_messages import FaultKind, KvRefused, RegionFault
from tistream.tikv.core.lock_messages import HeldLock, held_lock, read_answer, txn_status

KINDS: tuple[type[Any], ...] = (
    wire.ScanLockResponse,
    wire.CheckTxnStatusResponse,
    wire.CheckSecondaryLocksResponse,
    wire.ResolveLockResponse,
)
ALL = KeyRange(b"a", b"z")


def test_fields_of_a_lock() -> None:
    body = octets(1, b"p") + uint(2, 99) + octets(3, b"k") + uint(4, 3000) + uint(6, 1) + uint(8, 1)
    assert held_lock(parse(wire.LockInfo, body), ALL) == HeldLock(
        key=b"k", primary=b"p", start_ts=99, ttl_ms=3000, kind=1, is_async=True
    )


@pytest.mark.parametrize(("kind", "holds"), [(0, True), (1, True), (4, True), (2, False), (3, False), (5, False)])
def test_only_locks_of_changes_hold_a_resolved_ts(kind: int, holds: bool) -> None:
    lock = HeldLock(key=b"k", primary=b"p", start_ts=99, ttl_ms=3000, kind=kind, is_async=False)
    assert lock.holds_resolved_ts is holds


def test_transaction_status() -> None:
    for body, status in ((uint(3, 3000), (3000, 0)), (uint(4, 107), (0, 107)), (uint(5, 1), (0, 0))):
        answer = txn_status(parse(wire.CheckTxnStatusResponse, body))
        assert (answer.ttl_ms, answer.commit_ts, answer.primary) == (*status, None)


@pytest.mark.parametrize("kind", KINDS)
def test_faults_and_refusals(kind: Any) -> None:
    fault = message(1, octets(1, b"words") + message(2, b""))
    assert read_answer(kind, fault) == RegionFault(kind=FaultKind.NOT_LEADER, message="words")
    with pytest.raises(KvRefused, match="no way"):
        read_answer(kind, message(2, octets(3, b"no way")))
    with pytest.raises(KvRefused, match="unknown reason"):
        read_answer(kind, message(2, message(8, uint(1, 5))))


@pytest.mark.parametrize(
    "body", [b"", octets(1, b"p") + octets(3, b"k"), octets(1, b"p") + uint(2, 9) + octets(3, b"zz"), uint(2, 9)]
)
def test_an_incomplete_or_unrequested_lock_is_damage(body: bytes) -> None:
    with pytest.raises(CorruptObject):
        held_lock(parse(wire.LockInfo, body), ALL)


@given(st.binary(max_size=60))
def test_any_bytes_are_an_answer_or_an_error(answer: bytes) -> None:
    for kind in KINDS:
        with contextlib.suppress(CorruptObject, KvRefused):
            read_answer(kind, answer)
