"""Answers of snapshot reads that were cut, changed or made up: a value, a refusal, or damage; nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tistream.codec.protobuf import message, octets, uint
from tistream.errors import CorruptObject
from tistream.keyrange import KeyRange
from tistream.tikv.core.kv_messages import KvRefused, Page, RegionFault, read_scan

PART = KeyRange(b"a", b"t")


def pair(key: bytes, value: bytes) -> bytes:
    return message(2, octets(2, key) + octets(3, value) + uint(4, 3))


def judge(answer: bytes) -> Page | RegionFault | None:
    try:
        found = read_scan(answer, PART)
    except (CorruptObject, KvRefused):
        return None
    if isinstance(found, Page):
        assert len(found.keys) == len(found.values) == len(found.commit_ts)
        assert found.keys == sorted(set(found.keys))
        assert all(key in PART for key in found.keys)
    return found


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
    found = judge(b"".join(map(pair, keys, values)))
    assert isinstance(found, Page)
    assert (found.keys, found.values, found.lock) == (keys, values[: len(keys)], None)


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
