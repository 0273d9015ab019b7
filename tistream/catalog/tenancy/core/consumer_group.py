"""Who reads which partition of a consumer, and how far it has got (pure).

A consumer is read by *members*, each under a lease. Its changes are divided into *partitions*, each with the checkpoint
that was acknowledged last and the epoch of its holder. Events carry the time; effects are written in one transaction:

    Pulled          a member asks for changes: renew its lease, expire the others', take and give up partitions
    Acknowledged    a checkpoint moves up
    Left            a member gives everything up
    Reset           an operator moves all checkpoints

Rules that make each change acknowledged once, and none skipped:

- A partition changes hands only when its holder gave it up, or its lease has expired. Each hand-over raises the epoch.
- An acknowledgement needs the partition's current epoch. At or below the checkpoint it has no effect; the checkpoint
  never falls. Inside a large commit the checkpoint stays below it, and the position inside moves in the same way.
- A new holder starts at the acknowledged checkpoint, whatever its predecessor was given.
- A session is one start of a member. A second start under the same name gets a new session and raises the epochs of
  the partitions that the name holds; the first one is refused from then on.

Epochs and sessions are drawn from one counter of the consumer, so neither is ever used twice.

Partitions are shared evenly: each member may hold floor(partitions / members), and the first `partitions mod members`
of them, those that hold most, one more. A member gives up what is too much when it pulls: then it has nothing at hand.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tistream.errors import Fenced, NotFound, StateForbids, invariant
from tistream.limits import CONSUMER_MEMBERS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A part of a consumer's changes."""

    number: int
    checkpoint_ts: int  #: everything at or below it is acknowledged
    commit_position: str = ""  #: and a part of the commit that follows; later positions sort higher
    member: str | None  #: who holds it
    epoch: int  #: of the last hand-over

    @property
    def reached(self) -> tuple[int, str]:
        """Checkpoint and position; they only rise."""
        return self.checkpoint_ts, self.commit_position


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A reader of the group."""

    name: str
    session: int  #: of its last start
    expires_ms: int  #: end of its lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """A member asks for changes."""

    member: str
    session: int | None  #: None: it has just started
    now_ms: int
    lease_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """Everything of a partition at or below `ts` is done."""

    partition: int
    epoch: int
    ts: int
    commit_position: str = ""  #: and a part of the commit that follows


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A member has stopped."""

    member: str
    session: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """All partitions go on from here."""

    ts: int


@dataclass(frozen=True, slots=True)
class SetMember:
    """Write a member."""

    member: Member


@dataclass(frozen=True, slots=True)
class DropMember:
    """Forget a member."""

    name: str


@dataclass(frozen=True, slots=True)
class SetPartition:
    """Write a partition."""

    partition: Partition


Event = Pulled | Acknowledged | Left | Reset
Effect = SetMember | DropMember | SetPartition


