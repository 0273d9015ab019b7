"""What a recording of a real RawKV cluster says of one keyspace: the events of its change feed, and what its clients
were answered. Read without the product's decoders of the feed."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from simulator.loopback.core import feed_wire as wire
from tistream.codec.protobuf import BYTES, VARINT, merged
from tistream.model.change import Op

RAW_DEV = Path(__file__).parents[1] / "data" / "real_tikv" / "raw_dev"


@dataclass(frozen=True, slots=True)
class Write:
    """An event of the feed; the key without mode and keyspace."""

    key: bytes
    ts: int
    value: bytes | None  #: None: a delete
    expire_ts: int  #: Unix seconds; 0 = never


def lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
        for line in io.BufferedReader(reader, 1 << 18):
            yield json.loads(line)


def events(folder: Path, keyspace: int) -> dict[tuple[bytes, int], Write]:
    """Every write that the followed subscription of the keyspace was sent, the last one of each (key, ts)."""
    prefix = b"r" + keyspace.to_bytes(3, "big")
    request_id, events_found = 0, {}
    for line in lines(folder / "stream.ndjson.zst"):
        if line.get("note") == "subscribe" and not request_id:
            start = bytes.fromhex(line["start"])
            request_id = int(line["request_id"]) if start.startswith(prefix) and int(line["kv_api"]) == 1 else 0
        if line["dir"] != "recv":
            continue
        sent, _ = wire.read_message(bytes.fromhex(line["msg_hex"]))
        for event in sent:
            if event.request_id == request_id and event.entries is not None:
                for row in wire.read_rows(event.entries):
                    if row.key.startswith(prefix):
                        write = _write(row, len(prefix))
                        events_found[write.key, write.ts] = write
    return events_found


def _write(row: wire.Row, prefix_bytes: int) -> Write:
    body = merged(row.entry, {1: BYTES})[1]
    contents = merged(body, {6: BYTES, 8: VARINT})
    value = bytes(contents.get(6, b"")) if row.op == Op.PUT else None
    return Write(row.key[prefix_bytes:], row.commit_ts, value, int(contents.get(8, 0)))


@dataclass(frozen=True, slots=True)
class Answers:
    """What clients of the keyspace were answered."""

    final: dict[bytes, bytes]  #: by RawScan in the end
    at_ms: int  #: when it began
    deleted_ranges: list[tuple[bytes, bytes]]  #: invisible to a change feed
    expiries: dict[tuple[bytes, bytes], tuple[float, float]]  #: (key, value) of a put: the Unix seconds it may end at

    def is_deleted_by_range(self, key: bytes) -> bool:
        return any(start <= key < end for start, end in self.deleted_ranges)


def answers(folder: Path, keyspace: int) -> Answers:
    prefix = b"r" + keyspace.to_bytes(3, "big")
    final: dict[bytes, bytes] = {}
    at_ms, ranges, expiries = 0, list[tuple[bytes, bytes]](), dict[tuple[bytes, bytes], tuple[float, float]]()
    for line in lines(folder / "work.ndjson.zst"):
        label = line.get("label", line["dir"])
        if label == "final_scan" and line["keyspace"] == keyspace:
            at_ms = at_ms or int(line["t_ms"])
        elif label == "final" and line["keyspace"] == keyspace:
            final[bytes.fromhex(line["key"])[4:]] = bytes.fromhex(line["value"])
        elif label == "delete_range" and bytes.fromhex(line["start"]).startswith(prefix):
            ranges.append((bytes.fromhex(line["start"])[4:], bytes.fromhex(line["end"])[4:]))
        elif label == "put" and line.get("ttl") and line.get("resp") == "" and not line.get("value_len"):
            key = bytes.fromhex(line["key"])
            if key.startswith(prefix):
                ends = line["t_ms"] / 1000 + line["ttl"]
                expiries[key[4:], bytes.fromhex(line["value"])] = ends - line["dur_ms"] / 1000 - 1, ends + 1
    return Answers(final, at_ms, ranges, expiries)
