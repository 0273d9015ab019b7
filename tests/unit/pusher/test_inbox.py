"""The bounded inbox between the receiving thread and the pusher."""

from __future__ import annotations

import threading

from pusher.tikv.stream import Ended, StreamInbox


def test_messages_in_order_then_the_end() -> None:
    inbox = StreamInbox(100)
    inbox.begin(1)
    assert inbox.put(1, b"aaa")
    assert inbox.put(1, b"bb")
    inbox.end(1, "EOF")
    assert not inbox.put(1, b"late")
    assert inbox.take(1) == ([b"aaa"], None)
    assert inbox.take(99) == ([b"bb"], Ended(stream=1, reason="EOF"))
    assert inbox.take(99) == ([], None)
    assert not inbox.put(1, b"later"), "the stream has ended"


def test_messages_of_another_stream_are_ignored() -> None:
    inbox = StreamInbox(100)
    inbox.begin(1)
    inbox.put(1, b"old")
    inbox.begin(2)
    assert not inbox.put(1, b"old")
    inbox.end(1, "EOF")
    assert inbox.put(2, b"new")
    assert inbox.take(99) == ([b"new"], None)


def test_overflow_ends_the_stream_and_frees_the_memory() -> None:
    inbox = StreamInbox(10)
    inbox.begin(1)
    assert inbox.put(1, b"x" * 6)
    assert not inbox.put(1, b"x" * 5)
    messages, ended = inbox.take(99)
    assert messages == []
    assert ended is not None
    assert "faster than they were processed" in ended.reason
    inbox.begin(2)
    assert inbox.put(2, b"x" * 10)
    inbox.take(99)
    assert inbox.put(2, b"x" * 10), "what was taken is not counted any more"


def test_a_wait_ends_with_a_message() -> None:
    inbox = StreamInbox(10)
    inbox.begin(1)
    inbox.put(1, b"x")
    inbox.wait(60)
    inbox.take(9)
    inbox.wake()
    inbox.wait(60)
    inbox.end(1, "EOF")
    inbox.wait(60)


def test_put_waits_for_space_if_asked_to() -> None:
    inbox = StreamInbox(10)
    inbox.begin(1)
    inbox.wait_when_full(True)
    assert inbox.put(1, b"x" * 6)
    data: list[bytes] = []
    reader = threading.Timer(0.05, lambda: data.extend(inbox.take(99)[0]))
    reader.start()
    assert inbox.put(1, b"y" * 5)
    reader.join()
    assert data == [b"x" * 6]
    assert inbox.take(99) == ([b"y" * 5], None)


def test_put_does_not_wait_for_an_ended_stream() -> None:
    inbox = StreamInbox(10)
    inbox.begin(1)
    inbox.wait_when_full(True)
    assert inbox.put(1, b"x" * 6)
    other = threading.Timer(0.05, lambda: inbox.begin(2))
    other.start()
    assert not inbox.put(1, b"y" * 5)
    other.join()
    assert inbox.put(2, b"x" * 6)
    impatient = threading.Timer(0.05, lambda: inbox.wait_when_full(False))
    impatient.start()
    assert not inbox.put(2, b"y" * 5)
    impatient.join()
    assert inbox.take(99)[1] == Ended(stream=2, reason="messages came faster than they were processed", overflow=True)
