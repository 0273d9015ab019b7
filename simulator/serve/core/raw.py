"""RawKV of a store over the model: `tikvpb.Tikv/RawGet`, `RawPut`, `RawBatchPut`, `RawDelete`, `RawBatchDelete`,
`RawDeleteRange`, `RawScan`, `RawGetKeyTTL`, `RawChecksum`.

This module decides, as TiKV does:

- the API version of the request and the first byte of its keys are checked first, then column family and times to live,
  then the region;
- a write goes through `RawWrites`: its store stamps it, it is applied at once, and subscribers are sent it. Without a
  timestamp the answer is max_timestamp_not_synced;
- an entry has expired at its second, by PD's time; a time to live of 0 is none;
- the refusal of a RawScan is the error of its first pair; every other refusal is a text;
- what has not begun in the time that its client gave it (`begins_within_s`) is not begun any more;
- RawGetKeyTTL ends the process of a server without expiry (`died` is called);
- what is written to another column family than the default one is not kept;
- a key beyond 8 KiB is refused, and so is a write beyond 8 MiB, by the region's log.

Pure; damage is CorruptObject.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from simulator.core.causal import NotSynced
from simulator.core.raw_writes import RawWrites
from tistream import ts
from tistream.codec.protobuf import BYTES, merged, parse
from tistream.keyrange import KeyRange
from tistream.tikv.core import wire
from tistream.tikv.core.api_versions import Api, Interface, refusal, serves

_LIMIT_MAX = 10_240
WRITES = frozenset({"RawPut", "RawBatchPut", "RawDelete", "RawBatchDelete", "RawDeleteRange"})
KEY_BYTES_MAX, ENTRY_BYTES_MAX = 8 << 10, 8 << 20
_CRC_POLYNOMIAL = 0xC96C5795D7870F42  # CRC64 of ECMA-182, reflected
_NAMES = ("V1", "V1ttl", "V2", "V3")
_CF_DEPRECATED = "cf is deprecated in API V2, cf name: {}"
_TTL_OFF = "ttl is not enabled, but get put request with ttl"
_TTLS_LENGTH = "The length of ttls does not equal to the length of pairs"


@dataclass(frozen=True, slots=True)
class Applied:
    """A write that a store was asked for and has applied."""

    key: bytes
    value: bytes | None  #: None: a delete
    ttl: int
    at_ts: int


class RegionErrors(Protocol):
    def region_error(self, store_id: int, context: wire.Context, key: bytes) -> wire.RegionError | None:
        """Why the store does not serve the request."""
        ...


class RawStores:
    """Answers of all stores. `now_ts`: PD's newest timestamp. `fits`: what does not fit a region."""

    def __init__(self, writes: RawWrites, api: Api, fits: RegionErrors, now_ts: Callable[[], int]) -> None:
        self._writes, self._cluster, self._api = writes, writes.cluster, api
        self._fits, self._now_ts = fits, now_ts
        self.on_write: Callable[[Applied], None] = lambda write: None  #: each write, in the order of application
        self.died: Callable[[int], None] = lambda store_id: None  #: a request has ended the process of a store

    @property
    def now_s(self) -> int:
        """Unix seconds by PD's clock."""
        return ts.physical_ms(self._now_ts()) // 1000

    # -- writes ----------------------------------------------------------------------------------------------------

    @property
    def methods(self) -> dict[str, Callable[[int, bytes], bytes]]:
        """Answers by the names of the methods."""
        return {
            "RawGet": self.get,
            "RawGetKeyTTL": self.get_ttl,
            "RawScan": self.scan,
            "RawChecksum": self.checksum,
            "RawPut": self.put,
            "RawBatchPut": self.batch_put,
            "RawDelete": self.delete,
            "RawBatchDelete": self.batch_delete,
            "RawDeleteRange": self.delete_range,
        }

    def put(self, store_id: int, data: bytes) -> bytes:
        asked = parse(wire.RawPutRequest, data)
        pairs = [(asked.key, asked.value, asked.ttl)]
        return self._write(store_id, asked.context, "raw_put", asked.cf, pairs)

    def batch_put(self, store_id: int, data: bytes) -> bytes:
        asked = parse(wire.RawBatchPutRequest, data)
        ttls = list(asked.ttls)
        if len(ttls) < 2:  # one for all
            ttls = (ttls or [0]) * len(asked.pairs)
        wrong = _TTLS_LENGTH if len(ttls) != len(asked.pairs) else ""
        pairs = [(pair.key, pair.value, ttl) for pair, ttl in zip(asked.pairs, ttls, strict=False)]
        return self._write(store_id, asked.context, "raw_batch_put", asked.cf, pairs, wrong)

    def delete(self, store_id: int, data: bytes) -> bytes:
        asked = parse(wire.RawDeleteRequest, data)
        return self._write(store_id, asked.context, "raw_delete", asked.cf, [(asked.key[-1], None, 0)])

    def batch_delete(self, store_id: int, data: bytes) -> bytes:
        asked = parse(wire.RawDeleteRequest, data)
        return self._write(store_id, asked.context, "raw_batch_delete", asked.cf, [(key, None, 0) for key in asked.key])

    def delete_range(self, store_id: int, data: bytes) -> bytes:
        """Subscribers are sent nothing."""
        asked = parse(wire.RawDeleteRangeRequest, data)
        if words := self._refusal(asked.context, "raw_delete_range", [asked.start_key], asked.cf):
            return _refused(words)
        if error := self._error(store_id, asked.context, [asked.start_key, asked.end_key]):
            return _not_here(error)
        self._cluster.vanish(KeyRange(asked.start_key, asked.end_key))
        return b""

    def _write(
        self,
        store_id: int,
        context: wire.Context,
        command: str,
        cf: str,
        pairs: Sequence[tuple[bytes, bytes | None, int]],
        wrong: str = "",
    ) -> bytes:
        keys = [key for key, _, _ in pairs]
        if words := self._refusal(context, command, keys, cf):
            return _refused(words)
        if self._api is Api.V1 and (wrong or any(ttl for _, _, ttl in pairs)):
            return _refused(_TTL_OFF)
        if wrong:
            return _refused(wrong)
        if long := max((len(key) for key in keys if len(key) > KEY_BYTES_MAX), default=0):
            return _refused(f"max key size exceeded, size: {long}, limit: {KEY_BYTES_MAX}")
        if error := self._error(store_id, context, keys):
            return _not_here(error)
        if sum(len(key) + len(value or b"") for key, value, _ in pairs) > ENTRY_BYTES_MAX:
            return _not_here(wire.RegionError(message=b"raft entry is too large", raft_entry_too_large=wire.Unread()))
        now_s = self.now_s
        for key, value, ttl in pairs if cf in ("", "default") else ():
            try:
                write = self._writes.propose(key, value, now_s + ttl if ttl else 0)
            except NotSynced:
                late = wire.RegionError(message=b"max ts not synced", max_timestamp_not_synced=wire.Unread())
                return _not_here(late)
            while self._writes.apply(context.region_id) is not write:
                pass  # what was in flight before
            self.on_write(Applied(key, value, ttl, write.ts))
        return b""

    # -- reads -----------------------------------------------------------------------------------------------------

    def get(self, store_id: int, data: bytes) -> bytes:
        asked = parse(wire.RawKeyRequest, data)
        if words := self._refusal(asked.context, "raw_get", [asked.key], asked.cf):
            return _refused(words)
        if error := self._error(store_id, asked.context, [asked.key]):
            return _not_here(error)
        entry = next(self._alive(KeyRange(asked.key, asked.key + b"\0")), None)
        if entry is None:
            return wire.RawGetResponse(not_found=True).SerializeToString()
        return wire.RawGetResponse(value=entry[1]).SerializeToString()

    def get_ttl(self, store_id: int, data: bytes) -> bytes:
        asked = parse(wire.RawKeyRequest, data)
        if self._api is Api.V1:
            self.died(store_id)
            return _refused("the store's process has ended")
        if words := self._refusal(asked.context, "raw_get_key_ttl", [asked.key], asked.cf):
            return _refused(words)
        if error := self._error(store_id, asked.context, [asked.key]):
            return _not_here(error)
        entry = next(self._alive(KeyRange(asked.key, asked.key + b"\0")), None)
        if entry is None:
            return wire.RawGetKeyTtlResponse(not_found=True).SerializeToString()
        return wire.RawGetKeyTtlResponse(ttl=entry[2] - self.now_s if entry[2] else 0).SerializeToString()

    def scan(self, store_id: int, data: bytes) -> bytes:
        asked = parse(wire.RawScanRequest, data)
        words = "reverse scans are not served" if asked.reverse else self._scan_refusal(asked)
        if words:
            refused = wire.KvPair(error=wire.KeyError(abort=words.encode()))
            return wire.RawScanResponse(kvs=[refused]).SerializeToString()
        if error := self._error(store_id, asked.context, [asked.start_key]):
            return _not_here(error)
        pairs = islice(self._in_region(asked.context, asked.start_key, asked.end_key), min(asked.limit, _LIMIT_MAX))
        kvs = [wire.KvPair(key=key, value=b"" if asked.key_only else value) for key, value, _ in pairs]
        return wire.RawScanResponse(kvs=kvs).SerializeToString()

    def checksum(self, store_id: int, data: bytes) -> bytes:
        asked = parse(wire.RawChecksumRequest, data)
        answer = wire.RawChecksumResponse()
        for part in asked.ranges:
            if words := self._refusal(asked.context, "raw_checksum", [part.start_key], "", part):
                return _refused(words)
            if error := self._error(store_id, asked.context, [part.start_key]):
                return _not_here(error)
            for key, value, _ in self._in_region(asked.context, part.start_key, part.end_key):
                answer.checksum ^= crc64(key + value)
                answer.total_kvs += 1
                answer.total_bytes += len(key) + len(value)
        return answer.SerializeToString()

    def _in_region(self, context: wire.Context, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes, int]]:
        whole = self._cluster.region(context.region_id).range
        wanted = KeyRange(start, end).intersect(whole) if not end or end > start else None
        return self._alive(wanted) if wanted is not None else iter(())

    def _alive(self, wanted: KeyRange) -> Iterator[tuple[bytes, bytes, int]]:
        """(key, value, Unix seconds at which it expires or 0)."""
        now_s = self.now_s
        return (entry for entry in self._writes.scan(wanted) if not 0 < entry[2] <= now_s)

    # -- errors ----------------------------------------------------------------------------------------------------

    def _error(self, store_id: int, context: wire.Context, keys: Sequence[bytes]) -> wire.RegionError | None:
        if error := self._fits.region_error(store_id, context, keys[0]):
            return error
        whole = self._cluster.region(context.region_id).range
        outside = next((key for key in keys if key not in whole), None)
        return None if outside is None else self._fits.region_error(store_id, context, outside)

    def _refusal(
        self, context: wire.Context, command: str, keys: Sequence[bytes], cf: str, part: wire.KeyRange | None = None
    ) -> str:
        """The text of a store that does not serve such a request; empty when it does."""
        if not self._serves(context):
            asked = _NAMES[min(context.api_version, 3)]
            return (
                "Api version in request does not match with TiKV storage, "
                f"cmd: {command}, storage: {self._api}, request: {asked}"
            )
        for key in keys:
            if refusal(self._api, _api(context), Interface.RAW, key):
                where = f"key: {key.hex().upper()}"
                if part is not None:
                    where = f'range: (Some("{part.start_key.hex().upper()}"), Some("{part.end_key.hex().upper()}"))'
                return f"Key mode mismatched with the request mode, cmd: {command}, storage: {self._api}, {where}"
        return _CF_DEPRECATED.format(cf) if cf and self._api is Api.V2 else ""

    def _scan_refusal(self, asked: wire.RawScanRequest) -> str:
        storage = f"cmd: raw_scan, storage_api_version: {self._api}"
        if not self._serves(asked.context):
            version = _NAMES[min(asked.context.api_version, 3)]
            return f"Error(ApiVersionNotMatched {{ {storage}, req_api_version: {version} }})"
        if refusal(self._api, _api(asked.context), Interface.RAW, asked.start_key):
            start, end = asked.start_key.hex().upper(), asked.end_key.hex().upper()
            return f'Error(InvalidKeyRangeMode {{ {storage}, range: (Some("{start}"), Some("{end}")) }})'
        return ""

    def _serves(self, context: wire.Context) -> bool:
        return context.api_version < len(Api) and serves(self._api, _api(context), Interface.RAW)


