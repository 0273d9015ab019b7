"""One ownership of a lane: what is read next, when it is tried again, until when it may write, and its checkpoint.

    next -> Read          read (after, upto] and plan it
    planned -> Attempt    record the attempt, then write     (Finish for a stretch without changes)
    written -> Finish     move the checkpoint
    refused -> Keep       write the changes as dead letters, then plan the rest   (Stop without dead letters)
    finished              the catalog has it
    failed                a pause, then the same again

Relations:

- a stretch is written only after the catalog has its attempt, and the checkpoint moves only after all of it is written;
- the checkpoint moves only after each refused change of the stretch has its dead letter;
- one stretch at a time: the next begins after the checkpoint has moved, so a key's writes are in commit order;
- an attempt is tried again with its record and its end, whatever is served meanwhile;
- `allowed_s` ends before another owner may write: it counts a lease from the start of the newest request to the catalog
  that showed this ownership to be current, and the other one counts a lease from the first answer that shows its own;
- all lanes meet at a DDL statement that may concern several of them (`Barriers`).

Times are seconds of the caller's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tistream.errors import invariant

LATE_S = 0.5  #: the lease ends this much earlier for its owner, for clocks that run apart
_FIRST_S, _MAX_S = 0.5, 30.0  # pauses after failures


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Read the lane's changes in (after, upto]; unless `exact`, the stretch may end earlier."""

    after: int
    upto: int
    exact: bool
    record: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing to do for this long, unless something changes."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Record this in the catalog before anything is written."""

    upto: int
    record: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Move the checkpoint in the catalog."""

    upto: int
    letters: int = 0  #: changes of the stretch that became dead letters


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Write this number of refused changes as dead letters; then plan the stretch without them."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """An operator decides about the refused change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Barriers:
    """DDL statements of a changefeed that concern several lanes, which all meet there.

    A lane stops below a statement until all others are there, and stops at it until all others have passed it: whatever
    lane writes it, it comes after every row below and before every row above."""

    ddl: Sequence[int]  #: their timestamps from the lane's checkpoint on, rising
    others_ts: int  #: the least checkpoint of the other lanes, but for those that wait for an operator
    held: Mapping[int, int] = field(default_factory=dict)
    """By statement that concerns tables of lanes that wait for an operator: the least checkpoint of these lanes."""

    def end_of(self, checkpoint_ts: int) -> int | None:
        """Where the lane must stop; None = nowhere."""
        for ts in self.ddl:
            others_ts = min(self.others_ts, self.held.get(ts, self.others_ts))
            if ts > checkpoint_ts:
                below = ts - 1
                return below if checkpoint_ts < below or others_ts < below else ts
            if ts == checkpoint_ts and others_ts < ts:
                return checkpoint_ts
        return None


