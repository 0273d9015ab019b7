"""The source over a log backup's directory: rows, watermarks and faults."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from pusher.core.batcher import Batcher
from pusher.core.source import SubscriptionClosed
from pusher.logbackup.core.metadata import META_PREFIX
from pusher.logbackup.source import RANGES
from tests.kit.log_backup_files import Entry, Piece, delete, put
from tests.kit.log_backup_reader import Change, Log, Reader, S, at, record, values, writes
from tistream.codec.table_key import index_key
from tistream.errors import CorruptObject, InvalidInput, StoreUnavailable
from tistream.objectstore.memory import MemoryStore
from tistream.objectstore.protocol import ObjectInfo


def test_rows_below_the_checkpoint_come_and_nothing_above_is_promised() -> None:
    log = Log()
    log.checkpoint(at(20))
    log.flush([writes(put(record(1), at(1), at(2), b"a"), put(record(1), at(20), at(21), b"b"))], flush_ts=at(30))
    log.flush([writes(put(b"mDB", at(3), at(20), b"c"), table_id=0)], flush_ts=at(31), store_id=2)
    reader = log.reader()
    assert reader.until_caught_up() == {(record(1), at(1), at(2), b"a"), (b"mDB", at(3), at(20), b"c")}
    assert (reader.resolved, reader.cut) == (at(20), at(20))
    assert [(o.range, o.checkpoint_ts) for o in reader.opened] == [(r, S) for r in RANGES]
    log.checkpoint(at(21))
    reader.poll(2)
    assert reader.rows[2:] == [(record(1), at(20), at(21), b"b")]
    assert reader.resolved == at(21)


def test_a_stalled_checkpoint_is_reported() -> None:
    log = Log()
    log.checkpoint(S)
    for n in range(1, 5):
        log.flush([writes(put(record(n), at(n), at(n + 1), b"x"))], flush_ts=at(10 * n), store_id=4)
    reader = log.reader()
    assert reader.until_caught_up() == set()
    assert reader.resolved == S
    problem = reader.source.problem
    assert "v1/global_checkpoint/central_global.ts" in problem
    assert str(S) in problem
    assert "store 4: 4" in problem
    log.checkpoint(at(50))
    reader.poll(2)
    assert len(reader.rows) == 4
    assert (reader.resolved, reader.source.problem) == (at(50), "")


def test_without_any_checkpoint_nothing_is_promised() -> None:
    log = Log()
    log.flush([writes(put(record(1), at(1), at(2), b"a"))], flush_ts=at(30))
    reader = log.reader()
    assert reader.until_caught_up() == set()
    assert (reader.resolved, reader.opened) == (0, [])
    assert "no global checkpoint" in reader.source.problem


def test_a_checkpoint_below_the_tenant_opens_nothing() -> None:
    log = Log()
    log.checkpoint(at(5))
    reader = log.reader(frontier=at(6))
    assert reader.until_caught_up() == set()
    assert (reader.opened, reader.cut) == ([], 0)
    assert str(at(6)) in reader.source.problem
    log.checkpoint(at(7))
    reader.poll(2)
    assert reader.resolved == at(7)


def test_nothing_is_opened_before_the_frontier_is_known() -> None:
    log = Log()
    log.checkpoint(at(5))
    reader = log.reader(frontier=None)
    assert reader.poll(3) == []
    assert not reader.source.caught_up
    reader.frontier = S
    reader.poll(2)
    assert reader.resolved == at(5)


LONG = b"r" * 300


@pytest.mark.parametrize("where", ["same flush", "earlier", "later", "other store", "days before"])
def test_a_long_row_is_found_wherever_it_was_flushed(where: str) -> None:
    log = Log()
    start_ts = S - (3 * 86_400_000 << 18) if where == "days before" else at(1)
    write = [writes(put(record(1), start_ts, at(20), None))]
    row = [values((record(1), start_ts, LONG), (record(2), start_ts, b"other"))]
    if where == "same flush":
        log.flush(write + row, flush_ts=at(30))
    else:
        log.flush(write, flush_ts=at(30))
        flush_ts = {"earlier": at(10), "later": at(40), "other store": at(31), "days before": start_ts + (1 << 18)}
        log.flush(row, flush_ts=flush_ts[where], store_id=1 + (where == "other store"))
    log.checkpoint(at(25))
    assert log.reader(frontier=S if where != "same flush" else at(19)).until_caught_up() == {
        (record(1), start_ts, at(20), LONG)
    }


def test_a_missing_value_is_an_error_after_a_while() -> None:
    log = Log()
    log.flush([writes(put(record(1), at(1), at(20), None))], flush_ts=at(30))
    log.checkpoint(at(25))
    reader = log.reader()
    with pytest.raises(CorruptObject, match="missing from the log backup") as e:
        reader.until_caught_up()
    assert e.value.facts["start_ts"] == at(1)
    assert log.clock.monotonic() >= 10
    assert reader.resolved == 0
    log.flush([values((record(1), at(1), LONG))], flush_ts=at(31))
    assert log.reader().until_caught_up() == {(record(1), at(1), at(20), LONG)}


class _Halved(MemoryStore):
    """Some objects are only half there."""

    def __init__(self) -> None:
        super().__init__()
        self.halved: set[str] = set()
        self.away = False

    def get(self, key: str, admit: Callable[[int], None] | None = None) -> bytes:
        if self.away:
            raise StoreUnavailable("away", determinate=True)
        data = super().get(key, admit)
        return data[: len(data) // 2] if key in self.halved else data

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        data = self.get(key)
        if offset + length > len(data):
            raise CorruptObject("the object is shorter than it should be", object=key)
        return data[offset : offset + length]


@pytest.mark.parametrize("part", ["metadata", "entries"])
def test_a_damaged_object_is_retried_and_then_an_error(part: str) -> None:
    store = _Halved()
    log = Log(store)
    key = log.flush([writes(put(record(1), at(1), at(20), b"x" * 99))], flush_ts=at(30))
    log.checkpoint(at(25))
    bad = key if part == "metadata" else next(o.key for o in store.list("v1/2026"))
    store.halved = {bad}
    reader = log.reader()
    reader.poll(3)
    assert (reader.rows, reader.resolved) == ([], 0)
    assert bad in reader.source.problem
    store.halved = set()
    assert len(reader.until_caught_up()) == 1
    assert reader.source.problem == ""
    log.clock.advance(60)
    log.flush([writes(put(record(2), at(21), at(22), b"y"))], flush_ts=at(31))
    log.checkpoint(at(26))
    reader.source.resubscribe([reader.opened[0].subscription])
    store.halved = {bad} if part == "entries" else {next(iter(reversed(list(store.list(META_PREFIX))))).key}
    reader.poll(3)  # damage of an hour ago does not count
    assert reader.source.problem
    store.halved = set()
    assert len(reader.until_caught_up()) == 2
    store.halved = {bad}
    with pytest.raises(CorruptObject) as e:
        log.reader().until_caught_up()
    assert bad in str(e.value)


def test_a_store_that_fails_between_two_pieces_is_retried() -> None:
    store = _Halved()
    log = Log(store)
    for n in range(3):
        log.flush([writes(put(record(n), at(1), at(20), b"x"))], flush_ts=at(30 + n))
    log.checkpoint(at(25))
    reader = log.reader(piece_bytes=1)
    reader.poll()
    assert (len(reader.rows), reader.resolved) == (1, 0)
    store.away, before = True, log.clock.monotonic()
    reader.poll(20)
    assert "away" in reader.source.problem
    assert log.clock.monotonic() - before >= 9
    store.away = False
    assert len(reader.until_caught_up()) == 3
    assert len(reader.rows) == 3


def test_physical_deletes_are_no_changes_and_index_entries_are_given() -> None:
    log = Log()
    index = index_key(7, 1, b"12345678")
    rubbish = Piece(cf="write", entries=[(record(1), at(3), b"")], table_id=7, deletes=True)
    entries = (put(record(1), at(1), at(2), b"a"), delete(record(1), at(3), at(4)), put(index, at(1), at(2), b"0"))
    log.flush([rubbish, writes(*entries)], flush_ts=at(30))
    log.checkpoint(at(25))
    assert {(k, c, v) for k, _, c, v in log.reader().until_caught_up()} == {
        (record(1), at(2), b"a"), (record(1), at(4), None), (index, at(2), b"0"),
    }  # fmt: skip


def test_a_key_outside_of_the_ranges_is_refused() -> None:
    log = Log()
    log.flush([writes(put(b"x123", at(1), at(2), b"a"))], flush_ts=at(30))
    log.checkpoint(at(25))
    with pytest.raises(CorruptObject, match="outside"):
        log.reader().until_caught_up()


def test_a_log_that_was_truncated_above_the_tenant_is_refused() -> None:
    log = Log()
    log.checkpoint(at(25))
    log.store.put("v1_stream_trancate_safepoint.txt", str(at(3)).encode())
    with pytest.raises(InvalidInput, match="truncated"):
        log.reader().until_caught_up()
    assert log.reader(frontier=at(3)).until_caught_up() == set()


def test_a_log_that_is_truncated_while_it_is_followed_promises_nothing_beyond() -> None:
    """Nothing was read for days, and meanwhile the log was truncated above what had been read."""
    log = Log()
    log.checkpoint(at(20))
    log.flush([writes(put(record(1), at(1), at(2), b"a"))], flush_ts=at(21))
    reader = log.reader()
    reader.until_caught_up()
    lost = log.flush([writes(put(record(2), at(30), at(31), b"lost"))], flush_ts=at(32))
    log.store.put("v1_stream_trancate_safepoint.txt", str(at(50)).encode())
    log.store.delete(lost)
    log.flush([writes(put(record(3), at(60), at(61), b"c"))], flush_ts=at(62))
    log.checkpoint(at(70))
    log.clock.advance(10)
    with pytest.raises(InvalidInput, match="truncated"):
        reader.until_caught_up()
    assert reader.resolved == at(20)


@pytest.mark.parametrize("dated", [True, False])
def test_used_metadata_is_dropped_and_read_again_when_needed(dated: bool) -> None:
    """TiKV before 8.5.3 gives names that say nothing of the time."""
    log = Log()
    log.checkpoint(at(1))
    reader = log.reader()
    hour_ms, row, last = 3_600_000, b"x" * 300, 48

    def flush(n: int, *pieces: Piece) -> None:
        flush_ts = at(n * hour_ms // 2 + 10)
        name = "" if dated else f"{flush_ts:016X}-{n:08x}-ce2d-432e-970d-5348e607c9f8"
        log.flush([*pieces], flush_ts=flush_ts, name=name)
        log.checkpoint(flush_ts)
        log.clock.advance(10)

    changes: set[Change] = set()
    for n in range(1, last):
        flush(n, *([values((record(9), at(hour_ms), row))] if n == 2 else []))
        changes |= reader.until_caught_up()
    assert len(reader.source._index.flushes) <= 4
    assert not changes
    flush(last, writes(put(record(9), at(hour_ms), at(last * hour_ms // 2), None)))
    assert [change[3] for change in reader.until_caught_up()] == [row]


class _Shuffled(MemoryStore):
    """Lists metadata in any order, as a folder may, but for what `after` leaves out."""

    def __init__(self, rand: random.Random) -> None:
        super().__init__()
        self._rand = rand

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        objects = list(super().list(prefix, after))
        if prefix == META_PREFIX and after:
            self._rand.shuffle(objects)
        return iter(objects)


def history(rand: random.Random) -> tuple[list[tuple[int, int, list[Entry], list[Entry]]], set[Change]]:
    """Flushes (store, flush ms, writes, values) of a random history, with copies; and its changes."""
    flushes, changes = [], set()
    written: list[tuple[Entry, Entry | None]] = []
    for ms in range(10, 400, 10):
        new: list[tuple[Entry, Entry | None]] = []
        for n in rand.sample(range(9), rand.randint(0, 4)):
            start, commit = at(ms - rand.randint(1, 30)) + ms, at(ms) + n
            long = rand.random() < 0.3
            row = LONG + bytes([n, ms % 256]) if long else bytes([n, ms % 256])
            ends = not long and rand.random() < 0.2
            write = delete(record(n), start, commit) if ends else put(record(n), start, commit, None if long else row)
            new.append((write, (record(n), start, row) if long else None))
            changes.add((record(n), start, commit, None if ends else row))
        written += new
        flushes.append((rand.randint(1, 3), ms + 1, new + rand.sample(written, min(len(written), 3))))
    return [
        (store, ms, [w for w, _ in parts], [v for _, v in parts if v]) for store, ms, parts in flushes if parts
    ], changes


@pytest.mark.parametrize("seed", range(8))
def test_any_order_lateness_and_copies_give_the_same_changes(seed: int) -> None:
    """Flushes appear late and in any order, but everything below the checkpoint has been flushed."""
    rand = random.Random(seed)
    flushes, changes = history(rand)
    log = Log(_Shuffled(rand))
    options = {"piece_bytes": rand.choice([1, 500, 1 << 20]), "window_bytes": rand.choice([1, 2000, 1 << 20])}
    reader, waiting, checkpoint = log.reader(**options), list(flushes), S
    log.checkpoint(S)
    while waiting:
        rand.shuffle(waiting)
        store_id, ms, written, stored = waiting.pop()
        pieces = [writes(*written)] + ([values(*stored)] if stored else [])
        log.flush(pieces, flush_ts=at(ms), store_id=store_id)
        lowest = min((w[1] for _, _, ws, _ in waiting for w in ws), default=at(1000))
        lowest_value = min((v[1] for _, _, _, vs in waiting for v in vs), default=at(1000))
        if min(lowest, lowest_value) - 1 > checkpoint:
            checkpoint = min(lowest, lowest_value) - 1
            log.checkpoint(checkpoint)
        reader.poll(rand.randint(0, 4))
        if rand.random() < 0.2:  # the pusher dies and comes back at a frontier that is not the newest
            reader = _restarted(log, reader, rand, options)
        if rand.random() < 0.3 and reader.opened:  # in the middle of a window, too
            reader.frontier = rand.randint(S, reader.resolved or S)
            reader.source.resubscribe([reader.opened[-1].subscription])
    reader.until_caught_up()
    log.clock.advance(60)  # that look may have been older than the last checkpoint
    reader.poll()
    reader.until_caught_up()
    assert reader.resolved == checkpoint == at(1000) - 1
    assert set(reader.rows) == changes
    again = log.reader(**options)
    assert again.until_caught_up() == changes


def _restarted(log: Log, reader: Reader, rand: random.Random, options: dict[str, int]) -> Reader:
    durable_ts = max(reader.resolved, reader.frontier or S)
    new = log.reader(frontier=rand.randint(reader.frontier or S, durable_ts), **options)
    new.rows = [row for row in reader.rows if row[2] <= new.frontier]  # type: ignore[operator]
    return new


def test_a_decreased_checkpoint_is_waited_for() -> None:
    log = Log()
    log.checkpoint(at(20))
    log.flush([writes(put(record(1), at(1), at(2), b"a"), put(record(1), at(20), at(30), b"b"))], flush_ts=at(40))
    reader = log.reader()
    reader.until_caught_up()
    log.checkpoint(at(10))
    before = log.clock.monotonic()
    reader.poll(10)
    assert log.clock.monotonic() - before > 20
    assert (reader.resolved, reader.cut, reader.source.caught_up, len(reader.rows)) == (at(20), at(20), True, 1)
    log.checkpoint(at(30))
    reader.poll(2)
    assert reader.resolved == at(30)


def test_resubscribed_subscriptions_begin_at_the_new_frontier() -> None:
    log = Log()
    log.checkpoint(at(20))
    log.flush([writes(put(record(1), at(1), at(2), b"a"), put(record(1), at(3), at(4), b"b"))], flush_ts=at(30))
    reader = log.reader()
    reader.until_caught_up()
    reader.frontier = at(2)
    reader.rows.clear()
    reader.source.resubscribe([reader.opened[1].subscription])
    assert not reader.source.caught_up
    events = reader.poll(2)
    assert isinstance(events[0], SubscriptionClosed)
    assert [o.range for o in reader.opened] == [*RANGES, RANGES[1]]
    assert reader.rows == [(record(1), at(3), at(4), b"b")]
    assert reader.resolved == at(20)


def test_a_dropped_source_returns_nothing_until_resumed() -> None:
    log = Log()
    log.checkpoint(at(20))
    reader = log.reader()
    reader.until_caught_up()
    reader.source.drop()
    assert reader.poll(3) == []
    reader.source.resume()
    reader.batcher = Batcher()
    reader.poll(2)
    assert len(reader.opened) == 4


class _Counting(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.listed = 0
        self.got: list[str] = []

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        for info in super().list(prefix, after):
            self.listed += prefix == META_PREFIX
            yield info

    def get(self, key: str, admit: Callable[[int], None] | None = None) -> bytes:
        self.got.append(key)
        return super().get(key, admit)


@pytest.mark.parametrize("dated", [True, False])
def test_a_scan_lists_an_hour_and_reads_new_metadata(dated: bool) -> None:
    """Names of the older form say nothing, so all of them are listed; what is in them is read once all the same."""
    store = _Counting()
    log = Log(store)
    hours = 50
    for n in range(hours):
        ts = S + ((n * 1_800_000) << 18)
        log.flush([], flush_ts=ts, name="" if dated else f"{ts}-{n:08x}-ce2d-432e-970d-5348e607c9f8")
    log.checkpoint(S + ((hours * 1_800_000) << 18))
    reader = log.reader(frontier=S + (((hours - 1) * 1_800_000) << 18))
    reader.until_caught_up()
    assert sum(key.startswith(META_PREFIX) for key in store.got) == (3 if dated else hours)
    store.listed, store.got = 0, []
    reader.poll(4)
    assert not any(key.startswith(META_PREFIX) for key in store.got)
    assert store.listed <= 2 * (3 if dated else hours)
