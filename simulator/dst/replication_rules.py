"""The rules of a changefeed that the service writes to a recovery cluster, checked at each write and each COMMIT.

never older    each key shows a version that is no older than its newest at or below the checkpoint of its lane
in order       within one ownership of a lane no key goes back. After a change of owner one may, as long as the lane is
               below its `catch_up_ts` ("catching up")
one service    once a restored catalog counts, no worker of an earlier generation sends a request
one writer     once an owner has sent a request, no request of an owner before it is applied to its keys
attempted      the catalog has `attempted_ts` at or above the commit_ts of a write before it is sent
repeated       a stretch keeps its end from its first request until it is finished
entries        what is written is a version of the main cluster; it expires when that does, by the recovery cluster's
               clock
lanes          together have each key once. `attempted_ts`, epochs and checkpoints never fall, but for a rewind; the
               checkpoint of the changefeed is not above that of a lane
retention      the changefeed holds the log for a while after it last moved: meanwhile the floor does not rise above its
               checkpoint. A lane that moves has read all of the log that it passes; if it cannot, the changefeed fails
letters        a refused change is a dead letter, or the checkpoint is below it: "never older" and "at rest" are about
               the versions that have none. A letter is of a version of the main cluster, and keeps its bytes
restores       a restored catalog has lanes where they were at its export: what was written since may be written again.
               A destination that the export did not have yet may show older versions meanwhile
at rest        the recovery cluster is the main one, and expiries are those of the main one

A version that the log lacks is not missed: whether it is lacked is known when all of the log was read (`raw_rules`).
"""

from __future__ import annotations

import json
from base64 import b64decode
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from destinations.protocol import DeadLetter
from simulator.dst.recovery import Entry, Owner, RecoveryCluster, Request, Stored, Write
from simulator.raw_workload import RawRow
from tistream.catalog.work.core.lane_scope import KeyScope, parse_scope
from tistream.errors import TsExpired
from tistream.model.change import Op
from tistream.objectstore.generations import FIRST

_ROUNDED_MS = 1000  # a TTL has whole seconds

_LANES = (
    "SELECT lane_id, scope, checkpoint_ts, attempted_ts, catch_up_ts, epoch, owner, record_ts FROM lanes "
    "WHERE tenant_id = 1 ORDER BY lane_id"
)
_FEED = (
    "SELECT checkpoint_ts, state, last_active_ms, idle_limit_ms, error, target_ts FROM changefeeds WHERE tenant_id = 1"
)
_LOG = "SELECT start_ts, floor_ts FROM tenants WHERE tenant_id = 1"
_LATE_MS = 2000  # a transaction that has raised the floor may land this much later
_EXPIRED = f'"{TsExpired.code}"'
_Place = tuple[int, bytes]  # commit_ts, key on the wire


class _Feed(NamedTuple):
    checkpoint_ts: int = 0
    state: str = ""
    last_active_ms: int = 0
    hold_ms: int = 0  #: 0 = for ever
    error: str | None = None
    target_ts: int = 0


class _Lane(NamedTuple):
    scope: KeyScope
    checkpoint_ts: int
    attempted_ts: int
    catch_up_ts: int
    epoch: int
    owner: str | None
    record_ts: int  #: end of an unfinished stretch

    def has(self, key: bytes) -> bool:
        return key in self.scope.range and not any(key in part for part in self.scope.without)


class _Shown(NamedTuple):
    """What was written to a key last."""

    commit_ts: int
    owner: Owner
    asked_ms: int  #: the latest by which its TTL may be too long


