"""A recovery cluster on simulated time: what RawKV is to a client over the network, and a destination that writes it.

A request has a few keys. It may be refused (`rec_refused`), applied in part (`rec_part`), applied although its reply is
lost (`rec_lost`), applied later (`rec_late`), or neither (`rec_nowhere`). It is never applied twice, and never after
its deadline. It arrives even if its sender dies. Entries expire by the cluster's own clock, which differs from those of
the hosts. One key may be refused for a while (`refused`). The host of a sender may stop just then (`host_stops`).

`SimLetters` is the place of dead letters of a changefeed to it. It may refuse (`letter_refused`), or have taken a
letter although its reply is lost (`letter_lost`).

`SimRecovery` has several requests under way at once. When the outcome of one is not known, it waits until the deadline
of that request before it reports the error: a later write of its keys cannot be overtaken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from destinations.protocol import (
    Allowed,
    DeadLetter,
    DeadLetterUnavailable,
    DestinationRefused,
    DestinationUnavailable,
    LeaseOver,
    Plan,
    Stretch,
)
from destinations.tikv.core import writes
from destinations.tikv.core.writes import TikvPlan, cut_ranges
from simulator.dst import threads
from simulator.dst.faults import Dice
from simulator.dst.scheduler import Scheduler
from tistream.catalog.work.core.lane_scope import KeyScope
from tistream.clock import Clock
from tistream.keyrange import KeyRange
from tistream.tikv.core import raw_messages

REQUEST_S = 1.0  #: the longest deadline of a request
BATCH = 2  #: keys of a request
CONCURRENCY = 2  #: requests at once

Owner = tuple[int, int, int]
"""(generation of the catalog, lane, epoch) of an ownership: of two that ever had a key, the later one is larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A version of a key, as the log has it."""

    key: bytes  #: the user's
    expire_ts: int  #: Unix seconds; 0 = never
    commit_ts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """What a request does to a key: a put with a TTL (0 = for ever), or a delete."""

    entry: Entry
    value: bytes | None
    ttl_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A few writes under way."""

    owner: Owner
    scope: KeyScope  #: of the lane
    writes: Sequence[Write]
    sent_s: float
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An entry of the recovery cluster."""

    value: bytes
    expire_ms: int  #: by its clock; 0 = never


class NoReply(Exception):
    """The outcome of a request is not known until its deadline has passed."""


class RecoveryCluster:
    """The state of the cluster. `on_sent` and `on_applied` see each request and each of its writes."""

    def __init__(
        self, scheduler: Scheduler, dice: Dice, unix_ms: Callable[[], int], tell: Callable[[str], None]
    ) -> None:
        self.scheduler, self.dice, self._tell = scheduler, dice, tell
        self._unix_ms = unix_ms
        self.skew_ms = dice.rand.choice((-1, 1)) * dice.rand.randrange(4_000, 40_000)
        self.data: dict[bytes, Stored] = {}
        self.refused: bytes | None = None
        self.bounds: list[bytes] = []  #: of its regions, without the first and the last
        self.requests = self.stops = 0
        self.on_sent: Callable[[Request], None] = lambda request: None
        self.on_applied: Callable[[Request, Write], None] = lambda request, write: None
        self.on_letter: Callable[[DeadLetter], None] = lambda letter: None

    def unix_ms(self) -> int:
        """By the clock of its PD."""
        return self._unix_ms() + self.skew_ms

    def main_ms(self) -> int:
        """By the clock of the main cluster, and of the catalog."""
        return self._unix_ms()

    def get(self, key: bytes) -> Stored | None:
        """What a client of the cluster gets now."""
        entry = self.data.get(key)
        return None if entry is None or 0 < entry.expire_ms <= self.unix_ms() else entry

    def ask_time(self) -> int:
        """The time of PD, asked over the network."""
        s = self.scheduler
        s.point("recovery: time")
        takes = self.dice.latency()
        s.sleep(takes / 2)
        now_ms = self.unix_ms()
        s.sleep(takes / 2)
        if self.dice.roll("rec_refused"):
            raise DestinationUnavailable("PD does not answer")
        return now_ms

    def send(self, request: Request) -> None:
        """Returns when the request is done. NoReply when its outcome is unknown."""
        s = self.scheduler
        s.point(f"recovery: {[write.entry for write in request.writes]}")
        self.requests += 1
        self.on_sent(request)
        if self.dice.roll("host_stops"):
            self._stop_host()
        fault = self.dice.roll("rec_refused", "rec_part", "rec_lost", "rec_late", "rec_nowhere")
        takes = self.dice.latency() + self.dice.rand.random() ** 2 * (0.4 if self.dice.on else 0.02)  # it is far away
        if fault == "rec_refused":
            s.sleep(takes)
            raise DestinationUnavailable("the region has no leader")
        for write in request.writes:
            if write.entry.key == self.refused:
                s.sleep(takes)
                raise DestinationRefused(
                    "the entry is too large", key=write.entry.key.hex(), commit_ts=str(write.entry.commit_ts)
                )
        done: list[int] = []
        part = request.writes[: len(request.writes) // 2] if fault == "rec_part" else request.writes

        def arrive() -> None:
            if s.now > request.deadline_s:
                return
            done.append(len(part))
            for write in part:
                self._apply(request, write)

        left = max(0.0, request.deadline_s - s.now)
        if fault == "rec_late":
            s.call_at(s.now + left * self.dice.rand.random(), arrive)
        elif fault != "rec_nowhere":
            s.call_at(s.now + takes * 0.6, arrive)
        s.sleep(min(takes, left))
        s.point("recovery: reply")
        if fault == "rec_part" and done:
            raise DestinationUnavailable("the region of some keys has no leader")
        if fault or not done:
            raise NoReply(fault or "deadline exceeded")

    def _stop_host(self) -> None:
        """The process that sends is paused, for less or more than its leases last."""
        s = self.scheduler
        assert s.current is not None
        self.stops += 1
        process, seconds = s.current.process, 1.0 + self.dice.rand.random() * 5.5
        self._tell(f"the host of {process.name} stops for {seconds:.1f} s")
        s.pause(process)
        s.call_at(s.now + seconds, lambda: s.unpause(process))

    def _apply(self, request: Request, write: Write) -> None:
        key = write.entry.key
        if write.value is None:
            self.data.pop(key, None)
        else:
            expire_ms = (self.unix_ms() // 1000 + write.ttl_s) * 1000 if write.ttl_s else 0
            self.data[key] = Stored(value=write.value, expire_ms=expire_ms)
        self.on_applied(request, write)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The plan of a stretch for TiKV, with the commit_ts of what it writes."""

    plan: TikvPlan
    commit_ts: Sequence[int]
    record: str = ""

    @property
    def rows(self) -> int:
        return self.plan.rows

    @property
    def size(self) -> int:
        return self.plan.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The cluster and its keyspace."""

    cluster_id: int = 77
    keyspace_id: int | None = None


@dataclass(slots=True, kw_only=True)
class SimRecovery:
    """A Destination of one lane."""

    cluster: RecoveryCluster
    owner: Owner
    scope: KeyScope
    clock: Clock | None  #: of the host; None: it writes nothing
    _pool: Any = field(default_factory=lambda: threads.ThreadPoolExecutor(CONCURRENCY))

    def check(self) -> Sequence[str]:
        return ()

    def look(self) -> Found:
        """Which cluster it is."""
        return Found()

    def ranges(self, wanted: KeyRange, count: int) -> Sequence[KeyRange]:
        return cut_ranges(self.cluster.bounds, wanted, count)

    def plan(self, stretch: Stretch, record: str) -> Plan:
        rows = stretch.rows
        newest = rows["commit_ts"].take(writes.newest_rows(rows["key"])).to_pylist()
        return _Plan(plan=writes.plan_writes(rows), commit_ts=newest)

    def write(self, plan: Plan, allowed: Allowed) -> None:
        assert isinstance(plan, _Plan)
        assert self.clock is not None
        clock = self.clock
        now_ms = self.cluster.ask_time()
        asked_s = clock.monotonic()

        def send(at: int) -> None:
            """The rows from `at` on, with what remains of them now."""
            time_ms = now_ms + int((clock.monotonic() - asked_s) * 1000)
            self._send(writes_of(plan, time_ms // 1000)[at : at + BATCH], allowed)

        futures = [self._pool.submit(send, at) for at in range(0, plan.rows, BATCH)]
        errors = [error for error in (future.exception() for future in futures) if error is not None]
        for error in sorted(errors, key=lambda e: not isinstance(e, DestinationRefused)):
            raise error

    def note_checkpoint(self, ts: int, allowed: Allowed) -> None:
        """It has no place for it."""

    def close(self) -> None:
        self._pool.shutdown()

    def _send(self, some: Sequence[Write], allowed: Allowed) -> None:
        s, left = self.cluster.scheduler, allowed()
        if left <= 0:
            raise LeaseOver
        request = Request(
            owner=self.owner,
            scope=self.scope,
            writes=some,
            sent_s=s.now,
            deadline_s=s.now + min(left, REQUEST_S),
        )
        try:
            self.cluster.send(request)
        except NoReply as e:
            s.sleep(max(0.0, request.deadline_s - s.now))
            raise DestinationUnavailable(str(e)) from e


@dataclass(frozen=True, slots=True, kw_only=True)
class SimLetters:
    """DeadLetters of one lane."""

    cluster: RecoveryCluster

    def keep(self, letters: Sequence[DeadLetter], allowed: Allowed) -> None:
        s, dice = self.cluster.scheduler, self.cluster.dice
        for letter in letters:
            if allowed() <= 0:
                raise LeaseOver
            s.point(f"letter: {letter.name}")
            fault = dice.roll("letter_refused", "letter_lost")
            s.sleep(dice.latency())
            if fault != "letter_refused":
                self.cluster.on_letter(letter)
            if fault:
                raise DeadLetterUnavailable(fault)

    def close(self) -> None:
        """It has no connections."""


def writes_of(plan: _Plan, now_s: int) -> list[Write]:
    """As the client of TiKV writes them at this time of the cluster."""
    listed, plan_ = list[Write](), plan.plan
    ttls, expired = raw_messages.remaining(plan_.expires, now_s)
    for n, key in enumerate(plan_.keys.to_pylist()):
        gone = bool(plan_.deleted[n] or expired[n])
        entry = Entry(key=key, expire_ts=int(plan_.expires[n]), commit_ts=plan.commit_ts[n])
        listed.append(Write(entry=entry, value=None if gone else plan_.values[n].as_py(), ttl_s=int(ttls[n])))
    return listed
