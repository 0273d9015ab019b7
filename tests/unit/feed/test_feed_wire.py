"""Messages between sorter and dispatcher round-trip; anything else is refused."""

from __future__ import annotations

import struct
from contextlib import suppress

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.batch_files import subscriptions_of
from tistream.errors import CorruptObject, FeedGap, FeedUnavailable, InvalidInput, TiStreamError
from tistream.feed.protocol import FeedBatch, FeedRequest
from tistream.feed.wire import (
    FINE,
    Live,
    Over,
    Subscribe,
    Taken,
    Unsubscribe,
    decode_command,
    decode_notification,
    encode_batch,
    encode_bye,
    encode_command,
    encode_error,
    encode_fine,
    encode_idle,
)
from tistream.ids import Position, Tenant
from tistream.keyrange import KeyRange
from tistream.model.change import REGIONS, ROWS

REQUEST = FeedRequest(
    tenant=Tenant(1 << 62, 0),
    store_id=7,
    task_id=5,
    epoch=(1 << 62) + 1,
    worker_id="sorter-1",
    range=KeyRange(b"\x00\xff", b""),
    positions={1: Position(seq=(1 << 62), closed=True), 12: Position(seq=0)},
)
SUBSCRIBE = Subscribe(sub=3, request=REQUEST, batches=16, nbytes=1 << 26)


@pytest.mark.parametrize("command", [SUBSCRIBE, Taken(3, 4), Unsubscribe(3)])
def test_a_command_comes_back(command: Subscribe | Taken | Unsubscribe) -> None:
    assert decode_command(memoryview(encode_command(command))) == command
    assert isinstance(decode_command(memoryview(encode_command(Live()))), Live)


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"do":"dance"}',
        b'{"do":"taken","sub":1}',
        b'{"do":"taken","sub":-1,"batches":1}',
        b'{"do":"taken","sub":1.5,"batches":1}',
        b'{"do":"taken","sub":true,"batches":1}',
        b'{"do":"unsubscribe","sub":"1"}',
        encode_command(SUBSCRIBE).replace(b"00ff", b"zz"),
        encode_command(SUBSCRIBE).replace(b'"end_key":""', b'"end_key":"00"'),
        encode_command(SUBSCRIBE).replace(b'"positions":[[', b'"positions":[[[],'),
        encode_command(SUBSCRIBE).replace(b'"request"', b'"quest"'),
    ],
)
def test_what_is_no_command_is_refused(bad: bytes) -> None:
    with pytest.raises(InvalidInput):
        decode_command(memoryview(bad))


def test_a_batch_comes_back() -> None:
    rows, regions = subscriptions_of([(b"a", b"c", [b"b"]), (b"c", b"", [])])
    batch = FeedBatch(store_id=7, incarnation=2, seq=9, cut_ts=1 << 60, rows=rows, regions=regions, closes=False)
    notification = decode_notification(rows, pa.py_buffer(encode_batch(3, batch)))
    assert notification is not None
    sub, decoded = notification
    assert isinstance(decoded, FeedBatch)
    assert sub == 3
    assert (decoded.store_id, decoded.incarnation, decoded.seq, decoded.cut_ts) == (7, 2, 9, 1 << 60)
    assert (decoded.rows.schema, decoded.regions.schema) == (ROWS, REGIONS)
    assert decoded.regions.equals(regions)


@pytest.mark.parametrize("error", [FeedGap(missing="f", seq=3), CorruptObject("torn", key=b"\x01"), FeedUnavailable()])
def test_an_error_comes_back_with_its_class_and_facts(error: TiStreamError) -> None:
    notification = decode_notification(None, pa.py_buffer(encode_error(4, error, over=False)))
    assert notification is not None
    assert notification[0] == 4
    other = notification[1]
    assert type(other) is type(error)
    assert isinstance(other, TiStreamError)
    shown = {name: value.hex() if isinstance(value, bytes) else str(value) for name, value in error.facts.items()}
    assert (other.message, other.code, other.kind, other.facts) == (error.message, error.code, error.kind, shown)
    over = decode_notification(None, pa.py_buffer(encode_error(4, error, over=True)))
    assert over is not None
    assert isinstance(over[1], Over)
    assert type(over[1].error) is type(error)


def test_the_rest_comes_back() -> None:
    assert decode_notification(None, pa.py_buffer(encode_fine(4))) == (4, FINE)
    assert decode_notification(None, pa.py_buffer(encode_idle())) is None
    with pytest.raises(EOFError):
        decode_notification(None, pa.py_buffer(encode_bye()))


def _framed(head: object) -> bytes:
    text = orjson.dumps(head)
    return struct.pack("<I", len(text)) + text


@given(
    st.one_of(
        st.binary(max_size=60),
        st.recursive(
            st.none() | st.booleans() | st.integers(-(1 << 40), 1 << 40) | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["sub", "do", "error", "over", "store", "seq", "closes", "request"]), inner
                )
            ),
        ).map(_framed),
    )
)
def test_anything_else_is_refused_in_one_way(raw: bytes) -> None:
    for text in (raw, raw[4:]):
        with suppress(InvalidInput):
            decode_command(memoryview(text))
    with suppress(InvalidInput):
        decode_notification(None, pa.py_buffer(raw))
