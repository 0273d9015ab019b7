"""Plays a recorded change feed of real stores into `StoreFeed`, one for each store and recorded request id.

The recorder's registrations are made the core's: where the recorder sent one, the core is told that the store leads
the region, and given the recorded checkpoint_ts; where it deregistered, the core is asked to resubscribe. The core
chooses its own request ids, so messages are rewritten to those. A second registration that the recorder sent on purpose
is left out, with the error that answers it: the core never does that.

Beside it stands what the messages say of each registration without any core: `Told`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from pusher.core import source
from pusher.core.cdcpb import RegionErrorKind
from pusher.tikv.core.feed import StoreFeed
from pusher.tikv.core.requests import Register
from tests.kit.change_data import read_change_data
from tests.kit.real_tikv import lines
from tistream import ts
from tistream.codec.protobuf import parse
from tistream.keyrange import KeyRange
from tistream.model.change import ROWS
from tistream.tikv.core import wire
from tistream.tikv.core.pd_messages import Region
from tistream.tikv.core.regions import plain_key

_AT_ONCE = 1e6  # seconds: pauses are over
_MINUTE_TS = ts.compose(60_000)
_Place = tuple[int, int, int, int]  # store, stream, request, region


@dataclass(slots=True, kw_only=True, eq=False)
class Told:
    """One registration: what the wire said of it, or what a core told of it."""

    region_id: int
    version: int
    range: KeyRange
    checkpoint_ts: int
    batches: list[pa.RecordBatch] = field(default_factory=list)
    promised: list[int] = field(default_factory=list)  #: what was resolved when the batch came
    behind_initialized: list[bool] = field(default_factory=list)  #: whether the batch came behind SubscriptionReady
    initialized: bool = False  #: and, if it was resubscribed, a TSO was fetched in between
    resolved_ts: int = 0
    over: bool = False

    @property
    def rows(self) -> pa.Table:
        return pa.Table.from_batches([b for b in self.batches if b.num_rows] or [_no_rows()])


class FeedPlayer:
    """Plays everything when it is made."""

    def __init__(self, folder: Path) -> None:
        self.wire: list[Told] = []  #: registrations, in the order of their requests
        self.core: list[Told] = []  #: the same by the cores' events
        self.events: dict[tuple[int, int], list[source.SourceEvent]] = {}  #: (store, request) -> all events
        self._feeds: dict[tuple[int, int], StoreFeed] = {}
        self._told: dict[_Place, Told] = {}
        self._living: dict[_Place, Told] = {}
        self._scanned: set[Told] = set()  # initialized since the last TSO
        self._mine: dict[_Place, int] = {}  # -> the core's request id
        self._subscriptions: dict[tuple[int, int, int], Told] = {}
        self._spans: dict[int, KeyRange] = {}
        self._now, self._now_ts, self._opens = 0.0, 0, 0
        for line in lines(folder / "stream.ndjson.zst"):
            self._line(line)
        self._now_ts += _MINUTE_TS  # what came behind the last recorded TSO
        self._tick()

    def _line(self, line: dict[str, Any]) -> None:
        self._now = line["t_ms"] / 1000
        match line["dir"]:
            case "note" if line.get("note") == "subscribe":
                span = KeyRange(plain_key(bytes.fromhex(line["start"])), plain_key(bytes.fromhex(line["end"])))
                self._spans[line["request_id"]] = span
            case "send":
                self._sent(line["store"], line["stream"], bytes.fromhex(line["msg_hex"]))
            case "recv":
                self._received(line["store"], line["stream"], bytes.fromhex(line["msg_hex"]))
            case "eof":
                self._ended(line["store"], line["stream"])
            case "pd" if line["method"].endswith("/Tso"):
                stamp = parse(wire.TsoResponse, bytes.fromhex(line["resp_hex"])).timestamp
                self._now_ts = ts.compose(stamp.physical, stamp.logical)
                self._tick()

    def _sent(self, store: int, stream: int, message: bytes) -> None:
        sent = parse(wire.ChangeDataRequest, message)
        request, region = sent.request_id, sent.region_id
        feed = self._feeds.setdefault((store, request), StoreFeed(store, [self._spans[request]]))
        if sent.HasField("deregister"):
            for place in [p for p in self._living if p[:3] == (store, stream, request) and region in (0, p[3])]:
                registration = self._living.pop(place)
                registration.over = True
                if (
                    registration in self._scanned
                ):  # a subscription that is resubscribed before a TSO is never ready, and promises nothing
                    registration.initialized, registration.resolved_ts = False, 0
                numbers = [
                    n
                    for (*f, n), t in self._subscriptions.items()
                    if tuple(f) == (store, request) and t.range == registration.range
                ]
                feed.resubscribe(numbers[-1:], self._now)
            return
        place = (store, stream, request, region)
        if place in self._living:
            return
        epoch, start, end = sent.region_epoch, sent.start_key, sent.end_key
        whole = KeyRange(plain_key(start), plain_key(end))
        registration = Told(region_id=region, version=epoch.version, range=whole, checkpoint_ts=sent.checkpoint_ts)
        self._living[place] = self._told[place] = registration
        self.wire.append(registration)
        region_found = Region(
            id=region, conf_ver=epoch.conf_ver, version=epoch.version, start=start, end=end, leader_store_id=store
        )
        feed.regions_listed(None, [region_found], self._now)
        self._opens += 1  # a part that was refused a checkpoint before is due again
        at_once = self._now + _AT_ONCE + 2 * self._opens
        feed.open(self._now_ts, lambda r: registration.checkpoint_ts if r == whole else None, at_once)
        for effect in feed.take_effects():
            if isinstance(effect, Register):
                self._mine[place] = effect.request_id
        self._take((store, request))

    def _received(self, store: int, stream: int, message: bytes) -> None:
        said = read_change_data(message)
        for event in said.events:
            place = (store, stream, event.request_id, event.region_id)
            registration = self._living.get(place)
            if registration is None:
                continue
            if event.rows is not None:
                registration.batches.append(event.rows)
            if event.initialized:
                registration.initialized = True
                self._scanned.add(registration)
            if event.error and event.error.kind is not RegionErrorKind.DUPLICATE_REQUEST:
                registration.over = True
                del self._living[place]
        if said.resolved is not None:
            for region in said.resolved.regions.tolist():
                registration = self._living.get((store, stream, said.resolved.request_id, region))
                if registration is not None and registration.checkpoint_ts <= said.resolved.ts:
                    registration.resolved_ts = max(registration.resolved_ts, said.resolved.ts)
        for request, rewritten in self._rewritten(store, stream, message):
            feed = self._feeds[store, request]
            feed.message(rewritten, self._now)
            feed.take_effects()

    def _ended(self, store: int, stream: int) -> None:
        for place in [p for p in self._living if p[:2] == (store, stream)]:
            self._living.pop(place).over = True
        for (of, _), feed in self._feeds.items():
            if of == store:
                feed.stream_lost("recorded", self._now)

    def _tick(self) -> None:
        self._scanned.clear()
        for place, feed in self._feeds.items():
            feed.tick(self._now_ts, self._now)
            self._take(place)

    def _take(self, place: tuple[int, int]) -> None:
        events = self._feeds[place].take_events(self._now)
        self.events.setdefault(place, []).extend(events)
        for event in events:
            match event:
                case source.SubscriptionOpened():
                    registration = Told(
                        region_id=event.region_id,
                        version=event.version,
                        range=event.range,
                        checkpoint_ts=event.checkpoint_ts,
                    )
                    self._subscriptions[*place, event.subscription] = registration
                    self.core.append(registration)
                case source.Rows():
                    registration = self._subscriptions[*place, event.subscription]
                    registration.batches.append(event.rows)
                    registration.promised.append(registration.resolved_ts)
                    registration.behind_initialized.append(registration.initialized)
                case source.SubscriptionReady():
                    self._subscriptions[*place, event.subscription].initialized = True
                case source.Resolved():
                    for subscription, stamp in zip(
                        event.subscriptions.tolist(), event.resolved_ts.tolist(), strict=True
                    ):
                        registration = self._subscriptions[*place, subscription]
                        assert registration.initialized
                        assert stamp > registration.resolved_ts
                        registration.resolved_ts = stamp
                case source.SubscriptionClosed():
                    self._subscriptions[*place, event.subscription].over = True
                case source.Tick():
                    assert event.cut_ts == self._now_ts

    def _rewritten(self, store: int, stream: int, message: bytes) -> Iterator[tuple[int, bytes]]:
        """The message's parts, each for one feed, with the cores' request ids."""
        said = parse(wire.ChangeDataEvent, message)
        for event in said.events:
            request = event.request_id
            own_number = self._mine.get((store, stream, request, event.region_id))
            if own_number is not None and event.error.WhichOneof("kind") != "duplicate_request":
                event.request_id = own_number
                yield request, wire.ChangeDataEvent(events=[event]).SerializeToString()
        of = said.resolved_ts
        pairs = [(self._mine.get((store, stream, of.request_id, region)), region) for region in of.regions]
        for own_number in {m for m, _ in pairs if m is not None}:
            regions = [region for m, region in pairs if m == own_number]
            part = wire.ResolvedRegions(regions=regions, ts=of.ts, request_id=own_number)
            yield of.request_id, wire.ChangeDataEvent(resolved_ts=part).SerializeToString()


def _no_rows() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=ROWS)