@dataclass(slots=True)
class ReplicationRules:
    """The rules of one run. `truth`: key on the wire -> its writes in the main cluster, growing."""

    truth: Mapping[bytes, Sequence[RawRow]]
    prefix: bytes  #: of the keys of the tenant
    cluster: RecoveryCluster
    violated: Callable[[str], None]
    rewinds: set[int] = field(default_factory=set)  #: where operators told it to continue
    went_back: int = 0  #: keys that showed an older version after a change of owner
    owners: set[Owner] = field(default_factory=set)  #: that have sent something
    letters: dict[_Place, DeadLetter] = field(default_factory=dict)  #: of the keys of users
    left_out: set[_Place] = field(default_factory=set)  #: by an operator
    generation: int = FIRST  #: that counts
    _unknown_upto: int = 0  # the last generation whose writes the catalog knows nothing of
    _named_letters: dict[str, DeadLetter] = field(default_factory=dict)
    _scopes: dict[Owner, KeyScope] = field(default_factory=dict)
    _begun: set[tuple[int, int]] = field(default_factory=set)  # (lane, end) of stretches with a request sent
    _shown: dict[bytes, _Shown] = field(default_factory=dict)
    _lanes: dict[int, _Lane] = field(default_factory=dict)
    _rows: Any = None
    _feed: _Feed = field(default_factory=_Feed)
    _begin: int = 0  # of the log
    _floor: int = 0
    _moved_ms: int = 0  # when the changefeed moved, or was paused or resumed
    _holds_from_ms: int = 0  # since when it has held the log above its checkpoint, or a higher one
    _paged: set[_Place] = field(default_factory=set)
    _pages: dict[str, dict[int, int]] = field(default_factory=dict)  # reader -> after -> the furthest end
    _lacked: set[tuple[_Place, str]] = field(default_factory=set)  # if the log has it, this was violated

    # -- what happens

    def paged(self, who: str, rows: Any, after: int, upto: int) -> None:
        """A process has read (after, upto] of the log."""
        self._paged.update(zip(rows["commit_ts"].to_pylist(), rows["key"].to_pylist(), strict=True))
        pages = self._pages.setdefault(who, {})
        pages[after] = max(upto, pages.get(after, 0))

    def restored(self, generation: int, *, has_place: bool) -> None:
        """A restored catalog counts; `has_place`: it knows the destination."""
        if not has_place:
            self._unknown_upto = self.generation
        self.generation = generation
        self._lanes, self._rows, self._feed, self._floor = {}, None, _Feed(), 0
        self._begun.clear()

    def loaded(self, ts: int) -> None:
        """The recovery cluster was loaded with a copy of the main one as of then."""
        self.rewinds.add(ts)
        self.cluster.data.clear()
        for wire, writes in self.truth.items():
            upto = bisect_right(writes, ts, key=lambda write: write.commit_ts)
            if upto and wire.startswith(self.prefix):
                key, newest = wire[len(self.prefix) :], writes[upto - 1]
                self._shown[key] = _Shown(newest.commit_ts, (0, 0, 0), 0)
                if newest.value is not None:
                    self.cluster.data[key] = Stored(value=newest.value, expire_ms=newest.expire_ts * 1000)

    def sent(self, request: Request) -> None:
        """A worker sends a request."""
        self.owners.add(request.owner)
        self._scopes.setdefault(request.owner, request.scope)
        generation, lane_id, epoch = request.owner
        if generation < self.generation:
            self.violated(f"one service: {request} is sent, generation {self.generation} has begun")
        now = self._lanes.get(lane_id)
        if now is not None and now.epoch == epoch and now.record_ts:
            self._begun.add((lane_id, now.record_ts))
        for write in request.writes:
            for lane in self._of(write.entry.key):
                if lane.attempted_ts < write.entry.commit_ts:
                    self.violated(f"attempted: {write.entry} is sent, its lane has attempted {lane.attempted_ts}")

    def applied(self, request: Request, write: Write) -> None:
        """A write has reached the cluster."""
        entry, key = write.entry, write.entry.key
        if wrong := self._wrong(request, write):
            self.violated(f"entry: {write} {wrong}")
        later = [owner for owner, scope in self._scopes.items() if owner > request.owner and key in scope.range]
        if later:
            self.violated(f"one writer: {write} of {request.owner} is applied, {later} have begun")
        was = self._shown.get(key)
        if was is not None and entry.commit_ts < was.commit_ts:
            self._check_back(request, entry, was)
        delay_ms = int((self.cluster.scheduler.now - request.sent_s) * 1000)
        self._shown[key] = _Shown(entry.commit_ts, request.owner, delay_ms)
        self._check_key(key)

    def kept(self, letter: DeadLetter) -> None:
        """A dead letter is there."""
        change = json.loads(letter.data)["change"]
        place = int(change["ts"]), b64decode(change["key"])
        self.letters[place] = letter
        first = self._named_letters.setdefault(letter.name, letter)
        if first.data != letter.data:
            self.violated(f"letters: {first} was written again as {letter}")
        value = None if change["value"] is None else b64decode(change["value"])
        if (place[0], value) not in [(w.commit_ts, w.value) for w in self.truth.get(self.prefix + place[1], ())]:
            self.violated(f"letters: {letter} was never written")

    def look(self, query: Callable[..., Any]) -> None:
        """Check after a COMMIT."""
        feeds, ((self._begin, floor_ts),) = query(_FEED), query(_LOG)
        if not feeds:
            self._lanes, self._rows, self._feed, self._floor = {}, None, _Feed(), floor_ts
            return
        rows, feed = query(_LANES), _Feed(*feeds[0])
        self._check_floor(feed, floor_ts)
        if (rows, feed) == (self._rows, self._feed):
            return
        before = self._lanes
        self._lanes = {lane_id: _Lane(_keys(scope), *row) for lane_id, scope, *row in rows}
        self._check_cover()
        self._check_moves(before, feed.checkpoint_ts)
        is_late = self.lowest() < floor_ts and _EXPIRED in str(feed.error)
        if feed.state == "failed" != self._feed.state and not is_late:
            self.violated(f"retention: {feed} is failed, and the floor is {floor_ts}")
        self._rows, self._feed = rows, feed
        for key in self.truth:
            if key.startswith(self.prefix):
                self._check_key(key[len(self.prefix) :])

    @property
    def checkpoint_ts(self) -> int:
        """Of the changefeed."""
        return self._feed.checkpoint_ts

    @property
    def is_settled(self) -> bool:
        """Whether it runs."""
        return self._feed.state == "normal" and not self._feed.target_ts

    @property
    def is_idle(self) -> bool:
        """Whether it was paused or has failed."""
        return self._feed.state in ("stopped", "failed", "finished")

    def lowest(self) -> int:
        """The checkpoint of the last lane; 0 before there is one."""
        return min((lane.checkpoint_ts for lane in self._lanes.values()), default=0)

    def at_rest(self) -> None:
        """Everything was written, and the rest of the log read."""
        for place, what in sorted(self._lacked):
            if place in self._paged:
                self.violated(what)
        for wire, writes in self.truth.items():
            if wire.startswith(self.prefix) and (wrong := self._differs_in_all(wire[len(self.prefix) :], writes)):
                self.violated(f"at rest: {wire!r} {wrong}")
        unknown = [key for key in self.cluster.data if self.prefix + key not in self.truth]
        if unknown:
            self.violated(f"at rest: the main cluster never had {unknown}")

    # -- inside

    def _need_not_be_there(self, place: _Place) -> bool:
        return place in self.letters or place in self.left_out

    def _of(self, key: bytes) -> list[_Lane]:
        return [lane for lane in self._lanes.values() if lane.has(key)]

    def _wrong(self, request: Request, write: Write) -> str:
        """What is wrong with a write; empty when nothing is."""
        entry = write.entry
        written = next((w for w in self.truth.get(self.prefix + entry.key, ()) if w.commit_ts == entry.commit_ts), None)
        if written is None:
            return "was never written"
        now_ms = self.cluster.unix_ms()
        late_ms = int((self.cluster.scheduler.now - request.sent_s) * 1000) + 2 * _ROUNDED_MS
        end_ms = written.expire_ts * 1000
        if write.value is None:
            gone = written.op is Op.DELETE or 0 < end_ms <= now_ms + _ROUNDED_MS
            return "" if gone else f"deletes what was written as {written}"
        if write.value != written.value:
            return f"was written as {written}"
        if bool(write.ttl_s) != bool(end_ms):
            return f"has another expiry than {written}"
        if end_ms and not -_ROUNDED_MS <= now_ms + write.ttl_s * 1000 - end_ms <= late_ms:
            return f"lives {now_ms + write.ttl_s * 1000 - end_ms} ms longer than {written}"
        return ""

    def _check_back(self, request: Request, entry: Entry, was: _Shown) -> None:
        if request.owner == was.owner:
            self.violated(
                f"in order: {entry.key!r} goes back from {was.commit_ts} to {entry.commit_ts} under one owner"
            )
            return
        self.went_back += 1
        if was.owner[0] <= self._unknown_upto:
            return
        for lane in self._of(entry.key):
            if lane.catch_up_ts < was.commit_ts or lane.checkpoint_ts >= lane.catch_up_ts:
                self.violated(f"catching up: {entry} replaces {was.commit_ts}, the lane is {lane}")

    def _check_key(self, key: bytes) -> None:
        """It shows nothing older than its newest version at the checkpoint."""
        writes, was = self.truth.get(self.prefix + key, ()), self._shown.get(key)
        shown_ts = 0 if was is None else was.commit_ts
        for lane in self._of(key):
            upto = bisect_right(writes, lane.checkpoint_ts, key=lambda write: write.commit_ts)
            for write in reversed(writes[:upto]):
                if write.commit_ts <= shown_ts:
                    break
                if self._need_not_be_there((write.commit_ts, key)):
                    continue
                place, what = (write.commit_ts, write.key), f"older: {key!r} shows {shown_ts}, its lane is {lane}"
                if place in self._paged:
                    self.violated(what)
                    break
                self._lacked.add((place, what))

    def _check_cover(self) -> None:
        """Each key is in one lane. The count changes only at bounds of lanes, so it is checked at each bound."""
        parts = [part for lane in self._lanes.values() for part in (lane.scope.range, *lane.scope.without)]
        bounds = {b"", *(part.start for part in parts), *(part.end for part in parts)}
        for key in sorted(bounds):
            if len(self._of(key)) != 1:
                self.violated(f"lanes: {key!r} is in {self._of(key)} of {list(self._lanes.values())}")

    def _check_floor(self, feed: _Feed, floor_ts: int) -> None:
        now_ms, was = self.cluster.main_ms(), self._feed
        held = self._holds(was, now_ms)
        if feed.last_active_ms != was.last_active_ms:
            self._moved_ms = feed.last_active_ms
        elif feed.checkpoint_ts != was.checkpoint_ts:
            self._moved_ms = now_ms
        if not held or feed.checkpoint_ts < was.checkpoint_ts:
            self._holds_from_ms = now_ms
        if max(self._floor, feed.checkpoint_ts) < floor_ts and self._holds_from_ms <= now_ms - _LATE_MS:
            self.violated(f"retention: the floor is {floor_ts}; since {self._holds_from_ms} {feed} has held the log")
        self._floor = floor_ts

    def _holds(self, feed: _Feed, now_ms: int) -> bool:
        return feed.state != "finished" and (not feed.hold_ms or now_ms < self._moved_ms + feed.hold_ms)

    def _was_read(self, who: str | None, after: int, upto: int) -> bool:
        """Whether a worker has read this part of the log, in pages that may overlap: when it has not heard that the
        checkpoint has moved, it reads from the one before."""
        at, pages = max(after, self._begin), self._pages.get(str(who), {})
        while at < upto:
            end = max((end for begin, end in pages.items() if begin <= at), default=at)
            if end <= at:
                return False
            at = end
        return True

    def _check_moves(self, before: Mapping[int, _Lane], checkpoint_ts: int) -> None:
        rewound = checkpoint_ts in self.rewinds and all(
            lane_id not in before or lane.epoch > before[lane_id].epoch for lane_id, lane in self._lanes.items()
        )
        if checkpoint_ts > self.lowest() or (checkpoint_ts < self._feed[0] and not rewound):
            self.violated(f"checkpoint: from {self._feed} to {checkpoint_ts}, the lanes are {self._lanes}")
        for lane_id, lane in self._lanes.items():
            was = before.get(lane_id)
            if was is None:
                self._check_new(lane, before)
            elif lane.epoch < was.epoch or (lane.owner != was.owner and lane.epoch == was.epoch):
                self.violated(f"epoch: a lane went from {was} to {lane}")
            elif lane.attempted_ts < was.attempted_ts or (lane.checkpoint_ts < was.checkpoint_ts and not rewound):
                self.violated(f"lane: from {was} to {lane}")
            elif not rewound and not self._was_read(was.owner, was.checkpoint_ts, lane.checkpoint_ts):
                self.violated(f"retention: from {was} to {lane}, without reading the log between")
            elif (
                was.record_ts != lane.record_ts
                and (lane_id, was.record_ts) in self._begun
                and lane.checkpoint_ts == was.checkpoint_ts
                and not rewound
            ):
                self.violated(f"repeated: the stretch of {was} became that of {lane}")
            if not lane.checkpoint_ts <= lane.attempted_ts:
                self.violated(f"attempted: {lane}")

    def _check_new(self, lane: _Lane, before: Mapping[int, _Lane]) -> None:
        """A lane that replaces others has all that they had, and knows what they attempted."""
        for was in before.values():
            if lane.scope.range.intersect(was.scope.range) is None or not any(
                was.has(key) and lane.has(key) for key in (was.scope.range.start, lane.scope.range.start)
            ):
                continue
            if lane.checkpoint_ts > was.checkpoint_ts or lane.catch_up_ts < was.attempted_ts:
                self.violated(f"lane: {lane} takes keys over from {was}")

    def _differs_in_all(self, key: bytes, writes: Sequence[RawRow]) -> str:
        """How the key differs from its newest version, or from the one below its dead letters; empty when it is one of
        them: a refused change may have been taken by a later try."""
        wrong = ""
        for write in reversed(writes):
            if not (difference := self._differs(key, write)):
                return ""
            wrong = wrong or difference
            if not self._need_not_be_there((write.commit_ts, key)):
                return wrong
        return wrong if self.cluster.get(key) is not None else ""

    def _differs(self, key: bytes, newest: RawRow) -> str:
        """How the key differs from its newest version; empty when it does not."""
        value_there, now_ms, end_ms = self.cluster.get(key), self.cluster.unix_ms(), newest.expire_ts * 1000
        late_ms = self._shown[key].asked_ms + 2 * _ROUNDED_MS if key in self._shown else 0
        if newest.op is Op.DELETE or 0 < end_ms <= now_ms - late_ms:
            return "" if value_there is None else f"is {value_there}, its newest version is {newest}"
        if value_there is None:
            return "" if 0 < end_ms <= now_ms + _ROUNDED_MS else f"is not there, its newest version is {newest}"
        if value_there.value != newest.value or bool(value_there.expire_ms) != bool(end_ms):
            return f"is {value_there}, its newest version is {newest}"
        early_ms = value_there.expire_ms - end_ms
        return "" if -_ROUNDED_MS <= early_ms <= late_ms else f"expires {early_ms} ms late"


def _keys(text: str) -> KeyScope:
    scope = parse_scope(text)
    assert isinstance(scope, KeyScope)
    return scope