def _api(context: wire.Context) -> Api:
    return list(Api)[context.api_version]


def _refused(words: str) -> bytes:
    return wire.RawWriteResponse(error=words.encode()).SerializeToString()


def _not_here(error: wire.RegionError) -> bytes:
    return wire.RawWriteResponse(region_error=error).SerializeToString()


def begins_within_s(request: bytes) -> float:
    """The time in which a store must begin with a request, from its arrival; 0 = no limit."""
    context = wire.Context.FromString(merged(request, {1: BYTES})[1])
    return context.max_execution_duration_ms / 1000


def mishaps(region_id: int, busy_ms: int) -> list[wire.RegionError]:
    """Errors that any request may be answered with; the last one says that a write may have happened."""
    none = wire.Unread()
    return [
        wire.RegionError(message=b"busy", server_is_busy=wire.ServerIsBusy(reason=b"told to", backoff_ms=busy_ms)),
        wire.RegionError(message=b"stale command", stale_command=none),
        wire.RegionError(message=b"not leader", not_leader=wire.NotLeader(region_id=region_id)),
        wire.RegionError(message=b"epoch not match", epoch_not_match=wire.EpochNotMatch()),
        wire.RegionError(message=b"region not found", region_not_found=wire.RegionNotFound(region_id=region_id)),
        wire.RegionError(message=b"max ts not synced", max_timestamp_not_synced=none),
        wire.RegionError(message=b"merging", proposal_in_merging_mode=none),
        wire.RegionError(message=b"read index not ready", read_index_not_ready=none),
        wire.RegionError(message=b"disk full", disk_full=none),
        wire.RegionError(message=b"Raft raft: proposal dropped"),
        wire.RegionError(message=b"undetermined", undetermined_result=none),
    ]


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_CRC_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


_CRC_TABLE = _crc_table()


def crc64(data: bytes) -> int:
    """CRC64 of ECMA-182, as xz has it."""
    crc = 0xFFFF_FFFF_FFFF_FFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFF_FFFF_FFFF_FFFF
