"""The recorded cluster at one line, and our registrations with it; see "Playing back a recording" in docs/pusher.md.

    register / deregister / drop_stream    what our clients do
    blocked / step                         the next line, when it has listeners
    take_output                            messages for our streams, and the stores whose streams ended

Relations:

- a line is played once, in order; `line` is the next one;
- a listener (our registration) joins each serving recorded registration of its region, version and store that touches
  its range; it ends with the first of them that ends;
- the rows a listener was sent, with its checkpoint, are everything that the recording showed of its range up to `line`,
  once its parts cover the range;
- when the serving registrations change, a listener that no longer fits is refused, so that none waits in vain.

Pure: no clock, no threads; its owner takes a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from simulator.loopback.core import feed_wire as wire
from simulator.loopback.core.feed_wire import Event, Request, Resolved, Row
from simulator.playback.core.history import Openings, VersionHistory
from simulator.playback.core.plan import PlaybackPlan
from simulator.playback.recording import Begun, Message, Recording, Registration, StreamEnded, StreamOpened, Timestamp
from tistream import ts
from tistream.keyrange import KeyRange, gaps

_EVENT_BYTES = 32 << 10
_MESSAGE_BYTES = 1 << 20
_ROOM = 1 << 17  # timestamps between what is given and the recorded PD's next one
_ListenerId = tuple[int, int, int]  # stream, request, region


@dataclass(eq=False, slots=True, kw_only=True)
class Listener:
    """One of our registrations."""

    stream: int
    store_id: int
    request_id: int
    region_id: int
    version: int
    range: KeyRange
    checkpoint_ts: int
    needed: list[KeyRange]  #: parts of `range` that the recording follows
    parts: list[Registration] = field(default_factory=list)
    ready: bool = False

    def fits(self, registration: Registration) -> bool:
        """Whether it is served by this recorded registration."""
        return self.names(registration) and registration.range.intersect(self.range) is not None

    def names(self, registration: Registration) -> bool:
        """Whether both are of the same region at the same store."""
        mine = (self.region_id, self.version, self.store_id)
        return mine == (registration.region_id, registration.version, registration.store_id)


@dataclass(slots=True)
class _Part:
    """A recorded registration that is alive."""

    openings: Openings = field(default_factory=Openings)
    listeners: list[Listener] = field(default_factory=list)
    ready: bool = False
    resolved_ts: int = 0
    promised_ts: int = 0  #: the highest of resolved_ts
    heard_at: int = -1  # which change of the listeners it was last looked at with


class Stage:
    """The state of the playback. `only`: the keys that must have a listener before the clock moves on; None = all."""

    def __init__(self, recording: Recording, only: KeyRange | None = None) -> None:
        self._recording, self._only = recording, only or KeyRange()
        self.plan = PlaybackPlan(recording)
        self.line = 0
        self.history = VersionHistory()
        self.away: set[int] = set()  #: stores that cannot be reached
        self._living: dict[Registration, _Part] = {}
        self._listeners: dict[_ListenerId, Listener] = {}
        self._changes = 0  # of the listeners
        self._parsed: tuple[int, list[tuple[Event, Registration]], list[tuple[Registration, int]]] = (-1, [], [])
        self._seen_ts = recording.start_ts
        self._given_ts = 0
        self._next_stamp = 0  # the first of recording.timestamps that is not played
        self._events: dict[int, list[bytes]] = {}  # by stream: of the message being written
        self._output: list[tuple[int, bytes]] = []
        self._cut: list[int] = []

    @property
    def at_end(self) -> bool:
        """Everything has been played."""
        return self.line >= len(self._recording.lines)

    @property
    def is_followed(self) -> bool:
        """Anything is registered."""
        return bool(self._listeners)

    @property
    def at_ms(self) -> int:
        """Unix milliseconds of the last line that was played."""
        return self._recording.at_ms[max(self.line - 1, 0)]

    @property
    def promised_ts(self) -> int:
        """The watermark of all keys by the live registrations; 0 before the first of them."""
        return min((max(part.promised_ts, r.checkpoint_ts) for r, part in self._living.items() if r.serves), default=0)

    def take_output(self) -> tuple[list[tuple[int, bytes]], list[int]]:
        """(stream, message) in their order, then the stores whose streams have ended."""
        self._flush()
        out, self._output = self._output, []
        cut, self._cut = self._cut, []
        return out, cut

    # -- our registrations -----------------------------------------------------------------------------------------

    def register(self, stream: int, store_id: int, request: Request) -> None:
        """A client registers, or deregisters."""
        place = (stream, request.request_id, request.region_id)
        if request.deregister:
            self._deregister(stream, request)
            return
        listener = Listener(
            stream=stream,
            store_id=store_id,
            request_id=request.request_id,
            region_id=request.region_id,
            version=request.version,
            range=request.range,
            checkpoint_ts=request.checkpoint_ts,
            needed=[part for part in (r.intersect(request.range) for r in self._recording.ranges) if part],
        )
        refusal = b""
        if request.cluster_id != self._recording.cluster_id:
            refusal = wire.cluster_id_mismatch(self._recording.cluster_id, request.cluster_id)
        elif request.kv_api != self._recording.kv_api:
            refusal = wire.incompatible()
        elif place in self._listeners:
            refusal = wire.duplicate_request(request.region_id)
        if refusal := refusal or self._refusal(listener, everywhere=True):
            self._say(listener, wire.error_event(listener.region_id, listener.request_id, refusal))
            return
        self._listeners[place] = listener
        self._changes += 1
        for registration in [r for r in self._living if r.serves and listener.fits(r)]:
            self._join(listener, registration)
        self._complete(listener)

    def drop_stream(self, stream: int) -> None:
        """A client's stream is over."""
        for listener in [x for x in self._listeners.values() if x.stream == stream]:
            self._forget(listener)
        self._events.pop(stream, None)
        self._output = [(s, data) for s, data in self._output if s != stream]

    def _deregister(self, stream: int, request: Request) -> None:
        for listener in list(self._listeners.values()):
            if (listener.stream, listener.request_id) == (stream, request.request_id) and (
                request.region_id in (0, listener.region_id)
            ):
                self._end(listener, wire.region_not_found(listener.region_id))

    def _refusal(self, listener: Listener, *, everywhere: bool) -> bytes:
        """The error for a registration that does not fit; empty when it does. `everywhere`: it is enough that its
        region is served like this anywhere, because the recorder may have registered another part of it earlier."""
        pieces = self.plan.pieces(self.line)
        mine = pieces if everywhere or not listener.needed else [p for p in pieces if p[0].intersect(listener.range)]
        if self.plan.is_made_up(listener.region_id) or any(listener.names(r) for _, r in mine):
            return b""
        same = [r for _, r in pieces if r.region_id == listener.region_id]
        for registration in same:
            if registration.version == listener.version:
                peer = self.plan.region_of(registration).peer_on(registration.store_id)
                return wire.not_leader(listener.region_id, peer.SerializeToString() if peer else b"")
        return wire.epoch_not_match() if same else wire.region_not_found(listener.region_id)

    def _join(self, listener: Listener, registration: Registration) -> None:
        """Join a listener to one more recorded registration: compose what it would have received before."""
        part = self._living[registration]
        part.listeners.append(listener)
        listener.parts.append(registration)
        both = registration.range.intersect(listener.range)
        assert both is not None
        self._send_rows(listener, self.history.above(both, listener.checkpoint_ts))
        self._send_rows(listener, part.openings.rows(both))

    def _send_rows(self, listener: Listener, rows: Iterable[Row]) -> None:
        entries: list[bytes] = []
        size = 0
        for row in rows:
            entries.append(row.entry)
            size += len(row.entry)
            if size >= _EVENT_BYTES:
                self._say_rows(listener, b"".join(entries))
                entries, size = [], 0
        if entries:
            self._say_rows(listener, b"".join(entries))

    def _complete(self, listener: Listener, rows: bytes = b"") -> None:
        """Send `rows`, then INITIALIZED if all parts of the range are complete."""
        if not listener.ready:
            ready = [r.range for r in listener.parts if self._living[r].ready]
            listener.ready = not any(gaps(need, ready) for need in listener.needed)
            if listener.ready:
                rows += wire.INITIALIZED_ROW
        if rows:
            self._say_rows(listener, rows)

    def _end(self, listener: Listener, error: bytes) -> None:
        self._say(listener, wire.error_event(listener.region_id, listener.request_id, error))
        self._forget(listener)

    def _forget(self, listener: Listener) -> None:
        del self._listeners[listener.stream, listener.request_id, listener.region_id]
        self._changes += 1
        for registration in listener.parts:
            if registration in self._living:
                self._living[registration].listeners.remove(listener)

    # -- messages ----------------------------------------------------------------------------------------------

    def _say_rows(self, listener: Listener, entries: bytes) -> None:
        self._say(listener, wire.entries_event(listener.region_id, listener.request_id, entries))

    def _say(self, listener: Listener, event: bytes) -> None:
        events = self._events.setdefault(listener.stream, [])
        events.append(event)
        if sum(map(len, events)) >= _MESSAGE_BYTES:
            self._output.append((listener.stream, b"".join(events)))
            events.clear()

    def _flush(self) -> None:
        self._output += [(stream, b"".join(events)) for stream, events in self._events.items() if events]
        self._events.clear()

    # -- the recording ---------------------------------------------------------------------------------------------

    def blocked(self) -> Registration | None:
        """The recorded registration that the next line needs a listener for; None when the line can be played."""
        if self.at_end or not isinstance(self._recording.lines[self.line], Message):
            return None
        _, events, resolved = self._parse()
        spoken = [r for event, r in events if event.entries is not None] + [r for r, _ in resolved]
        return next((r for r in spoken if r.serves and not self._is_heard(r)), None)

    def step(self) -> None:
        """Play the next line."""
        line = self._recording.lines[self.line]
        match line:
            case Message():
                self._play_message()
            case Begun(registration):
                self._living[registration] = _Part()
                if registration.serves:
                    for listener in [x for x in self._listeners.values() if x.fits(registration)]:
                        self._join(listener, registration)
            case StreamEnded(store_id, registrations):
                self._play_end(store_id, registrations)
            case StreamOpened(store_id):
                self.away.discard(store_id)
            case Timestamp(stamp):
                self._play_timestamp(stamp)
        self._flush()
        self.line += 1
        if isinstance(line, Message | StreamEnded):
            self._refuse_the_unfit()

    def tso(self, count: int) -> int:
        """The last of `count` timestamps of PD's clock at this line."""
        stamps = self._recording.timestamps
        low = max(self._seen_ts, self._given_ts)
        target = ts.compose(self.at_ms)
        if self._next_stamp < len(stamps):
            target = min(target, stamps[self._next_stamp][1] - _ROOM)
        self._given_ts = max(low, target) + count
        return self._given_ts

    def _parse(self) -> tuple[int, list[tuple[Event, Registration]], list[tuple[Registration, int]]]:
        """This line's message about followed registrations: (line, events, (registration, resolved ts))."""
        if self._parsed[0] != self.line:
            line = self._recording.lines[self.line]
            assert isinstance(line, Message)
            events, resolved = wire.read_message(line.data)
            self._parsed = (
                self.line,
                [(e, r) for e in events if (r := self._who(line.stream, e.request_id, e.region_id)) is not None],
                list(self._resolved(line.stream, resolved)),
            )
        return self._parsed

    def _resolved(self, stream: int, resolved: list[Resolved]) -> Iterator[tuple[Registration, int]]:
        for said in resolved:
            for region_id in said.regions:
                registration = self._who(stream, said.request_id, region_id)
                if registration is not None:
                    yield registration, said.ts

    def _who(self, stream: int, request_id: int, region_id: int) -> Registration | None:
        registration = self._recording.living(self.line, stream, request_id, region_id)
        return registration if registration in self._living else None

    def _is_heard(self, registration: Registration) -> bool:
        part = self._living[registration]
        if part.heard_at == self._changes:
            return True
        needed = registration.range.intersect(self._only)
        if needed is not None and gaps(needed, [x.range for x in self._listeners.values()]):
            return False
        part.heard_at = self._changes
        return True

    def _play_message(self) -> None:
        _, events, resolved = self._parse()
        for event, registration in events:
            if event.is_duplicate_request or registration not in self._living:
                continue
            if event.entries is not None:
                self._play_rows(registration, event.entries)
            if event.error is not None:
                self._play_error(registration, event.error)
        self._play_resolved(resolved)

    def _play_rows(self, registration: Registration, entries: bytes) -> None:
        part = self._living[registration]
        rows = list(wire.read_rows(entries))
        for row in rows:
            self._seen_ts = max(self._seen_ts, row.start_ts, row.commit_ts)
            if row.kind == wire.INITIALIZED:
                part.ready = True
                part.openings.initialized()
            elif row.kind and (version := part.openings.take(row)) is not None:
                self.history.add(version)
        plain = not any(row.kind == wire.INITIALIZED for row in rows)
        for listener in part.listeners:
            if plain and listener.range.covers(registration.range):
                self._say_rows(listener, entries)
                continue
            kept = (r.entry for r in rows if r.kind != wire.INITIALIZED and (not r.key or r.key in listener.range))
            self._complete(listener, b"".join(kept))

    def _play_error(self, registration: Registration, error: bytes) -> None:
        part = self._living.pop(registration)
        ended = part.listeners
        if not registration.serves:  # a listener that waits there is refused as the recorder was
            ended = [x for x in self._listeners.values() if not x.parts and x.fits(registration)]
        for listener in list(ended):
            self._end(listener, error)

    def _play_resolved(self, resolved: list[tuple[Registration, int]]) -> None:
        touched: dict[Listener, None] = {}
        for registration, stamp in resolved:
            self._seen_ts = max(self._seen_ts, stamp)
            if (part := self._living.get(registration)) is None:
                continue
            part.resolved_ts = stamp
            part.promised_ts = max(part.promised_ts, stamp)
            touched |= dict.fromkeys(part.listeners)
        said: dict[tuple[int, int, int], list[int]] = {}
        for listener in touched:
            lowest = min(self._living[r].resolved_ts for r in listener.parts)
            if listener.ready and lowest:
                said.setdefault((listener.stream, listener.request_id, lowest), []).append(listener.region_id)
        self._say_resolved(said)

    def _say_resolved(self, said: dict[tuple[int, int, int], list[int]]) -> None:
        self._flush()
        for (stream, request_id, stamp), regions in said.items():
            self._output.append((stream, wire.resolved_message(request_id, regions, stamp)))

    def _play_end(self, store_id: int, registrations: tuple[Registration, ...]) -> None:
        for registration in registrations:
            self._living.pop(registration, None)
        for listener in [x for x in self._listeners.values() if x.store_id == store_id]:
            self._forget(listener)
        self.away.add(store_id)
        self._cut.append(store_id)

    def _play_timestamp(self, stamp: int) -> None:
        """A range without listeners sends nothing."""
        self._seen_ts = max(self._seen_ts, stamp)
        self._next_stamp += 1
        said: dict[tuple[int, int, int], list[int]] = {}
        for listener in self._listeners.values():
            if not listener.needed:
                said.setdefault((listener.stream, listener.request_id, stamp), []).append(listener.region_id)
        self._say_resolved(said)

    def _refuse_the_unfit(self) -> None:
        """After who serves has changed."""
        for listener in list(self._listeners.values()):
            if not listener.parts and (error := self._refusal(listener, everywhere=False)):
                self._end(listener, error)
