"""The inbox keeps order and its bounds, and tells who found no room when there is."""

from __future__ import annotations

from threading import Event

import pyarrow as pa

from sorter.worker.inbox import Inbox
from tests.kit.batch_files import subscriptions_of
from tistream.feed.protocol import FeedBatch
from tistream.model.change import ROWS


def batch(seq: int, value_bytes: int = 0, store_id: int = 1, cut_ts: int = 1) -> FeedBatch:
    rows, regions = subscriptions_of([(b"a", b"c", [b"b"])])
    rows = rows.set_column(rows.schema.get_field_index("value"), ROWS.field("value"), pa.array([bytes(value_bytes)]))
    return FeedBatch(store_id=store_id, incarnation=1, seq=seq, cut_ts=cut_ts, rows=rows, regions=regions)


def test_what_was_put_first_is_taken_first() -> None:
    inbox = Inbox()
    assert all(inbox.put(batch(seq), Event()) for seq in (1, 2, 3))
    assert [file.seq for _ in range(3) if (file := inbox.take()) is not None] == [1, 2, 3]
    assert inbox.take() is None
    assert inbox.bytes == 0


def test_the_store_that_is_furthest_behind_goes_first() -> None:
    inbox = Inbox()
    for seq, store_id, cut_ts in ((1, 1, 10), (2, 1, 20), (3, 1, 30), (1, 2, 15), (2, 2, 25)):
        inbox.put(batch(seq, store_id=store_id, cut_ts=cut_ts), Event())
    order = [(file.store_id, file.seq) for _ in range(5) if (file := inbox.take()) is not None]
    assert order == [(1, 1), (2, 1), (1, 2), (2, 2), (1, 3)]


def test_a_store_of_which_nothing_is_here_gets_in_though_another_has_filled_it() -> None:
    inbox = Inbox(batches_max=2)
    assert [inbox.put(batch(seq, cut_ts=seq), Event()) for seq in (1, 2, 3)] == [True, True, False]
    assert inbox.put(batch(1, store_id=2, cut_ts=9), Event())
    assert not inbox.put(batch(2, store_id=2, cut_ts=10), Event())


def test_it_is_bounded_in_batches() -> None:
    inbox = Inbox(batches_max=2)
    assert [inbox.put(batch(seq), Event()) for seq in (1, 2, 3)] == [True, True, False]
    inbox.take()
    assert inbox.put(batch(3), Event())


def test_it_is_bounded_in_bytes_and_one_batch_of_any_size_passes() -> None:
    inbox = Inbox(bytes_max=1 << 20)
    assert inbox.put(batch(1, value_bytes=8 << 20), Event())
    assert not inbox.put(batch(2), Event())
    assert 8 << 20 < inbox.bytes < 9 << 20
    inbox.take()
    assert inbox.put(batch(2), Event())


def test_who_found_no_room_is_woken_once_half_is_free_or_nothing_of_its_store_is_here() -> None:
    inbox, first, second = Inbox(batches_max=4), Event(), Event()
    for seq in (1, 2, 3):
        inbox.put(batch(seq, cut_ts=10 + seq), Event())
    inbox.put(batch(1, store_id=2, cut_ts=1), Event())
    assert not inbox.put(batch(4, cut_ts=14), first)
    assert not inbox.put(batch(2, store_id=2, cut_ts=14), second)
    inbox.take()
    assert (first.is_set(), second.is_set()) == (False, True), "the batch of the second store was taken"
    inbox.take()
    assert first.is_set(), "two of four are left"


def test_dropping_a_store_makes_room() -> None:
    inbox, waiting = Inbox(batches_max=2), Event()
    inbox.put(batch(1, store_id=1), Event())
    inbox.put(batch(1, store_id=2), Event())
    assert not inbox.put(batch(2, store_id=1), waiting)
    inbox.drop(2)
    assert waiting.is_set()
