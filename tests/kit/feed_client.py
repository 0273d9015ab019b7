"""A plain client of a TiKV cluster's change feed, and what it was promised: the counterpart that a test looks through.

It registers every region of its ranges, one registration each, begins again after an error, and keeps everything that
it heard. What it checks on the way is what a real store keeps to (its errors are AssertionErrors):

- after a resolved ts nothing with a lower commit_ts comes that was not heard before, on any registration of those keys;
- INITIALIZED comes once, resolved ts only behind it, a commit behind it has had its prewrite in the same registration;
- nothing comes for a registration behind its error.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
from sortedcontainers import SortedDict

from pusher.core.cdcpb import RegionErrorKind
from tests.kit.change_data import ChangeDataEvent, RegionEvent, read_change_data
from tistream.codec.protobuf import message, octets, uint
from tistream.keyrange import KeyRange, gaps
from tistream.model.change import RowKind
from tistream.tikv.channels import open_channel
from tistream.tikv.core.pd_messages import Region
from tistream.tikv.core.regions import plain_key, region_form
from tistream.tikv.pd import PdClient

_FEED = "/cdcpb.ChangeData/EventFeedV2"
Lock = tuple[bytes, int]  # key, start_ts
Content = tuple[int, bytes | None, bytes | None]  # op, value, old value


@dataclass(slots=True)
class Heard:
    """One registration, and what it has said."""

    store_id: int
    request_id: int
    region: Region
    range: KeyRange  #: plain keys
    checkpoint_ts: int
    ready: bool = False
    resolved_ts: int = 0
    prewrites: dict[Lock, Content] = field(default_factory=dict)
    early: dict[Lock, int] = field(default_factory=dict)  #: commits that came before their prewrite -> commit_ts
    rows: Counter[tuple[int, bytes, int, int]] = field(default_factory=Counter)  #: kind, key, start_ts, commit_ts
    error: RegionErrorKind | None = None


class FeedClient:
    """Follows `ranges` (disjoint, plain keys) from `start_ts`. Used from one thread; `close` it.

    `lag`: with this probability a registration begins again below what it had been promised, at the checkpoint of some
    moment before, as a pusher does whose frontier lies behind."""

    def __init__(
        self, pd_address: str, ranges: list[KeyRange], start_ts: int, *, seed: int = 0, lag: float = 0.3
    ) -> None:
        self._pd = PdClient([pd_address])
        self._ranges, self._rand, self._lag = ranges, random.Random(seed), lag
        self._requests: dict[int, queue.SimpleQueue[bytes | None]] = {}  # by store
        self._channels: dict[int, grpc.Channel] = {}
        self._inbox: queue.Queue[tuple[int, object, bytes | None]] = queue.Queue(50)
        self._closed = False
        self._numbers = 0
        self._start_ts = start_ts
        self._promised: list[tuple[KeyRange, int]] = [(r, start_ts) for r in ranges]  #: disjoint, covers the ranges
        self.living: dict[tuple[int, int], Heard] = {}  #: by request, region
        self.all: list[Heard] = []
        self.versions: dict[tuple[bytes, int], Content] = {}  #: key, commit_ts
        self.start_of: dict[tuple[bytes, int], int] = {}
        self.errors: Counter[RegionErrorKind | str] = Counter()
        self.received = 0  #: messages of the stores
        self.fell = 0  #: resolved ts below an earlier one
        self.timestamps: list[int] = []
        self.causes: list[str] = []  #: why streams ended

    def follow(self, is_over: Any, timeout_s: float) -> None:
        """Until `is_over()` and nothing more comes."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            self._register()
            try:
                store_id, stream, data = self._inbox.get(timeout=0.05)
            except queue.Empty:
                if is_over():
                    return
                continue
            self.received += data is not None
            if stream is not self._requests.get(store_id):
                continue
            if data is None:
                self._stream_ended(store_id)
            else:
                self._hear(store_id, read_change_data(data))
        raise AssertionError(f"not over in {timeout_s} s")

    def promised_below(self, key: bytes) -> int:
        """Everything of this key up to here was heard."""
        return next(ts for key_range, ts in self._promised if key in key_range)

    def lowest_promise(self) -> int:
        return min(ts for _, ts in self._promised)

    def check_promises(self) -> int:
        """Each registration has told by itself what its checkpoint and its resolved ts promise. How many versions."""
        by_key: SortedDict = SortedDict()
        for key, commit_ts in self.versions:
            by_key.setdefault(key, []).append(commit_ts)
        checked = 0
        for registration in self.all:
            versions = {(key, commit_ts) for _, key, _, commit_ts in registration.rows if commit_ts}
            for key in by_key.irange(registration.range.start, registration.range.end or None, inclusive=(True, False)):
                for commit_ts in by_key[key]:
                    if registration.checkpoint_ts < commit_ts <= registration.resolved_ts:
                        assert (key, commit_ts) in versions, f"{key.hex()} at {commit_ts} on {registration.region}"
                        checked += 1
        return checked

    def close(self) -> None:
        self._closed = True
        for requests in self._requests.values():
            requests.put(None)
        for channel in self._channels.values():
            channel.close()
        self._pd.close()

    # -- registrations ---------------------------------------------------------------------------------------------

    def _register(self) -> None:
        covered = [h.range for h in self.living.values()]
        missing = [gap for r in self._ranges for gap in gaps(r, covered)]
        if not missing:
            return
        stores = {s.id: s.address for s in self._pd.stores()}
        self.timestamps.append(self._pd.tso())
        for gap in missing:
            for region in self._pd.scan_regions(region_form(gap.start), region_form(gap.end), 1000):
                both = KeyRange(plain_key(region.start), plain_key(region.end)).intersect(gap)
                if both is not None and region.leader_store_id:
                    self._send(region, both, stores[region.leader_store_id])

    def _send(self, region: Region, key_range: KeyRange, address: str) -> None:
        store_id = region.leader_store_id
        promised = min(ts for r, ts in self._promised if r.intersect(key_range))
        checkpoint_ts = self._rand.randint(self._start_ts, promised) if self._rand.random() < self._lag else promised
        self._numbers += 1
        opened = Heard(store_id, self._numbers, region, key_range, checkpoint_ts)
        self.living[opened.request_id, region.id] = opened
        self.all.append(opened)
        if store_id not in self._requests:
            self._open(store_id, address)
        head = message(1, uint(1, self._pd.cluster_id) + octets(2, b"8.5.4"))
        epoch = message(3, uint(1, region.conf_ver) + uint(2, region.version))
        keys = octets(5, region_form(key_range.start)) + octets(6, region_form(key_range.end))
        body = (
            head + uint(2, region.id) + epoch + uint(4, checkpoint_ts) + keys + uint(7, opened.request_id) + uint(8, 1)
        )
        self._requests[store_id].put(body + message(9, b""))

    def _open(self, store_id: int, address: str) -> None:
        requests = self._requests[store_id] = queue.SimpleQueue()
        channel = self._channels[store_id] = self._channels.get(store_id) or open_channel(address, None)
        call = channel.stream_stream(_FEED)(
            iter(requests.get, None), metadata=(("features", "stream-multiplexing"),), wait_for_ready=True
        )
        threading.Thread(target=self._read, args=(store_id, requests, call), daemon=True).start()

    def _read(self, store_id: int, stream: object, call: Iterator[bytes]) -> None:
        try:
            for data in call:
                self._inbox.put((store_id, stream, data))
        except grpc.RpcError as e:
            self.causes.append(e.details() or "")
        if not self._closed:
            self._inbox.put((store_id, stream, None))

    def _stream_ended(self, store_id: int) -> None:
        self.errors["stream"] += 1
        del self._requests[store_id]
        for place in [p for p, h in self.living.items() if h.store_id == store_id]:
            del self.living[place]

    # -- what is heard ---------------------------------------------------------------------------------------------

    def _hear(self, store_id: int, said: ChangeDataEvent) -> None:
        for event in said.events:
            registration = self.living.get((event.request_id, event.region_id))
            assert registration is not None, "an event behind its registration's end"
            assert registration.store_id == store_id
            self._hear_event(registration, event)
        if said.resolved is not None:
            for region_id in said.resolved.regions.tolist():
                registration = self.living[said.resolved.request_id, region_id]
                assert registration.ready
                self.fell += said.resolved.ts < registration.resolved_ts
                registration.resolved_ts = max(registration.resolved_ts, said.resolved.ts)
                self._promise(registration)

    def _hear_event(self, registration: Heard, event: RegionEvent) -> None:
        if event.rows is not None:
            columns = (event.rows.column(n).to_pylist() for n in ("kind", "key", "start_ts", "commit_ts"))
            contents = (event.rows.column(n).to_pylist() for n in ("op", "value", "old_value"))
            for row in zip(*columns, *contents, strict=True):
                registration.rows[row[:4]] += 1
                assert row[1] in registration.range
                self._row(registration, *row)
        if event.initialized:
            assert not registration.ready
            registration.ready = True
            assert not registration.early, "a commit without prewrite at INITIALIZED"
        if event.error is not None:
            assert event.error.kind is not RegionErrorKind.DUPLICATE_REQUEST
            self.errors[event.error.kind] += 1
            registration.error = event.error.kind
            del self.living[registration.request_id, registration.region.id]

    def _row(self, registration: Heard, kind: int, key: bytes, start_ts: int, commit_ts: int, *content: Any) -> None:
        lock = (key, start_ts)
        op, value, old_value = content
        if kind == RowKind.PREWRITE:
            if lock in registration.early:
                self._version(key, start_ts, registration.early.pop(lock), (op, value, old_value))
            else:
                registration.prewrites[lock] = (op, value, old_value)
        elif kind == RowKind.COMMIT:
            if lock in registration.prewrites:
                self._version(key, start_ts, commit_ts, registration.prewrites[lock])
                if registration.ready:
                    del registration.prewrites[lock]
            else:
                assert not registration.ready, "a commit without prewrite"
                registration.early[lock] = commit_ts
        elif kind == RowKind.COMMITTED:
            registration.early.pop(lock, None)
            self._version(key, start_ts, commit_ts, (op, value, old_value))
        elif registration.ready:
            registration.prewrites.pop(lock, None)

    def _version(self, key: bytes, start_ts: int, commit_ts: int, content: Content) -> None:
        version = (key, commit_ts)
        if version not in self.versions:
            assert commit_ts > self.promised_below(key), "a change that had been promised before"
            self.versions[version] = content
            self.start_of[version] = start_ts
        assert self.start_of[version] == start_ts

    def _promise(self, registration: Heard) -> None:
        """What lies below the resolved ts is complete, if it was complete up to the checkpoint."""
        out = []
        for key_range, promised in self._promised:
            both = key_range.intersect(registration.range)
            if both is None or promised < registration.checkpoint_ts or promised >= registration.resolved_ts:
                out.append((key_range, promised))
                continue
            out.append((both, registration.resolved_ts))
            out += [(rest, promised) for rest in gaps(key_range, [both])]
        self._promised = out
