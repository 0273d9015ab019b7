"""Reads a recording of a real cluster and plays it into the cluster model.

A recording is a directory: `meta.json`, `events.ndjson.zst` (what the stores applied, in that order),
`snapshot_kv.ndjson.zst` (the keys that existed at its start) and `schema_snapshot.json`.

    Capture          the files: checked, streamed, never wholly in memory
    CapturePlayer    a Cluster at the recording's start; a step ends after each topology change and after each tick

Relations:

- lines come with seq 1, 2, 3 ... : START first, then the initial TOPOLOGY, END last;
- the regions that the model computes equal the recorded ones, and each row is in the region, version and store that
  the model has for its key; otherwise the recording is damaged;
- now_ts of the ticks rises. What is recorded after the last tick is applied to the model, but no watermark covers it.

Every fault of a file is a CorruptObject that names the file and the line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson
import polars as pl
import pyarrow as pa
import zstandard

from simulator.core.cluster import Cluster, Region
from simulator.core.mvcc import Lock, Version
from tistream.codec.seed_file import SEED
from tistream.codec.table_key import is_record
from tistream.errors import CorruptObject, InvalidInput, NotFound, TiStreamError
from tistream.keyrange import KeyRange
from tistream.model.change import Op

T = TypeVar("T")

_SNAPSHOT_LINE = {"key": pl.String, "value": pl.String, "start_ts": pl.String, "commit_ts": pl.String}
META = "meta.json"
EVENTS = "events.ndjson.zst"
SNAPSHOT = "snapshot_kv.ndjson.zst"
SCHEMA = "schema_snapshot.json"

_CHUNK_BYTES = 1 << 18
_LINE_BYTES_MAX = 256 << 20
_OPS = {"PUT": Op.PUT, "DELETE": Op.DELETE, "UNKNOWN": Op.NONE}


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureMeta:
    """The facts in a recording's meta file."""

    workload: str
    start_ts: int
    last_resolved_ts: int  #: now_ts of the last tick
    store_ids: tuple[int, ...]
    ticks: int


