"""A recording of a client of a real cluster: the lines, and the registrations in them.

    stream.ndjson.zst    one JSON object a line: open, send, recv, eof, pd, note; messages as they crossed the wire

This module decides:

- which subscriptions are followed: of those of one kv_api that cover the same keys the earliest, on multiplexed
  streams only; a recording without any is InvalidInput;
- a registration ends by an error or by the end of its stream. A repeated registration, and the duplicate_request that
  answers it, are no events; neither is the recorder's request to deregister: the store's answer to it is the end;
- a registration *serves* when its opening scan was completed.

The whole recording is held in memory. Every fault of the file is CorruptObject with the line.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import zstandard

from simulator.loopback.core import feed_wire as wire
from simulator.loopback.core.feed_wire import plain_range
from tistream import ts
from tistream.codec.protobuf import parse
from tistream.errors import CorruptObject, InvalidInput, NotFound
from tistream.keyrange import KeyRange, gaps
from tistream.tikv.core import wire as messages

STREAM = "stream.ndjson.zst"
_WINDOW_BYTES_MAX = 1 << 27
_BATCH_SCAN, _STORES, _MEMBERS = "BatchScanRegions", "GetAllStores", "GetMembers"
_MULTIPLEXING = "stream-multiplexing"
NEVER = 1 << 62  #: a line that does not come


@dataclass(eq=False, slots=True, kw_only=True)
class Registration:
    """One recorded registration that is followed. `begin`, `ready` and `end` are lines; NEVER = it was not seen."""

    store_id: int
    region_id: int
    version: int
    range: KeyRange  #: plain keys
    checkpoint_ts: int
    begin: int
    ready: int = NEVER  #: INITIALIZED
    end: int = NEVER

    @property
    def serves(self) -> bool:
        """Its opening scan was completed."""
        return self.ready != NEVER

    def __str__(self) -> str:
        return f"region {self.region_id} version {self.version} on store {self.store_id}, keys {self.range}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRegion:
    """A region as PD described it at some line."""

    line: int
    region_id: int
    conf_ver: int
    version: int
    range: KeyRange  #: plain keys
    peers: tuple[messages.Peer, ...]

    def peer_on(self, store_id: int) -> messages.Peer | None:
        """The region's replica on a store."""
        return next((p for p in self.peers if p.store_id == store_id), None)


@dataclass(frozen=True, slots=True)
class Message:
    """A ChangeDataEvent arrived."""

    store_id: int
    stream: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Begun:
    """A registration was sent."""

    registration: Registration


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """An open stream to a store."""

    store_id: int


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """A stream to a store ended, with all its registrations."""

    store_id: int
    registrations: tuple[Registration, ...]


@dataclass(frozen=True, slots=True)
class Timestamp:
    """PD gave one."""

    ts: int


Line = Message | Begun | StreamOpened | StreamEnded | Timestamp | None  #: None: nothing that changes the state


@dataclass(slots=True)
class Recording:
    """A parsed recording. Lines are numbered from 0."""

    lines: list[Line] = field(default_factory=list)
    at_ms: list[int] = field(default_factory=list)  #: Unix milliseconds of each line
    ranges: list[KeyRange] = field(default_factory=list)  #: the followed ranges; disjoint
    start_ts: int = 0  #: the lowest checkpoint of a subscription that is followed
    cluster_id: int = 0
    kv_api: int = wire.KV_API_TIDB  #: of the subscriptions that are followed
    registrations: list[Registration] = field(default_factory=list)  #: that are followed, by their begin
    by_message: dict[tuple[int, int, int], list[Registration]] = field(default_factory=dict)
    regions: list[KnownRegion] = field(default_factory=list)  #: by line
    stores: list[tuple[int, bytes]] = field(default_factory=list)  #: (line, answer of GetAllStores)
    members: bytes = b""  #: answer of GetMembers
    timestamps: list[tuple[int, int]] = field(default_factory=list)  #: (line, what PD gave), rising

    def living(self, line: int, stream: int, request_id: int, region_id: int) -> Registration | None:
        """The followed registration that a message of this line belongs to."""
        for registration in reversed(self.by_message.get((stream, request_id, region_id), ())):
            if registration.begin <= line <= registration.end:
                return registration
        return None


def read_recording(directory: Path, *, kv_api: int = wire.KV_API_TIDB, wanted: KeyRange | None = None) -> Recording:
    """The recording in `directory`, of the subscriptions with this kv_api that touch `wanted`. NotFound without one,
    CorruptObject when it is damaged, InvalidInput when nothing of it can be followed."""
    path = check_recording(directory)
    reader = _Reader(kv_api, wanted or KeyRange())
    number = 0
    try:
        for line in _objects(path):
            reader.take(number, line)
            number += 1
    except (KeyError, ValueError, TypeError, CorruptObject, zstandard.ZstdError) as e:
        raise CorruptObject("a line of the recording is damaged", file=str(path), line=number + 1, cause=str(e)) from e
    out = reader.out
    if not out.registrations:
        raise InvalidInput("nothing in this recording can be followed", file=str(path))
    described = {(r.region_id, r.version) for r in out.regions}
    unknown = [r for r in out.registrations if (r.region_id, r.version) not in described]
    if unknown or not (out.members and out.stores and out.timestamps):
        raise CorruptObject("the recording lacks answers of PD", file=str(path), about=", ".join(map(str, unknown[:3])))
    return out


