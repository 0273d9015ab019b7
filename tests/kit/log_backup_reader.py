"""A log backup in memory, and a reader that polls its source as a pusher does and checks the contract of sources."""

from __future__ import annotations

from dataclasses import dataclass, field

from pusher.core.batcher import Batcher
from pusher.core.source import (
    Resolved,
    Rows,
    SourceEvent,
    SubscriptionClosed,
    SubscriptionOpened,
    SubscriptionReady,
    Tick,
)
from pusher.logbackup.source import RANGES, LogBackupSource
from tests.kit.log_backup_files import Entry, LogBackupFiles, Piece
from tests.kit.manual_clock import ManualClock
from tistream.codec.table_key import record_key
from tistream.keyrange import KeyRange
from tistream.objectstore.memory import MemoryStore

S = 1_700_000_000_000 << 18
Change = tuple[bytes, int, int, bytes | None]


def at(ms: int) -> int:
    return S + (ms << 18)


def record(n: int) -> bytes:
    return record_key(7, n)


def writes(*entries: Entry, table_id: int = 7) -> Piece:
    return Piece(cf="write", entries=entries, table_id=table_id)


def values(*entries: Entry, table_id: int = 7) -> Piece:
    return Piece(cf="default", entries=entries, table_id=table_id)


@dataclass
class Reader:
    """Polls a source as a pusher does, and checks what the contract of sources says."""

    source: LogBackupSource
    frontier: int | None = S
    rows: list[Change] = field(default_factory=list)
    resolved: int = 0
    cut: int = 0
    opened: list[SubscriptionOpened] = field(default_factory=list)
    batcher: Batcher = field(default_factory=Batcher)

    def poll(self, times: int = 1) -> list[SourceEvent]:
        events: list[SourceEvent] = []
        for _ in range(times):
            events += self.source.poll(60.0, self.checkpoint_of)
        for event in events:
            self.batcher.handle(event)
            match event:
                case Rows():
                    columns = [event.rows[n].to_pylist() for n in ("key", "start_ts", "commit_ts", "value")]
                    for change in zip(*columns, strict=True):
                        assert change[2] > self.resolved, "a row at or below what was promised"
                        self.rows.append(change)
                case Resolved():
                    assert len(set(event.resolved_ts.tolist())) == 1
                    self.resolved = max(self.resolved, int(event.resolved_ts[0]))
                case Tick():
                    assert self.cut <= event.cut_ts
                    assert max((r[2] for r in self.rows), default=0) <= event.cut_ts
                    self.cut = event.cut_ts
                case SubscriptionOpened():
                    self.opened.append(event)
                    self.resolved = 0
                case _:
                    assert isinstance(event, SubscriptionReady | SubscriptionClosed)
        return events

    def checkpoint_of(self, region: KeyRange) -> int | None:
        assert region in RANGES
        return self.frontier

    def until_caught_up(self) -> set[Change]:
        for _ in range(5000):
            self.poll()
            if self.source.caught_up:
                return set(self.rows)
        raise AssertionError(self.source.problem)


class Log(LogBackupFiles):
    """A log backup in memory and readers of it."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        super().__init__(store or MemoryStore())
        self.clock = ManualClock()

    def reader(self, frontier: int | None = S, **options: int) -> Reader:
        return Reader(LogBackupSource(self.store, self.clock, **options), frontier)
