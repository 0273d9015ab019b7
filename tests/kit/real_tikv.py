"""Recordings of a real TiKV's change feed, played into the pusher's batcher, and what the cluster itself says it holds.

    stream.ndjson.zst   requests, messages and TSOs as they crossed the wire, in the order of their arrival
    mvcc.ndjson.zst     MvccGetByKey of the region leader for some thousand keys, after the run

A subscription is one registration of one region on one stream. A recorded TSO makes a tick: every store writes a file
with that TSO as cut_ts. SubscriptionReady, Resolved and SubscriptionClosed wait for the tick, because ready_ts must
be a TSO fetched after INITIALIZED. A recorded checkpoint_ts is what the recorder had seen resolved, not a published
frontier.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from pusher.core import source
from pusher.core.batcher import Batcher
from pusher.core.cdcpb import RegionErrorKind
from tests.kit.change_data import RegionEvent, read_change_data
from tistream import ts
from tistream.codec.batch_file import BatchFile, decode_batch_file, encode_batch_file
from tistream.codec.protobuf import parse
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.model.change import Op, RowKind
from tistream.objectstore.layout import BatchKey
from tistream.tikv.core import wire
from tistream.tikv.core.regions import plain_key

Version = tuple[bytes, int]  #: key, commit_ts
_TENANT = Tenant(1, 1)
_Registration = tuple[int, int, int, int]  # store, stream, request, region


@dataclass(frozen=True, slots=True)
class Write:
    """A version as the store keeps it."""

    start_ts: int
    op: int
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedFile:
    """A batch file and when the recorder could have written it."""

    at_ms: int
    file: BatchFile


@dataclass(slots=True)
class _Subscription:
    number: int
    initialized: bool = False
    said_ready: bool = False
    resolved_ts: int = 0
    over: bool = False


@dataclass(slots=True)
class Story:
    """What the messages say about the changes, without any watermark: the plain oracle.

    `contents` are the prewrites and the self-contained rows, as they came; a change of several contents (a pipelined
    transaction, or one seen from two stores) has been committed with one of them."""

    commits: dict[Version, int] = field(default_factory=dict)  #: -> start_ts
    contents: dict[tuple[bytes, int], dict[tuple[int, bytes | None, bytes | None], None]] = field(default_factory=dict)
    kinds: dict[RowKind, int] = field(default_factory=lambda: dict.fromkeys(RowKind, 0))

    def hear(self, event: RegionEvent) -> None:
        """Take the rows of a living registration."""
        assert event.rows is not None
        names = ("kind", "key", "start_ts", "commit_ts", "op", "value", "old_value")
        columns = (event.rows.column(name).to_pylist() for name in names)
        for kind, key, start_ts, commit_ts, *content in zip(*columns, strict=True):
            self.kinds[RowKind(kind)] += 1
            if kind in (RowKind.COMMIT, RowKind.COMMITTED):
                self.commits[key, commit_ts] = start_ts
            if kind in (RowKind.PREWRITE, RowKind.COMMITTED):
                said = self.contents.setdefault((key, start_ts), {})
                said.pop(tuple(content), None)
                said[tuple(content)] = None


class StreamPlayer:
    """Plays the registrations of some request ids."""

    def __init__(self, folder: Path, requests: frozenset[int]) -> None:
        self._folder, self._requests = folder, requests
        self._batchers: dict[int, Batcher] = {}
        self._subscriptions: dict[_Registration, _Subscription] = {}
        self._leaving: dict[int, list[_Subscription]] = {}  # store -> over since the last tick
        self._opened = 0
        self._now_ts = 0
        self.files: dict[int, list[TimedFile]] = {}  #: by store
        self.story = Story()
        self.start_ts = 0  #: the lowest checkpoint_ts
        self.resolved_fell = 0

    def play(self) -> None:
        """The whole recording."""
        for line in lines(self._folder / "stream.ndjson.zst"):
            match line["dir"]:
                case "send":
                    self._request(line["store"], line["stream"], bytes.fromhex(line["msg_hex"]))
                case "recv":
                    self._message(line["store"], line["stream"], bytes.fromhex(line["msg_hex"]))
                case "eof":
                    for place in [p for p in self._subscriptions if p[:2] == (line["store"], line["stream"])]:
                        self._end(place)
                case "pd" if line["method"].endswith("/Tso"):
                    self._tick(line["t_ms"], _tso(bytes.fromhex(line["resp_hex"])))

    def _request(self, store: int, stream: int, message: bytes) -> None:
        request = parse(wire.ChangeDataRequest, message)
        place = (store, stream, request.request_id, request.region_id)
        if place[2] not in self._requests:
            return
        if request.HasField("deregister"):
            self._end(place)
            return
        if place in self._subscriptions:
            return  # sent twice on purpose; the store answers duplicate_request
        self._opened += 1
        checkpoint_ts = request.checkpoint_ts
        self.start_ts = min(self.start_ts or checkpoint_ts, checkpoint_ts)
        self._subscriptions[place] = _Subscription(self._opened)
        self._give(
            store,
            source.SubscriptionOpened(
                subscription=self._opened,
                region_id=place[3],
                version=request.region_epoch.version,
                range=KeyRange(plain_key(request.start_key), plain_key(request.end_key)),
                checkpoint_ts=checkpoint_ts,
                open_ts=self._now_ts,
            ),
        )

    def _message(self, store: int, stream: int, message: bytes) -> None:
        said = read_change_data(message)
        for event in said.events:
            place = (store, stream, event.request_id, event.region_id)
            subscription = self._subscriptions.get(place)
            if subscription is None:
                continue
            if event.rows is not None and event.rows.num_rows:
                self._give(store, source.Rows(subscription=subscription.number, rows=event.rows))
                self.story.hear(event)
            subscription.initialized |= event.initialized
            if event.error and event.error.kind is not RegionErrorKind.DUPLICATE_REQUEST:
                self._end(place)
        if said.resolved is not None and said.resolved.request_id in self._requests:
            for region in said.resolved.regions.tolist():
                subscription = self._subscriptions.get((store, stream, said.resolved.request_id, region))
                if subscription is not None:
                    self.resolved_fell += said.resolved.ts < subscription.resolved_ts
                    subscription.resolved_ts = max(subscription.resolved_ts, said.resolved.ts)

    def _end(self, place: _Registration) -> None:
        if (subscription := self._subscriptions.pop(place, None)) is not None:
            subscription.over = True
            self._leaving.setdefault(place[0], []).append(subscription)

    def _tick(self, at_ms: int, cut_ts: int) -> None:
        self._now_ts = cut_ts
        for store, batcher in self._batchers.items():
            subscriptions = [t for place, t in self._subscriptions.items() if place[0] == store] + self._leaving.pop(
                store, []
            )
            for subscription in subscriptions:
                if subscription.initialized and not subscription.said_ready:
                    subscription.said_ready = True
                    self._give(store, source.SubscriptionReady(subscription=subscription.number, ready_ts=cut_ts))
            ready = [t for t in subscriptions if t.said_ready and t.resolved_ts]
            numbers = np.array([t.number for t in ready], np.int64)
            self._give(
                store,
                source.Resolved(subscriptions=numbers, resolved_ts=np.array([t.resolved_ts for t in ready], np.uint64)),
            )
            for subscription in subscriptions:
                if subscription.over:
                    self._give(store, source.SubscriptionClosed(subscription=subscription.number))
            for file in batcher.handle(source.Tick(cut_ts=cut_ts)):
                key = BatchKey(tenant=_TENANT, store_id=store, incarnation=1, seq=file.seq)
                data = encode_batch_file(key, cut_ts=cut_ts, rows=file.rows, regions=file.regions, write_id="w")
                self.files.setdefault(store, []).append(TimedFile(at_ms=at_ms, file=decode_batch_file(key, data)))

    def _give(self, store: int, event: source.SourceEvent) -> None:
        assert not self._batchers.setdefault(store, Batcher()).handle(event)


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a zstd-compressed NDJSON file."""
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
        for line in io.TextIOWrapper(reader, encoding="utf-8", newline="\n"):
            yield json.loads(line)


