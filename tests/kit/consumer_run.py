"""A run of a consumer's members over a recorded stream: they are killed, paused and started twice.

The reference is the stream itself. Whatever the group accepts as acknowledged is compared with the changes that its
checkpoint has passed: each must be acknowledged once, by the member that was given it, and none may be left out.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tistream.catalog.tenancy.core.consumer_group import (
    Acknowledged,
    ConsumerGroup,
    Left,
    Partition,
    Pulled,
)
from tistream.errors import Fenced

LEASE_MS = 30
NAMES = ("a", "b", "c")

Change = tuple[int, int, int]  #: commit_ts, number within the transaction, partition


@dataclass
class Process:
    """A process that reads as a member. It does what it does without knowing of the others."""

    name: str
    session: int | None = None
    partition: Partition | None = None  #: as it was given out
    hand: tuple[Change, ...] = ()
    upto: int = 0


class ConsumerRun:
    """One schedule, by its seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.stream = self._stream()
        count = self.dice.randint(1, 5)
        self.partitions = count
        self.stream = [(ts, n, table % count) for ts, n, table in self.stream]
        fresh = [Partition(number=n, checkpoint_ts=0, member=None, epoch=0) for n in range(count)]
        self.group = ConsumerGroup(fresh, (), 0)
        self.now_ms = 1000
        self.lease_ends: dict[str, int] = {}
        self.processes: list[Process] = []
        self.acknowledged: list[Change] = []
        self.sent: list[tuple[Acknowledged, tuple[Change, ...]]] = []
        self.delivered = dict.fromkeys(range(count), 0)
        self.hand_overs = self.fenced = 0

    def _stream(self) -> list[Change]:
        changes, ts = [], 0
        for _ in range(25):
            ts += self.dice.randint(1, 3)
            changes += [(ts, n, self.dice.randrange(60)) for n in range(self.dice.randint(1, 3))]
        return changes

    def position(self, partition: Partition) -> int:
        """Where a holder starts to read."""
        return partition.checkpoint_ts

    def run(self, steps: int = 120) -> None:
        """Let things happen, then let one healthy member finish."""
        for _ in range(steps):
            self.step()
        self.now_ms += 10 * LEASE_MS
        last = Process("last")
        pages = 0
        while self.group.checkpoint_ts < self.stream[-1][0]:
            self.pull(last)
            self.acknowledge(last)
            pages += 1
            assert pages < 2 * len(self.stream) + self.partitions, "one member comes to the end"
        assert sorted(self.acknowledged) == sorted(self.stream), "each change once"

    def step(self) -> None:
        """One of the things that happen to members."""
        self.now_ms += self.dice.choice([0, 1, 1, 2, 5])
        kind = self.dice.random()
        if kind < 0.08 or not self.processes:
            self.processes.append(Process(self.dice.choice(NAMES)))  # perhaps a name that runs already
            return
        process = self.dice.choice(self.processes)
        if kind < 0.12:
            self.processes.remove(process)  # killed
        elif kind < 0.15:
            self.now_ms += self.dice.choice([LEASE_MS - 1, LEASE_MS, LEASE_MS + 1])  # all of them are paused
        elif kind < 0.17 and process.session is not None:
            self.leave(process)
        elif kind < 0.25 and self.sent:
            self.take(*self.dice.choice(self.sent))  # a request that was lost on its way arrives after all
        elif kind < 0.6 or process.partition is None:
            self.pull(process)
        else:
            self.acknowledge(process)

    def pull(self, process: Process) -> None:
        """Ask for changes; a member that was superseded stops."""
        before = dict(self.group.partitions)
        event = Pulled(member=process.name, session=process.session, now_ms=self.now_ms, lease_ms=LEASE_MS)
        try:
            self.group.handle(event)
        except Fenced:
            self.fenced += 1
            self._stop(process)
            return
        for number, now in self.group.partitions.items():
            holder = before[number].member
            if holder is not None and holder not in (process.name, now.member):
                assert self.lease_ends[holder] <= self.now_ms, "taken while the lease of its holder ran"
                self.hand_overs += 1
        self.lease_ends[process.name] = self.now_ms + LEASE_MS
        process.session = self.group.members[process.name].session
        partitions = self.group.held_by(process.name)
        process.partition = partitions[0] if partitions else None
        if partitions:
            process.hand, process.upto = self._page(partitions[0])

    def _page(self, partition: Partition) -> tuple[tuple[Change, ...], int]:
        """Some changes and where they end: at the end of the stream when there are no more."""
        after = self.position(partition)
        changes = [change for change in self.stream if change[2] == partition.number and change[0] > after]
        size = self.dice.randint(1, 5)
        upto = changes[size - 1][0] if size <= len(changes) else self.stream[-1][0]
        self.delivered[partition.number] = max(self.delivered[partition.number], upto)
        return tuple(change for change in changes if change[0] <= upto), upto

    def acknowledge(self, process: Process) -> None:
        """Report what it has. The request may come a second time later."""
        partition = process.partition
        if partition is None:
            return
        event = Acknowledged(partition=partition.number, epoch=partition.epoch, ts=process.upto)
        self.sent.append((event, process.hand))
        self.take(event, process.hand)
        process.partition = None

    def take(self, event: Acknowledged, hand: tuple[Change, ...]) -> None:
        """An acknowledgement arrives."""
        before = self.group.partitions[event.partition].checkpoint_ts
        try:
            self.group.handle(event)
        except Fenced:
            self.fenced += 1
            return
        after = self.group.partitions[event.partition].checkpoint_ts
        assert after >= before, "a checkpoint fell"
        if after > before:
            passed = [c for c in self.stream if c[2] == event.partition and before < c[0] <= after]
            assert list(hand) == passed, "acknowledged is what was given, and nothing is skipped"
            self.acknowledged += passed

    def leave(self, process: Process) -> None:
        """Stop in order."""
        if process.session is not None:
            try:
                self.group.handle(Left(member=process.name, session=process.session))
            except Fenced:
                self.fenced += 1
        self._stop(process)

    def _stop(self, process: Process) -> None:
        if process in self.processes:
            self.processes.remove(process)
