"""RawKV of the modelled stores answers what recorded stores of each API version answered, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from simulator.core.cluster import Cluster, Region
from simulator.core.raw_writes import RawWrites
from simulator.serve.core.kv import KvReads
from simulator.serve.core.raw import RawStores, crc64
from simulator.serve.core.regions import peer
from simulator.serve.served import PdStamps
from tistream import ts
from tistream.codec.protobuf import BYTES, fields, merged, message
from tistream.keyrange import KeyRange
from tistream.tikv.core import wire
from tistream.tikv.core.api_versions import Api

RECORDED = Path(__file__).parents[2] / "data" / "real_tikv"
SERVERS = {"V1": Api.V1, "V1TTL": Api.V1TTL, "V2": Api.V2}
CAS = "RawCompareAndSwap"  # not served
REGION, STORE = 28, 1


class Stores:
    """One region of one store; a recorded request is asked of it."""

    def __init__(self, api: Api) -> None:
        self.now_ts = ts.compose(1_700_000_000_000)
        cluster = Cluster([Region(region_id=REGION, version=1, store_id=STORE, range=KeyRange())], floor_ts=self.now_ts)
        self.writes = RawWrites(cluster, lambda: PdStamps(self._tso))
        self.raw = RawStores(self.writes, api, KvReads(cluster, api), lambda: self.now_ts)

    def _tso(self, count: int) -> int:
        self.now_ts += count
        return self.now_ts

    def ask(self, name: str, request: bytes) -> bytes:
        recorded = wire.Context.FromString(merged(request, {1: BYTES})[1])
        here = wire.Context(
            region_id=REGION,
            region_epoch=wire.RegionEpoch(conf_ver=1, version=1),
            peer=peer(REGION, STORE),
            api_version=recorded.api_version,
        )
        return self.raw.methods[name](STORE, request + message(1, here.SerializeToString()))

    def put(self, key: bytes, value: bytes) -> None:
        self.writes.propose(key, value)
        self.writes.apply(REGION)


def lines(name: str) -> Iterator[dict[str, Any]]:
    with (RECORDED / name).open("rb") as file:
        for line in zstandard.ZstdDecompressor().stream_reader(file).read().splitlines():
            entry = json.loads(line)
            if entry["dir"] == "kv" and "/Raw" in entry["method"]:
                yield entry


@pytest.mark.parametrize("server", SERVERS)
def test_answers_of_each_api_version(server: str) -> None:
    stores, requests = Stores(SERVERS[server]), 0
    for line in lines(f"matrix/matrix_{server}.ndjson.zst"):
        name, request = line["method"].rpartition("/")[2], bytes.fromhex(line["req_hex"])
        if name == CAS:
            if "succeed:true" in line["resp"]:
                pair = merged(request, {2: BYTES, 3: BYTES})
                stores.put(pair[2], pair[3])
            continue
        assert stores.ask(name, request).hex() == line["resp_hex"], line["label"]
        requests += 1
    assert requests > 40


def test_scans_and_checksums_of_a_recorded_state() -> None:
    """The last scans of a recording, and the checksums that the stores then gave of each region."""
    every = list(lines("raw_dev/work.ndjson.zst"))
    scans = [line for line in every if line["label"] == "final_scan"]
    checksums = [line for line in every if line["label"] == "checksum"]
    stores, pairs = Stores(Api.V2), 0
    for line in scans:
        for _, pair in fields(bytes.fromhex(line["resp_hex"]), {2: BYTES}):
            parts = merged(pair, {2: BYTES, 3: BYTES})
            stores.put(parts[2], parts.get(3, b""))
            pairs += 1
    assert pairs > 700
    for line in scans:  # a region ended the recorded ones
        last = [merged(pair, {2: BYTES})[2] for _, pair in fields(bytes.fromhex(line["resp_hex"]), {2: BYTES})]
        request = wire.RawScanRequest.FromString(bytes.fromhex(line["req_hex"]))
        request.limit = min(request.limit, len(last))
        assert stores.ask("RawScan", request.SerializeToString()).hex() == line["resp_hex"]
    for line in checksums:
        assert stores.ask("RawChecksum", bytes.fromhex(line["req_hex"])).hex() == line["resp_hex"]
    assert checksums


def test_a_question_for_an_expiry_ends_a_store_without_any() -> None:
    stores, died = Stores(Api.V1), list[int]()
    stores.raw.died = died.append
    stores.ask("RawGetKeyTTL", wire.RawKeyRequest(context=wire.Context(), key=b"k").SerializeToString())
    assert died == [STORE]


def test_an_entry_expires_at_its_second() -> None:
    stores = Stores(Api.V2)
    v2 = wire.Context(api_version=2)
    key = b"r\0\0\1k"
    put = wire.RawPutRequest(context=v2, key=key, value=b"v", ttl=10)
    get = wire.RawKeyRequest(context=v2, key=key).SerializeToString()
    assert stores.ask("RawPut", put.SerializeToString()) == b""
    stores.now_ts += 9000 << 18
    assert wire.RawGetKeyTtlResponse.FromString(stores.ask("RawGetKeyTTL", get)).ttl == 1
    stores.now_ts += 1000 << 18
    assert wire.RawGetResponse.FromString(stores.ask("RawGet", get)).not_found


def test_crc64_is_that_of_xz() -> None:
    """The check value of CRC-64/XZ in the catalogue of CRC algorithms."""
    assert crc64(b"123456789") == 0x995DC9BBDF1939FA