class ConsumerGroup:
    """The members and partitions of one consumer. `handle` changes them and returns what to write."""

    def __init__(self, partitions: Iterable[Partition], members: Iterable[Member], counter: int) -> None:
        """`counter`: the last session or epoch that was drawn."""
        self.partitions = {p.number: p for p in partitions}
        self.members = {m.name: m for m in members}
        self.counter = counter
        self._effects: list[Effect] = []

    @property
    def checkpoint_ts(self) -> int:
        """Everything at or below it is acknowledged in all partitions."""
        return min(p.checkpoint_ts for p in self.partitions.values())

    def held_by(self, member: str) -> list[Partition]:
        """The partitions of a member; the one that is furthest behind comes first."""
        held = [p for p in self.partitions.values() if p.member == member]
        return sorted(held, key=lambda p: (p.reached, p.number))

    def handle(self, event: Event) -> list[Effect]:
        """Apply an event. Fenced, without effect, for a session or an epoch that is no longer the current one."""
        self._effects = []
        match event:
            case Pulled():
                self._pulled(event)
            case Acknowledged():
                self._acknowledged(event)
            case Left():
                self._left(event)
            case Reset():
                self._reset(event)
        self.check()
        return self._effects

    def check(self) -> None:
        """The invariants."""
        epochs = [p.epoch for p in self.partitions.values()] + [m.session for m in self.members.values()]
        invariant(max(epochs) <= self.counter, "no epoch or session above the counter", counter=self.counter)
        holders = {p.member for p in self.partitions.values()} - {None}
        invariant(holders <= self.members.keys(), "members hold partitions", holders=holders)

    def _pulled(self, event: Pulled) -> None:
        member = self.members.get(event.member)
        if event.session is not None and member is not None and event.session != member.session:
            raise _superseded(event.member, member.session)
        for other in list(self.members.values()):
            if other.name != event.member and self._expired(other, event.now_ms):
                self._drop(other.name)
        if member is None and len(self.members) >= CONSUMER_MEMBERS_MAX:
            raise StateForbids(f"The consumer has {CONSUMER_MEMBERS_MAX} members.", members=CONSUMER_MEMBERS_MAX)
        started = member is None or event.session is None
        session = self._next() if member is None or event.session is None else member.session
        self._put_member(Member(name=event.member, session=session, expires_ms=event.now_ms + event.lease_ms))
        if started:
            for held in self.held_by(event.member):
                self._put(replace(held, epoch=self._next()))
        self._share(event.member)

    def _share(self, member: str) -> None:
        """Give up what is too much, or take what is free."""
        held, quota = self.held_by(member), self._quota(member)
        for surplus in held[quota:]:
            self._put(replace(surplus, member=None))
        free = sorted((p for p in self.partitions.values() if p.member is None), key=lambda p: p.checkpoint_ts)
        for taken in free[: max(0, quota - len(held))]:
            self._put(replace(taken, member=member, epoch=self._next()))

    def _quota(self, member: str) -> int:
        each, more = divmod(len(self.partitions), len(self.members))
        order = sorted(self.members, key=lambda name: (-len(self.held_by(name)), name))
        return each + (order.index(member) < more)

    def _expired(self, member: Member, now_ms: int) -> bool:
        return member.expires_ms <= now_ms

    def _acknowledged(self, event: Acknowledged) -> None:
        partition = self.partitions.get(event.partition)
        if partition is None:
            raise NotFound(f"The consumer has no partition {event.partition}.", partition=event.partition)
        if event.epoch != partition.epoch:
            raise Fenced(
                f"Partition {event.partition} was handed over since these changes were given out: they come again.",
                partition=event.partition,
                epoch=event.epoch,
                current_epoch=partition.epoch,
            )
        if (event.ts, event.commit_position) > partition.reached:
            reached = replace(partition, checkpoint_ts=event.ts, commit_position=event.commit_position)
            self._put(reached)

    def _left(self, event: Left) -> None:
        member = self.members.get(event.member)
        if member is not None and member.session != event.session:
            raise _superseded(event.member, member.session)
        if member is not None:
            self._drop(member.name)

    def _reset(self, event: Reset) -> None:
        for name in list(self.members):
            self._drop(name)
        for partition in list(self.partitions.values()):
            fresh = replace(partition, checkpoint_ts=event.ts, commit_position="", epoch=self._next())
            self._put(fresh)

    def _drop(self, name: str) -> None:
        for held in self.held_by(name):
            self._put(replace(held, member=None))
        del self.members[name]
        self._effects.append(DropMember(name))

    def _put(self, partition: Partition) -> None:
        self.partitions[partition.number] = partition
        self._effects.append(SetPartition(partition))

    def _put_member(self, member: Member) -> None:
        self.members[member.name] = member
        self._effects.append(SetMember(member))

    def _next(self) -> int:
        self.counter += 1
        return self.counter


def _superseded(member: str, session: int) -> Fenced:
    return Fenced(
        f"Member {member} was started again elsewhere: stop this one.", member=member, current_session=session
    )