def stored_versions(folder: Path) -> dict[Version, Write]:
    """The PUTs and DELETEs that MvccGetByKey shows, of the keys that were asked for."""
    out: dict[Version, Write] = {}
    for line in lines(folder / "mvcc.ndjson.zst"):
        key = bytes.fromhex(line["key"])
        long_values = {v["start_ts"]: bytes.fromhex(v["value"]) for v in line.get("values") or []}
        for w in line.get("writes") or []:
            if w["type"] not in ("Put", "Del"):
                continue
            short = w.get("short_value")
            value = None
            if w["type"] == "Put":
                value = bytes.fromhex(short) if short is not None else long_values.get(w["start_ts"], b"")
            op = Op.PUT if w["type"] == "Put" else Op.DELETE
            out[key, w["commit_ts"]] = Write(w["start_ts"], int(op), value)
    return out


def deletes_of_nothing(stored: Mapping[Version, Write]) -> set[Version]:
    """The deletes of rows that did not exist: the version before is a delete, or there is none."""
    out: set[Version] = set()
    last: dict[bytes, int] = {}
    for version in sorted(stored):
        key, op = version[0], stored[version].op
        if op == Op.DELETE and last.get(key, int(Op.DELETE)) == Op.DELETE:
            out.add(version)
        last[key] = op
    return out


def _tso(response: bytes) -> int:
    stamp = parse(wire.TsoResponse, response).timestamp
    return ts.compose(stamp.physical, stamp.logical)
