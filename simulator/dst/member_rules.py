"""The rules of a consumer, checked when a transaction has committed and when a member has got a page.

pages        a page has the truth of its partition's tables in (checkpoint, end], in commit order; a table is always
             in the same partition; the holder of a partition's epoch is one process
checkpoints  one rises only to the end of a page that its holder acknowledged, with all changes on the way in it;
             it falls only by a reset. That of the consumer is the lowest of its partitions
epochs       one never falls, and rises when a partition changes hands or its member starts again
leases       a partition is taken only from one that gave it up or whose lease has ended; a member whose lease has
             ended is gone after the next pull of another
refusals     who acknowledges under an epoch that is no longer the current one is refused
at rest      each change was acknowledged once, in commit order, and none was skipped
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from simulator.dst.scheduler import Process
from simulator.transactions import CommittedRow

LEASE_MS = 1000  #: of a member in a run: slow work and pauses outlast it
FEED = "feed"

_PARTITIONS = "SELECT number, checkpoint_ts, member, epoch FROM consumer_partitions WHERE tenant_id = 1 ORDER BY number"
_MEMBERS = "SELECT member, session, expires_ms FROM consumer_members WHERE tenant_id = 1 ORDER BY member"
_CHECKPOINT = "SELECT checkpoint_ts FROM consumers WHERE tenant_id = 1"


class _Partition(NamedTuple):
    checkpoint_ts: int
    member: str | None
    epoch: int


class _Member(NamedTuple):
    session: int
    expires_ms: int

    @property
    def pulled_ms(self) -> int:
        """When it pulled last."""
        return self.expires_ms - LEASE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Hand:
    """A page that a member was given."""

    partition: int
    epoch: int
    after: int
    upto: int  #: what its acknowledgement says
    rows: Sequence[CommittedRow]
    cursor: str


@dataclass(slots=True)
class MemberRules:
    """The rules of one run, and what was acknowledged in it. `truth`: the rows in (after, upto]."""

    truth: Callable[[int, int], list[CommittedRow]]
    violated: Callable[[str], None]
    hands: list[Hand] = field(default_factory=list)  #: of all that were sent to be acknowledged
    resets: set[int] = field(default_factory=set)  #: where operators told it to continue
    acknowledged: dict[int, list[CommittedRow]] = field(default_factory=dict)  #: by partition
    fenced: int = 0  #: acknowledgements and pulls that were refused
    hand_overs: int = 0  #: of partitions whose holder's lease had ended
    _tables: dict[bytes, int] = field(default_factory=dict)  # prefix of the keys of a table -> partition
    _holders: dict[tuple[int, int], Process] = field(default_factory=dict)  # (partition, epoch) -> who reads it
    _partitions: dict[int, _Partition] = field(default_factory=dict)
    _members: dict[str, _Member] = field(default_factory=dict)

    @property
    def lowest(self) -> int:
        """Everything at or below is acknowledged; 0 before the consumer is registered."""
        return min((p.checkpoint_ts for p in self._partitions.values()), default=0)

    def delivered(self, process: Process, hand: Hand) -> None:
        """A process has got a page."""
        holder = self._holders.setdefault((hand.partition, hand.epoch), process)
        if holder is not process:
            self.violated(f"members: {holder} and {process} both read partition {hand.partition} at {hand.epoch}")
        for row in hand.rows:
            if self._tables.setdefault(row.key[:9], hand.partition) != hand.partition:
                self.violated(f"members: {row} is delivered in partition {hand.partition}, its table is of another")
        self._compare("was given", hand, hand.after, hand.upto)

    def accepted(self, hand: Hand, epoch: int) -> None:
        """The service says that a page is acknowledged; the partition is at `epoch`."""
        if epoch != hand.epoch:
            self.violated(f"members: partition {hand.partition} is at {epoch}, a page of {hand.epoch} was acknowledged")

    def at_rest(self, upto: int) -> None:
        """All was acknowledged up to here."""
        rows_acknowledged = [row for rows in self.acknowledged.values() for row in rows]
        missing = [row for row in self.truth(0, upto) if row not in rows_acknowledged]
        twice = [row for row in rows_acknowledged if rows_acknowledged.count(row) > 1]
        if missing or twice:
            self.violated(f"members: never acknowledged {missing}, twice {twice}")
        for number, rows in self.acknowledged.items():
            if [row.commit_ts for row in rows] != sorted(row.commit_ts for row in rows):
                self.violated(f"members: partition {number} was not acknowledged in commit order")

    def look(self, query: Callable[..., Any]) -> None:
        """Check after a COMMIT."""
        partitions = {number: _Partition(*row) for number, *row in query(_PARTITIONS)}
        members = {name: _Member(*row) for name, *row in query(_MEMBERS)}
        if (partitions, members) == (self._partitions, self._members):
            return
        ((checkpoint_ts,),) = query(_CHECKPOINT)
        if checkpoint_ts != min(p.checkpoint_ts for p in partitions.values()):
            self.violated(f"members: the consumer is at {checkpoint_ts}, its partitions are {partitions}")
        pulled = {name: m for name, m in members.items() if self._members.get(name) != m}
        self._check_members(members, pulled)
        reset = self._is_reset(partitions)
        for number, now in partitions.items():
            was = self._partitions.get(number)
            if was is None or was == now:
                continue
            self._check_epoch(number, was, now, pulled)
            self._check_lease(number, was, now, pulled)
            if reset:
                kept = self.acknowledged.get(number, [])
                self.acknowledged[number] = [row for row in kept if row.commit_ts <= now.checkpoint_ts]
            elif now.checkpoint_ts != was.checkpoint_ts:
                self._check_move(number, was, now)
        self._partitions, self._members = partitions, members

    def _is_reset(self, partitions: dict[int, _Partition]) -> bool:
        """Whether an operator has moved all partitions to one place."""
        at = {p.checkpoint_ts for p in partitions.values()}
        was = self._partitions
        raised = bool(was) and all(p.epoch > was[number].epoch for number, p in partitions.items())
        return raised and len(at) == 1 and at <= self.resets

    def _check_members(self, members: dict[str, _Member], pulled: dict[str, _Member]) -> None:
        for name, puller in pulled.items():
            for other, m in members.items():
                if other != name and m.expires_ms <= puller.pulled_ms:
                    self.violated(f"members: the lease of {other} ended before {name} pulled, and still counts")

    def _check_epoch(self, number: int, was: _Partition, now: _Partition, pulled: dict[str, _Member]) -> None:
        again = now.member in pulled and self._members.get(now.member) not in (None, pulled[now.member])
        started = again and self._members[str(now.member)].session != pulled[str(now.member)].session
        taken = now.member is not None and (now.member != was.member or started)
        if now.epoch < was.epoch or (taken and now.epoch == was.epoch):
            self.violated(f"members: partition {number} went from {was} to {now} under the same epoch")

    def _check_lease(self, number: int, was: _Partition, now: _Partition, pulled: dict[str, _Member]) -> None:
        holder = None if was.member is None else self._members.get(was.member)
        if holder is None or now.member in (was.member, None) or was.member in pulled:
            return
        taken_ms = pulled[str(now.member)].pulled_ms if now.member in pulled else 0
        self.hand_overs += 1
        if holder.expires_ms > taken_ms:
            self.violated(f"members: partition {number} was taken from {was.member}, whose lease had not ended")

    def _check_move(self, number: int, was: _Partition, now: _Partition) -> None:
        if now.checkpoint_ts < was.checkpoint_ts:
            self.violated(f"members: partition {number} fell from {was} to {now} without a reset")
            return
        fits = [
            hand
            for hand in self.hands
            if (hand.partition, hand.epoch, hand.upto) == (number, was.epoch, now.checkpoint_ts)
            and hand.after <= was.checkpoint_ts
        ]
        if not fits:
            self.violated(f"members: partition {number} went from {was} to {now}, which no holder has acknowledged")
            return
        hand = fits[-1]
        self._compare("acknowledged", hand, was.checkpoint_ts, now.checkpoint_ts)
        passed = [row for row in hand.rows if row.commit_ts > was.checkpoint_ts]
        self.acknowledged.setdefault(number, []).extend(passed)

    def _compare(self, did: str, hand: Hand, after: int, upto: int) -> None:
        """A page has exactly the changes of the tables that are known to be of its partition."""
        got = [row for row in hand.rows if after < row.commit_ts]
        want = [row for row in self.truth(after, upto) if self._tables.get(row.key[:9]) == hand.partition]
        if sorted(got) != sorted(want) or [r.commit_ts for r in got] != [r.commit_ts for r in want]:
            missing, extra = [r for r in want if r not in got], [r for r in got if r not in want]
            self.violated(
                f"members: partition {hand.partition} {did} ({after}, {upto}]: missing {missing}, wrong {extra}"
            )


def rows_of(content: pa.Buffer, columns: Sequence[str]) -> list[CommittedRow]:
    """The rows of a page, as the truth has them."""
    table = pa.ipc.open_stream(content).read_all()
    return [CommittedRow(*row) for row in zip(*(table.column(name).to_pylist() for name in columns), strict=True)]