class Capture:
    """The files of one recording. NotFound when one is missing, CorruptObject when one is damaged."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in (META, EVENTS, SNAPSHOT, SCHEMA):
            if not (directory / name).is_file():
                raise NotFound("the recording lacks a file", file=str(directory / name))
        self.meta = self._read_meta()

    def schema_snapshot(self) -> bytes:
        """The schema at the start, as JSON text."""
        data = (self.directory / SCHEMA).read_bytes()
        try:
            ts = int(orjson.loads(data)["ts"])
        except (orjson.JSONDecodeError, KeyError, ValueError, TypeError) as e:
            raise CorruptObject("the schema snapshot is damaged", file=str(self.directory / SCHEMA)) from e
        if ts != self.meta.start_ts:
            raise CorruptObject(
                "the schema snapshot is of another timestamp",
                file=str(self.directory / SCHEMA),
                ts=ts,
                start_ts=self.meta.start_ts,
            )
        return data

    def events(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Line number and line of each event. The numbers must have no gap, from START to END."""
        kind, last = "", 0
        for number, event in read_lines(self.directory / EVENTS):
            kind = event.get("t", "")
            if event.get("seq") != number or (number == 1) != (kind == "START"):
                raise self.damaged(number, "is out of sequence")
            last = number
            yield number, event
        if kind != "END":
            raise self.damaged(last, "is the last one, but the recording has no END")

    def snapshot(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Line number and line of each key that lived at the start."""
        return read_lines(self.directory / SNAPSHOT)

    def snapshot_text(self) -> Iterator[bytes]:
        """The text of the same lines, in pieces of many complete lines. CorruptObject when it cannot be unpacked."""
        path, rest = self.directory / SNAPSHOT, b""
        try:
            for chunk in _decompress(path):
                whole, newline, rest = (rest + chunk).rpartition(b"\n")
                if len(rest) > _LINE_BYTES_MAX:
                    raise CorruptObject("a line of the recording is too long", file=str(path))
                if newline:
                    yield whole
        except zstandard.ZstdError as e:
            raise CorruptObject("the recording cannot be decompressed", file=str(path)) from e
        if rest:
            yield rest

    def damaged(self, line: int, what: str, file: str = EVENTS, /, **facts: object) -> CorruptObject:
        """The error for a line that cannot be used."""
        return CorruptObject(f"a line of the recording {what}", file=str(self.directory / file), line=line, **facts)

    def _read_meta(self) -> CaptureMeta:
        path = self.directory / META
        try:
            meta = orjson.loads(path.read_bytes())
            return CaptureMeta(
                workload=str(meta["workload"]),
                start_ts=int(meta["start_ts"]),
                last_resolved_ts=int(meta["last_resolved_ts"]),
                store_ids=tuple(sorted(int(s["id"]) for s in meta["stores"])),
                ticks=int(meta["counts"]["TICK"]),
            )
        except (orjson.JSONDecodeError, KeyError, ValueError, TypeError) as e:
            raise CorruptObject("the recording's meta file is damaged", file=str(path)) from e


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number (from 1) and object of each line of a zstd-compressed NDJSON file. CorruptObject names file and line."""
    number, rest = 0, b""
    try:
        for chunk in _decompress(path):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _LINE_BYTES_MAX:
                raise CorruptObject("a line of the recording is too long", file=str(path), line=number + 1)
            for text in lines:
                number += 1
                yield number, _parse(path, number, text)
    except zstandard.ZstdError as e:
        raise CorruptObject("the recording cannot be decompressed", file=str(path), line=number + 1) from e
    if rest:
        yield number + 1, _parse(path, number + 1, rest)


def _parse(path: Path, number: int, text: bytes) -> dict[str, Any]:
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError as e:
        raise CorruptObject("a line of the recording is not JSON", file=str(path), line=number) from e
    if not isinstance(parsed, dict):
        raise CorruptObject("a line of the recording is not an object", file=str(path), line=number)
    return parsed


def _decompress(path: Path) -> Iterator[bytes]:
    """The file's content piece by piece; ZstdError also when it ends inside a frame."""
    frame = zstandard.ZstdDecompressor().decompressobj()
    fed = False
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            while chunk:
                yield frame.decompress(chunk)
                fed = True
                chunk = frame.unused_data if frame.eof else b""
                if chunk:
                    frame = zstandard.ZstdDecompressor().decompressobj()
    if not fed or not frame.eof:
        raise zstandard.ZstdError("the file ends inside a frame")


@dataclass(frozen=True, slots=True)
class Step:
    """The player's position. `tick_ts` is the tick's now_ts, or 0 after a topology change."""

    tick_ts: int


class CapturePlayer:
    """Moves a cluster model through a recording. `cluster` is at the recording's start until the first step."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._events = capture.events()
        self._line = 0
        self.last_tick_ts = 0  #: now_ts of the newest tick played
        self.cluster = self._start()

    def step(self) -> Step | None:
        """Play up to and including the next change of the topology or the next tick; None at the recording's end.

        A tick's now_ts is returned, not yet given to the cluster: who drives it first lets the subscribers register
        and then calls `cluster.tick`.
        """
        for number, event in self._events:
            self._line = number
            kind = event["t"]
            if kind == "TICK":
                now_ts = self._guard(int, event.get("now_ts"))
                if now_ts <= self.last_tick_ts or now_ts < self.cluster.now_ts:
                    raise self._damaged("has a tick that does not rise", now_ts=now_ts)
                self.last_tick_ts = now_ts
                return Step(now_ts)
            if kind == "TOPOLOGY":
                self._guard(self._topology, event)
                return Step(0)
            if kind == "END":
                continue
            self._guard(self._row, event)
        if self.last_tick_ts != self._capture.meta.last_resolved_ts:
            raise self._damaged("is the last one, but the last tick is not the one of the meta file")
        return None

    def skip_to(self, ts: int) -> int:
        """Play, without stopping at ticks, to the first tick at or above `ts`; its now_ts, or 0 when there is none."""
        while (step := self.step()) is not None:
            if step.tick_ts >= ts and step.tick_ts:
                return step.tick_ts
        return 0

    # -- inside ----------------------------------------------------------------------------------------------------

    def _damaged(self, what: str, **facts: object) -> CorruptObject:
        return self._capture.damaged(self._line, what, EVENTS, **facts)

    def _guard(self, action: Callable[[Any], T], what: Any) -> T:
        """Apply a line; anything missing or contradictory is a fault of that line."""
        try:
            return action(what)
        except (KeyError, ValueError, TypeError) as e:
            raise self._damaged("lacks a field or has a wrong one", cause=repr(e)) from e
        except InvalidInput as e:
            raise self._damaged("contradicts the ones before it", cause=str(e)) from e

    def _start(self) -> Cluster:
        start_ts = self._guard(int, self._opening("START").get("ts"))
        if start_ts != self._capture.meta.start_ts:
            raise self._damaged("start_ts differs from that of the meta file", ts=start_ts)
        initial = self._opening("TOPOLOGY", "initial")
        cluster = self._guard(lambda line: Cluster(map(_region, line["regions"]), floor_ts=start_ts), initial)
        self._load(cluster)
        return cluster

    def _opening(self, kind: str, topology: str = "") -> dict[str, Any]:
        """The next line, which must be of this kind."""
        self._line, event = next(self._events)
        if event["t"] != kind or event.get("kind", "") != topology:
            raise self._damaged(f"should be {kind} {topology}".rstrip())
        return event

    def _load(self, cluster: Cluster) -> None:
        for number, line in self._capture.snapshot():
            try:
                version = Version(
                    int(line["start_ts"]), int(line["commit_ts"]), Op.PUT, bytes.fromhex(line["value"]), None
                )
                cluster.load(bytes.fromhex(line["key"]), version)
            except (KeyError, ValueError, TypeError, TiStreamError) as e:
                raise self._capture.damaged(number, "cannot be used", SNAPSHOT, cause=repr(e)) from e

    def _topology(self, event: dict[str, Any]) -> None:
        cluster, recorded = self.cluster, [_region(r) for r in event["regions"]]
        match event["kind"]:
            case "split":
                recorded.sort(key=lambda r: r.range.start)
                children = recorded[:-1]
                made = cluster.split(
                    int(event["parent"]), [c.range.end for c in children], [c.region_id for c in children]
                )
            case "leader":
                made = [cluster.move_leader(recorded[0].region_id, recorded[0].store_id)]
            case "merge":
                (source,) = event["removed"]
                made = [cluster.merge(int(source), recorded[0].region_id)]
            case kind:
                raise ValueError(f"unknown kind of topology change: {kind}")
        if made != recorded:
            raise self._damaged("has other regions than follow from the ones before", made=made, recorded=recorded)

    def _row(self, event: dict[str, Any]) -> None:
        cluster, key = self.cluster, bytes.fromhex(event["key"])
        start_ts, op = int(event["start_ts"]), _OPS[event["op"]]
        region = cluster.region_of(key)
        said = (int(event["region"]), int(event["region_version"]), int(event["store"]))
        if said != (region.region_id, region.version, region.store_id):
            raise self._damaged("has a row outside its region", key=key, said=said, region=region)
        txn_source = event.get("txn_source", 0)
        match event["t"]:
            case "PREWRITE":
                generation = event.get("generation", 0)
                lock = Lock(start_ts, op, _value(event, op), _old(event), int(generation), int(txn_source))
                cluster.prewrite(key, lock)
            case "COMMIT":
                cluster.commit(key, start_ts=start_ts, commit_ts=int(event["commit_ts"]))
            case "COMMITTED":
                commit_ts = int(event["commit_ts"])
                version = Version(start_ts, commit_ts, op, _value(event, op), _old(event), int(txn_source))
                cluster.commit_one_phase(key, version)
            case "ROLLBACK":
                cluster.rollback(key, start_ts=start_ts, txn_source=int(txn_source))
            case kind:
                raise ValueError(f"unknown kind of line: {kind}")


def _region(r: dict[str, Any]) -> Region:
    return Region(
        region_id=int(r["region"]),
        version=int(r["version"]),
        store_id=int(r["store"]),
        range=KeyRange(bytes.fromhex(r["start_key"]), bytes.fromhex(r["end_key"])),
    )


def _value(event: dict[str, Any], op: Op) -> bytes | None:
    return bytes.fromhex(event["value"]) if op is Op.PUT else None


def _old(event: dict[str, Any]) -> bytes | None:
    old = event.get("old_value")
    return None if old is None else bytes.fromhex(old)


def captured_rows(capture: Capture) -> Iterator[pa.Table]:
    """The records that lived at a recording's start, in key order. Index entries and meta keys are left out."""
    for text in capture.snapshot_text():
        try:
            lines = pl.read_ndjson(text, schema=_SNAPSHOT_LINE)
            rows = lines.select(
                pl.col("key").str.decode("hex"),
                pl.col("start_ts", "commit_ts").cast(pl.UInt64),
                pl.col("value").str.decode("hex"),
            ).to_arrow()
            table = rows.select(SEED.names).cast(SEED)
        except (pl.exceptions.PolarsError, pa.ArrowInvalid, ValueError) as e:
            file = str(capture.directory / SNAPSHOT)
            raise CorruptObject("the rows at the recording's start cannot be read", file=file, cause=str(e)) from e
        yield table.filter(pa.array(is_record(table["key"])))