class LaneCore:
    """See the module."""

    def __init__(
        self,
        *,
        checkpoint_ts: int,
        record: str,
        record_ts: int,
        target_ts: int,
        lease_s: float,
        tries: int = 0,
        keeps_letters: bool = False,
    ) -> None:
        """`record`, `record_ts`: of an unfinished stretch. `target_ts`: the end, 0 = none. `keeps_letters`: refused
        changes become dead letters."""
        self.checkpoint_ts = checkpoint_ts
        self._record, self._record_ts = record, record_ts
        self._target_ts, self._lease_s = target_ts, lease_s
        self.tries, self.keeps_letters = tries, keeps_letters
        self._unsaved = self._letters = 0  # refused changes of this try: to be written, and written
        self._from_s = float("inf")  # when it may write
        self._until_s = float("-inf")  # and until when
        self._retry_s = float("-inf")
        self._planned: Attempt | None = None

    # -- the lease -------------------------------------------------------------------------------------------------

    def confirmed(self, asked_s: float) -> None:
        """The catalog, asked at `asked_s`, has shown that this ownership is current."""
        self._until_s = max(self._until_s, asked_s + self._lease_s - LATE_S)

    def owned(self, answered_s: float, *, is_free: bool) -> None:
        """The catalog's answer, which was there at `answered_s`, has this ownership. Unless the lane `is_free`, the
        owner before may have seen its own until just before the first such answer, and writes for a lease from then."""
        self._from_s = float("-inf") if is_free else min(self._from_s, answered_s + self._lease_s)

    def waits(self, now_s: float) -> bool:
        """Whether an owner before may still write."""
        return now_s < self._from_s

    def allowed_s(self, now_s: float) -> float:
        """How long requests may still be in progress; at most 0: none may be sent."""
        return 0.0 if self.waits(now_s) else self._until_s - now_s

    # -- a stretch -------------------------------------------------------------------------------------------------

    @property
    def is_finished(self) -> bool:
        """Whether the lane has reached its target."""
        return 0 < self._target_ts <= self.checkpoint_ts

    def next(self, served_ts: int, now_s: float, barriers: Barriers | None = None) -> Read | Wait:
        """What to do now. `served_ts`: the log is complete and final up to here."""
        if self.waits(now_s):
            return Wait(seconds=min(self._from_s - now_s, 1.0))
        if now_s < self._retry_s:
            return Wait(seconds=self._retry_s - now_s)
        if self.allowed_s(now_s) <= 0 or self.is_finished:
            return Wait(seconds=1.0)
        if self._record_ts:
            return Read(after=self.checkpoint_ts, upto=self._record_ts, exact=True, record=self._record)
        upto = min(served_ts, self._target_ts or served_ts)
        end = None if barriers is None else barriers.end_of(self.checkpoint_ts)
        if end is not None:
            upto = min(upto, end)
        if upto <= self.checkpoint_ts:
            return Wait(seconds=1.0)
        return Read(after=self.checkpoint_ts, upto=upto, exact=False, record="")

    def planned(self, upto: int, record: str, *, is_empty: bool) -> Attempt | Finish:
        """The stretch up to `upto` was read and planned. One that lost changes to dead letters is not empty: its
        attempt is guarded by the checkpoint, so that a letter is counted once."""
        invariant(self._planned is None and upto > self.checkpoint_ts, "a lane plans one stretch at a time", upto=upto)
        if is_empty and not record and not self._letters:
            return Finish(upto=upto)
        self._planned = Attempt(upto=upto, record=record)
        return self._planned

    def attempted(self) -> None:
        """The catalog has the attempt."""
        invariant(self._planned is not None, "a stretch is planned before it is attempted")
        assert self._planned is not None
        self._record, self._record_ts = self._planned.record, self._planned.upto

    def replan(self) -> None:
        """The stretch cannot be written as it was planned and attempted: it is planned again."""
        invariant(self._planned is not None, "a stretch is planned before it is planned again")
        self._planned = None

    def written(self) -> Finish:
        """The destination has all of the planned stretch."""
        invariant(self._planned is not None, "a stretch is planned before it is written")
        invariant(not self._unsaved, "a refused change has its dead letter before it is passed", unsaved=self._unsaved)
        assert self._planned is not None
        return Finish(upto=self._planned.upto, letters=self._letters)

    def refused(self, count: int) -> Keep | Stop:
        """The destination can never take `count` changes of the stretch; 0: it did not say which."""
        if not self.keeps_letters or not count:
            return Stop()
        self._planned = None
        self._unsaved += count
        return Keep(count=count)

    def kept(self, count: int) -> None:
        """`count` refused changes are durable as dead letters."""
        invariant(count <= self._unsaved, "a dead letter is of a refused change", kept=count, unsaved=self._unsaved)
        self._unsaved -= count
        self._letters += count

    def finished(self, upto: int) -> None:
        """The catalog has the new checkpoint."""
        self.checkpoint_ts = upto
        self._record, self._record_ts, self._planned, self.tries = "", 0, None, 0
        self._unsaved = self._letters = 0

    def failed(self, now_s: float, spread: float) -> float:
        """A try has failed; the pause until the next. `spread`: a random number in [0, 1)."""
        pause_s: float = min(_MAX_S, _FIRST_S * 2 ** min(self.tries, 10)) * (0.5 + spread / 2)
        self._planned = None
        self._unsaved = self._letters = 0
        self.tries += 1
        self._retry_s = now_s + pause_s
        return pause_s
