"""The change feed of the modelled stores: our clients' registrations, and the messages for each.

    request / stream_over / store_died    what happens to registrations
    pump                                  send what the model has emitted since: scans, rows, ends
    tick                                  resolved ts, after everything that they cover
    take_output                           messages for the streams, in order

Relations:

- a registration is a subscription of the model, cut to the requested range; rows are sent in order, INITIALIZED after
  the scan, the resolved ts after its rows, the error last;
- resolved ts of one stream and request id are sent in groups, from the slowest region to the fastest, 8, 32, 128, ...
  of them, each with its smallest: a region's may fall;
- the client's version decides whether it gets resolved ts at all and whether its cluster id is checked;
- faults make messages late, repeated or refused, never wrong.

No clock, no threads; its owner takes a lock.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass

from simulator.core.cluster import Cluster, Subscription
from simulator.loopback.core import feed_wire as wire
from simulator.loopback.core.feed_wire import Request
from simulator.serve.core.regions import meta, peer
from simulator.serve.core.rows import EMPTY_ROW, encode_rows, events
from simulator.serve.faults import CALM, Faults
from tistream.keyrange import KeyRange
from tistream.tikv.core.api_versions import Api

_EVENT_BYTES = 32 << 10
_MESSAGE_BYTES = 1 << 20
_FIRST_GROUP, _GROUP_FACTOR = 8, 4
_BATCHES_RESOLVED = (4, 0, 8)
_NAMES_ITS_CLUSTER = (5, 3, 0)
_LOWER_TS_MAX = 3000 << 18
_BUSY_MS = 50
_Place = tuple[int, int, int]  # stream, request, region


@dataclass(eq=False, slots=True, kw_only=True)
class _Registration:
    stream: int
    store_id: int
    request_id: int
    region_id: int
    range: KeyRange
    subscription: Subscription
    hears_resolved: bool
    filter_loop: bool
    scan_at: float
    held_until: float = 0.0
    initialized: bool = False  #: and it was sent

    @property
    def place(self) -> _Place:
        return self.stream, self.request_id, self.region_id


class ServedFeed:
    """All stores. `scans_max`: registrations of a store that are not initialized, beyond which it is busy."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        cluster_id: int,
        rand: random.Random,
        faults: Faults = CALM,
        scans_max: int = 1024,
        api: Api = Api.V1,
    ) -> None:
        self._cluster, self._cluster_id, self._rand, self._scans_max = cluster, cluster_id, rand, scans_max
        self.faults, self._api = faults, api
        self.counts: Counter[str] = Counter()  #: how often what was said
        self._registered: dict[_Place, _Registration] = {}
        self._of: dict[Subscription, _Registration] = {}
        self._waiting: dict[_Registration, None] = {}  # may have messages
        self._touched = cluster.touched = {}
        self._scanning: Counter[int] = Counter()  # by store
        self._said: dict[int, list[bytes]] = {}  # by stream: events of the message being written
        self._output: list[tuple[int, bytes]] = []

    def __len__(self) -> int:
        """Registrations."""
        return len(self._registered)

    def take_output(self) -> list[tuple[int, bytes]]:
        """(stream, message)."""
        self._flush()
        out, self._output = self._output, []
        return out

    # -- registrations ---------------------------------------------------------------------------------------------

    def request(self, stream: int, store_id: int, request: Request, now: float) -> None:
        """A client registers, or deregisters. InvalidInput when it asks for history that the model never had."""
        if request.deregister:
            self._deregister(stream, request)
            return
        if refusal := self._refusal(stream, store_id, request) or self._mishap(request.region_id):
            self._say(stream, wire.error_event(request.region_id, request.request_id, refusal))
            self.counts["refused"] += 1
            return
        is_raw = request.kv_api == wire.KV_API_RAW
        subscription = self._cluster.register(
            request.region_id, request.version, request.checkpoint_ts, at_once=False, is_raw=is_raw
        )
        registration = _Registration(
            stream=stream,
            store_id=store_id,
            request_id=request.request_id,
            region_id=request.region_id,
            range=request.range,
            subscription=subscription,
            hears_resolved=_version(request.ticdc_version) >= _BATCHES_RESOLVED,
            filter_loop=request.filter_loop,
            scan_at=now + self._rand.random() * self.faults.scan_s,
        )
        self._registered[registration.place] = self._of[subscription] = registration
        self._waiting[registration] = None
        self._scanning[store_id] += 1
        self.counts["registered"] += 1

    def stream_over(self, stream: int) -> None:
        """A client's stream has ended."""
        for registration in [r for r in self._registered.values() if r.stream == stream]:
            self._forget(registration)
        self._said.pop(stream, None)
        self._output = [(s, data) for s, data in self._output if s != stream]

    def store_died(self, store_id: int) -> None:
        """A stream has ended."""
        for registration in [r for r in self._registered.values() if r.store_id == store_id]:
            self._forget(registration)

    def congest(self, stream: int) -> None:
        """A client does not read: end its registrations."""
        for registration in [r for r in self._registered.values() if r.stream == stream]:
            self._end(registration, wire.congested(registration.region_id))

    def _deregister(self, stream: int, request: Request) -> None:
        if request.region_id:
            ended = [self._registered.get((stream, request.request_id, request.region_id))]
        else:
            ended = [r for r in self._registered.values() if (r.stream, r.request_id) == (stream, request.request_id)]
        for registration in ended:
            if registration is not None:
                self._end(registration, wire.region_not_found(registration.region_id))

    def _refusal(self, stream: int, store_id: int, request: Request) -> bytes:
        """The error for a request that cannot be served, checked in a store's order; empty if it can."""
        cluster, region_id = self._cluster, request.region_id
        names_cluster = _version(request.ticdc_version) >= _NAMES_ITS_CLUSTER
        if names_cluster and request.cluster_id != self._cluster_id:
            return wire.cluster_id_mismatch(self._cluster_id, request.cluster_id)
        if request.kv_api != wire.KV_API_TIDB and (request.kv_api != wire.KV_API_RAW or self._api is not Api.V2):
            return wire.incompatible()
        if self._scanning[store_id] >= self._scans_max:
            return wire.server_is_busy("too many pending incremental scans", _BUSY_MS)
        if not cluster.has_region(region_id):
            return wire.region_not_found(region_id)
        if (stream, request.request_id, region_id) in self._registered:
            return wire.duplicate_request(region_id)
        region = cluster.region(region_id)
        if region.version != request.version:
            return wire.epoch_not_match(*self._now_there(region.range))
        return b"" if region.store_id == store_id else self._not_leader(region_id)

    def _mishap(self, region_id: int) -> bytes:
        """An error that any registration may meet, if one is due."""
        if self._rand.random() >= self.faults.refused:
            return b""
        self.counts["mishap"] += 1
        return self._rand.choice(
            (
                wire.server_is_busy("told to be", _BUSY_MS),
                wire.congested(region_id),
                wire.region_not_found(region_id),
                wire.epoch_not_match(),
                wire.not_leader(region_id),
                wire.duplicate_request(region_id),
            )
        )

    # -- messages ----------------------------------------------------------------------------------------------

    def pump(self, now: float) -> None:
        """Send what the model has for the registrations, except rows held back by a fault."""
        for subscription in self._touched:
            if (registration := self._of.get(subscription)) is not None:
                self._waiting[registration] = None
        self._touched.clear()
        for registration in list(self._waiting):
            subscription = registration.subscription
            if now < registration.held_until:
                continue
            if self.faults.held and self._rand.random() < self.faults.held:
                registration.held_until = now + self._rand.random() * self.faults.held_s
                continue
            if not registration.initialized and now >= registration.scan_at:
                self._cluster.scan(subscription, self.faults.scan_rows)
            self._say_rows(registration)
            if registration.initialized:
                self._waiting.pop(registration, None)

    def tick(self, now_ts: int, now: float) -> None:
        """A fresh timestamp: resolved ts for all that have had everything."""
        self._cluster.tick(now_ts)
        resolved: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for registration in list(self._registered.values()):
            if not registration.initialized or now < registration.held_until:
                continue
            self._say_rows(registration)
            subscription = registration.subscription
            if subscription.ended or not (registration.hears_resolved and subscription.resolved_ts):
                continue
            dice = self._rand.random()
            if dice < self.faults.failed:
                self._end(registration, self._any_end(registration))
            elif dice >= self.faults.failed + self.faults.quiet:
                said = resolved.setdefault((registration.stream, registration.request_id), [])
                said.append((registration.subscription.resolved_ts, registration.region_id))
        self._flush()
        for (stream, request_id), said in resolved.items():
            self._say_resolved(stream, request_id, sorted(said))

    def _say_resolved(self, stream: int, request_id: int, said: list[tuple[int, int]]) -> None:
        at, size = 0, _FIRST_GROUP
        while at < len(said):
            group = said[at : at + size]
            stamp, regions = group[0][0], [region_id for _, region_id in group]
            if self._rand.random() < self.faults.lower:
                stamp -= self._rand.randrange(_LOWER_TS_MAX)
            packed = self._rand.random() < self.faults.packed
            self._output.append((stream, wire.resolved_message(request_id, regions, stamp, packed=packed)))
            self.counts["resolved"] += len(group)
            at, size = at + size, size * _GROUP_FACTOR

    def _say_rows(self, registration: _Registration) -> None:
        """Send the model's rows, then INITIALIZED and the end when they are due."""
        subscription = registration.subscription
        rows = subscription.take_rows()
        entries = list(encode_rows(rows, registration.range, filter_loop=registration.filter_loop))
        if self.faults.empty:
            entries = [e for entry in entries for e in self._with_empty(entry)]
        self.counts["rows"] += len(entries)
        if subscription.initialized and not registration.initialized:
            registration.initialized = True
            self._scanning[registration.store_id] -= 1
            entries.append(wire.INITIALIZED_ROW)
        for event in events(iter(entries), _EVENT_BYTES):
            self._say(registration.stream, wire.entries_event(registration.region_id, registration.request_id, event))
        if subscription.ended:
            self._end(registration, self._why_ended(registration))

    def _with_empty(self, entry: bytes) -> tuple[bytes, ...]:
        return (EMPTY_ROW, entry) if self._rand.random() < self.faults.empty else (entry,)

    # -- ends ------------------------------------------------------------------------------------------------------

    def _why_ended(self, registration: _Registration) -> bytes:
        region_id, why = registration.region_id, registration.subscription.ended
        self.counts[why] += 1
        if why == "split" and not self._is_bare():
            return wire.epoch_not_match(*self._now_there(registration.subscription.region.range))
        if why == "merged" and self._rand.random() < 0.5:
            return wire.region_not_found(region_id)
        if why in ("split", "merged"):
            return wire.epoch_not_match()
        return self._not_leader(region_id)

    def _any_end(self, registration: _Registration) -> bytes:
        region_id = registration.region_id
        self.counts["failed"] += 1
        return self._rand.choice(
            (
                wire.region_not_found(region_id),
                wire.congested(region_id),
                wire.epoch_not_match(),
                wire.epoch_not_match(*self._now_there(registration.subscription.region.range)),
                wire.not_leader(region_id),
                wire.server_is_busy("told to be", _BUSY_MS),
            )
        )

    def _not_leader(self, region_id: int) -> bytes:
        if self._is_bare() or not self._cluster.has_region(region_id):
            return wire.not_leader(region_id)
        leader = peer(region_id, self._cluster.region(region_id).store_id)
        return wire.not_leader(region_id, leader.SerializeToString())

    def _now_there(self, whole: KeyRange) -> list[bytes]:
        """The regions that there are in a range, but of other leaders."""
        return [meta(r, [r.store_id]).SerializeToString() for r in self._cluster.regions_touching(whole)]

    def _is_bare(self) -> bool:
        return self._rand.random() < self.faults.bare

    def _end(self, registration: _Registration, error: bytes) -> None:
        self._say(registration.stream, wire.error_event(registration.region_id, registration.request_id, error))
        self._forget(registration)

    def _forget(self, registration: _Registration) -> None:
        del self._registered[registration.place], self._of[registration.subscription]
        self._waiting.pop(registration, None)
        self._scanning[registration.store_id] -= not registration.initialized
        self._cluster.unregister(registration.subscription)

    def _say(self, stream: int, event: bytes) -> None:
        said = self._said.setdefault(stream, [])
        said.append(event)
        if sum(map(len, said)) >= _MESSAGE_BYTES:
            self._output.append((stream, b"".join(said)))
            said.clear()

    def _flush(self) -> None:
        self._output += [(stream, b"".join(said)) for stream, said in self._said.items() if said]
        self._said.clear()


def _version(text: str) -> tuple[int, ...]:
    """A client's version; (0,) when it sends none that can be parsed."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
    return tuple(map(int, match.groups())) if match else (0,)