def check_recording(directory: Path) -> Path:
    """The file of the recording. NotFound when there is none."""
    path = Path(directory) / STREAM
    if not path.is_file():
        raise NotFound("there is no recording here", file=str(path))
    return path


class _Reader:
    """Turns line after line into a Recording."""

    def __init__(self, kv_api: int, wanted: KeyRange) -> None:
        self.out = Recording(kv_api=kv_api)
        self._wanted = wanted
        self._followed: set[int] = set()  # request ids
        self._living: dict[tuple[int, int, int], Registration] = {}  # stream, request, region

    def take(self, number: int, line: dict[str, Any]) -> None:
        self.out.at_ms.append(int(line["t_ms"]))
        match line["dir"]:
            case "recv":
                self.out.lines.append(self._message(number, line))
            case "send":
                self.out.lines.append(self._request(number, line))
            case "open":
                if _MULTIPLEXING not in (line.get("features", ""), line.get("metadata", "").removeprefix("features: ")):
                    raise InvalidInput("only recordings of multiplexed streams can be followed", line=number + 1)
                opened = line.get("err", "<nil>") == "<nil>"
                self.out.lines.append(StreamOpened(int(line["store"])) if opened else None)
            case "eof":
                self.out.lines.append(self._eof(number, line))
            case "pd":
                self.out.lines.append(self._pd(number, line))
            case "note":
                if line.get("note") == "subscribe":
                    self._subscribe(line)
                self.out.lines.append(None)
            case other:
                raise ValueError(f"a line of kind {other!r}")

    def _subscribe(self, line: dict[str, Any]) -> None:
        if int(line.get("kv_api", 0)) != self.out.kv_api:
            return
        key_range = plain_range(bytes.fromhex(line["start"]), bytes.fromhex(line["end"]))
        if key_range.intersect(self._wanted) is None:
            return
        free = gaps(key_range, self.out.ranges)
        if not free:
            return
        if free != [key_range]:
            raise ValueError("subscriptions of the recording overlap in part")
        self._followed.add(int(line["request_id"]))
        self.out.ranges.append(key_range)
        checkpoint_ts = int(line["checkpoint_ts"])
        self.out.start_ts = min(self.out.start_ts or checkpoint_ts, checkpoint_ts)

    def _request(self, number: int, line: dict[str, Any]) -> Line:
        request = wire.read_request(bytes.fromhex(line["msg_hex"]))
        place = (int(line["stream"]), request.request_id, request.region_id)
        if request.deregister or request.request_id not in self._followed or place in self._living:
            return None
        registration = Registration(
            store_id=int(line["store"]),
            region_id=request.region_id,
            version=request.version,
            range=request.range,
            checkpoint_ts=request.checkpoint_ts,
            begin=number,
        )
        self._living[place] = registration
        self.out.registrations.append(registration)
        self.out.by_message.setdefault(place, []).append(registration)
        return Begun(registration)

    def _message(self, number: int, line: dict[str, Any]) -> Line:
        data, stream = bytes.fromhex(line["msg_hex"]), int(line["stream"])
        followed = False
        events, resolved = wire.read_message(data)
        for event in events:
            place = (stream, event.request_id, event.region_id)
            registration = self._living.get(place)
            if registration is None:
                continue
            followed = True
            if event.error is not None and not event.is_duplicate_request:
                registration.end = number
                del self._living[place]
            elif event.entries is not None and not registration.serves and wire.has_initialized(event.entries):
                registration.ready = number
        followed |= any(r.request_id in self._followed for r in resolved)
        return Message(int(line["store"]), stream, data) if followed else None

    def _eof(self, number: int, line: dict[str, Any]) -> Line:
        ended = [place for place in self._living if place[0] == int(line["stream"])]
        registrations = tuple(self._living.pop(place) for place in ended)
        for registration in registrations:
            registration.end = number
        return StreamEnded(int(line["store"]), registrations)

    def _pd(self, number: int, line: dict[str, Any]) -> Line:
        if line.get("grpc_error") or not line["resp_hex"]:
            return None
        method, answer = line["method"].rsplit("/", 1)[1], bytes.fromhex(line["resp_hex"])
        if method == "Tso":
            stamp = parse(messages.TsoResponse, answer).timestamp
            given = ts.compose(stamp.physical, stamp.logical)
            if self.out.timestamps and given <= self.out.timestamps[-1][1]:
                raise ValueError("PD's timestamps fall")
            self.out.timestamps.append((number, given))
            return Timestamp(given)
        if method == _STORES:
            self.out.stores.append((number, answer))
        elif method == _MEMBERS and not self.out.members:
            self.out.members = answer
            self.out.cluster_id = parse(messages.Response, answer).header.cluster_id
        elif method == _BATCH_SCAN:
            regions = parse(messages.BatchScanRegionsResponse, answer).regions
            self.out.regions += [_known(number, listed.region) for listed in regions]
        return None


def _known(line: int, region: messages.MetaRegion) -> KnownRegion:
    return KnownRegion(
        line=line,
        region_id=region.id,
        conf_ver=region.region_epoch.conf_ver,
        version=region.region_epoch.version,
        range=plain_range(region.start_key, region.end_key),
        peers=tuple(region.peers),
    )


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX)
    with path.open("rb") as file, decompressor.stream_reader(file) as reader:
        for line in io.BufferedReader(reader, 1 << 18):
            yield orjson.loads(line)
