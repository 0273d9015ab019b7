"""The inbox keeps order and its bounds, and a waiting put succeeds when there is room."""

from __future__ import annotations

import threading

import pyarrow as pa

from sorter.worker.inbox import Inbox
from tests.kit.batch_files import subscriptions_of
from tistream.feed.protocol import FeedBatch
from tistream.model.change import ROWS

LONG_S = 60.0


def batch(seq: int, value_bytes: int = 0, store_id: int = 1, cut_ts: int = 1) -> FeedBatch:
    rows, regions = subscriptions_of([(b"a", b"c", [b"b"])])
    rows = rows.set_column(rows.schema.get_field_index("value"), ROWS.field("value"), pa.array([bytes(value_bytes)]))
    return FeedBatch(store_id=store_id, incarnation=1, seq=seq, cut_ts=cut_ts, rows=rows, regions=regions)


def test_what_was_put_first_is_taken_first() -> None:
    inbox = Inbox()
    assert all(inbox.put(batch(seq), 0) for seq in (1, 2, 3))
    assert [taken.seq for _ in range(3) if (taken := inbox.take()) is not None] == [1, 2, 3]
    assert inbox.take() is None
    assert inbox.bytes == 0


def test_the_store_that_is_furthest_behind_goes_first() -> None:
    inbox = Inbox()
    for seq, store_id, cut_ts in ((1, 1, 10), (2, 1, 20), (3, 1, 30), (1, 2, 15), (2, 2, 25)):
        inbox.put(batch(seq, store_id=store_id, cut_ts=cut_ts), 0)
    order = [(taken.store_id, taken.seq) for _ in range(5) if (taken := inbox.take()) is not None]
    assert order == [(1, 1), (2, 1), (1, 2), (2, 2), (1, 3)]


def test_a_store_of_which_nothing_is_here_gets_in_though_another_has_filled_it() -> None:
    inbox = Inbox(batches_max=2)
    assert [inbox.put(batch(seq, cut_ts=seq), 0) for seq in (1, 2, 3)] == [True, True, False]
    assert inbox.put(batch(1, store_id=2, cut_ts=9), 0)
    assert not inbox.put(batch(2, store_id=2, cut_ts=10), 0)


def test_it_is_bounded_in_batches() -> None:
    inbox = Inbox(batches_max=2)
    assert [inbox.put(batch(seq), 0) for seq in (1, 2, 3)] == [True, True, False]
    inbox.take()
    assert inbox.put(batch(3), 0)


def test_it_is_bounded_in_bytes_and_one_batch_of_any_size_passes() -> None:
    inbox = Inbox(bytes_max=1 << 20)
    assert inbox.put(batch(1, value_bytes=8 << 20), 0)
    assert not inbox.put(batch(2), 0)
    assert 8 << 20 < inbox.bytes < 9 << 20
    inbox.take()
    assert inbox.put(batch(2), 0)


def test_a_waiting_put_succeeds_when_there_is_room() -> None:
    inbox = Inbox(batches_max=1)
    inbox.put(batch(1), 0)
    came: list[bool] = []
    waiting = threading.Thread(target=lambda: came.append(inbox.put(batch(2), LONG_S)))
    waiting.start()
    assert inbox.take() is not None
    waiting.join(LONG_S)
    assert came == [True]
    taken = inbox.take()
    assert taken is not None
    assert taken.seq == 2
