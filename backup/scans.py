"""The pairs of a keyspace of an API V2 cluster with their expiries, by the change feed from timestamp 0, region by
region.

    region of the next key -> registration at checkpoint 0 -> newest version of each key -> INITIALIZED -> pairs by key

RawScan has no expiries, and asking for each key's is a request a key. An opening scan from 0 sends the newest version
of every key with its expiry. Writes that arrive meanwhile count if they come before the end of the scan, so each key
shows a version no older than at the moment when its region was registered.

Each region starts where the one before ended, so each key is read once, whatever splits, merges or moves. A region that
cannot be read is looked up again and retried, with growing pauses, for as long as the patience lasts. One region at a
time is held in memory for each caller of `scan`.

An API V1 cluster is read by RawScan; with the expiries where the stores have them. A store tells an expiry of one key
at a time only (RawGetKeyTTL), and no request tells it with the value. So the value is read between two such requests
that agree: a key that is overwritten meanwhile is read again. The expiry is asked of API V1 with TTL alone: the
question ends the process of a store without.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backup.core.pairs import PAIRS, alive
from pusher.core.cdcpb import split_change_data
from pusher.core.cdcpb_rows import read_entries
from pusher.core.raw_rows import raw_rows
from pusher.tikv.core.pieces import Piece
from pusher.tikv.core.region_errors import pause_s, refusal
from pusher.tikv.core.requests import Header, KvApi, Register, encode_request
from pusher.tikv.stream import StreamInbox, TikvStream
from tistream import ts as tso
from tistream.catalog.rows.kinds import TenantKind, stored_range
from tistream.clock import Clock
from tistream.codec.newest import KEY_VERSION, newest, states
from tistream.codec.raw.keys import user_keys
from tistream.errors import CorruptObject, StoreUnavailable
from tistream.keyrange import KeyRange
from tistream.model.change import ROWS
from tistream.tikv.channels import Tls
from tistream.tikv.core.api_versions import Api
from tistream.tikv.core.pd_messages import Region
from tistream.tikv.pd import PdClient
from tistream.tikv.raw_client import RawClient, RawPage
from tistream.tikv.region_leaders import Retries, TryLater, leader_at

_INBOX_BYTES = 64 << 20  # received but not decoded; the store waits for us beyond it
_TAKEN_BYTES = 8 << 20
_SILENCE_S = 120.0  # a scan without any message of its region for so long is begun again
_POLL_S = 0.5
_REQUEST = 1


class FeedScan:
    """Scans of one keyspace. `scan` may be called from several threads."""

    def __init__(
        self,
        pd: PdClient,
        keyspace_id: int,
        *,
        clock: Clock,
        stop: threading.Event,
        tls: Tls | None = None,
        patience_s: float = float("inf"),
        notice: Callable[[str], object] = lambda _: None,
    ) -> None:
        """`patience_s`: how long one region is retried before StoreUnavailable. `notice` gets the reason of each
        retry."""
        self._pd, self._keyspace_id, self._clock, self._stop, self._tls = pd, keyspace_id, clock, stop, tls
        self._retries = Retries(
            error="the keys cannot be read",
            clock=clock,
            stop=stop,
            first_s=0.1,
            max_s=5.0,
            patience_s=patience_s,
            notice=notice,
        )

    def scan(self, range_: KeyRange) -> Iterator[pa.Table]:
        """Pairs (schema PAIRS) of a range of user keys, by key; one table a region. StoreUnavailable when stopped or
        out of patience, InvalidInput when a store refuses the change feed."""
        left = stored_range(TenantKind.RAW, self._keyspace_id, range_)
        while True:
            part, pairs = self._retries.run(partial(self._first_region, left), range=str(left))
            yield pairs
            if not part.end or part.end == left.end:
                return
            left = KeyRange(part.end, left.end)

    def _first_region(self, left: KeyRange) -> tuple[KeyRange, pa.Table]:
        """The first part of `left` that lies in one region, and its pairs."""
        region, part = leader_at(self._pd, left)
        address = next((s.address for s in self._pd.stores() if s.id == region.leader_store_id), None)
        if address is None:
            raise TryLater(f"region {region.id} has no leader that PD knows")
        now_s = tso.physical_ms(self._pd.tso()) // 1000
        return part, _pairs(self._read(region, part, address), now_s)

    def _read(self, region: Region, part: KeyRange, address: str) -> pa.Table:
        """All rows of an opening scan (schema change.ROWS), and those written until its end."""
        inbox = StreamInbox(_INBOX_BYTES)
        inbox.begin(_REQUEST)
        inbox.wait_when_full(True)
        stream = TikvStream(_REQUEST, address, self._tls, inbox)
        try:
            header = Header(cluster_id=self._pd.cluster_id, kv_api=KvApi.RAW)
            register = Register(
                request_id=_REQUEST,
                region_id=region.id,
                conf_ver=region.conf_ver,
                version=region.version,
                range=part,
                checkpoint_ts=0,
            )
            stream.send(encode_request(header, register))
            return self._received(region, part, inbox)
        except CorruptObject as e:
            raise TryLater(f"store {region.leader_store_id} sent invalid data: {e}") from e
        finally:
            inbox.begin(0)
            stream.close()

    def _received(self, region: Region, part: KeyRange, inbox: StreamInbox) -> pa.Table:
        held = [ROWS.empty_table()]
        silent_at = self._clock.monotonic() + _SILENCE_S
        while not self._stop.is_set():
            inbox.wait(_POLL_S)
            messages, ended = inbox.take(_TAKEN_BYTES)
            for event in (event for message in messages for event in split_change_data(message)[0]):
                if (event.request_id, event.region_id) != (_REQUEST, region.id):
                    continue
                silent_at = self._clock.monotonic() + _SILENCE_S
                if event.error is not None:
                    piece = Piece(region_id=region.id, conf_ver=0, version=0, range=part, request_id=_REQUEST)
                    if (fatal := refusal(event.error, region.leader_store_id, piece)) is not None:
                        raise fatal
                    raise TryLater(f"region {region.id}: {event.error.kind.name}", at_least_s=pause_s(event.error))
                if event.entries is not None:
                    rows, initialized = read_entries(event.entries)
                    held.append(pa.Table.from_batches([raw_rows(rows, part, 0)]))
                    if initialized:
                        return pa.concat_tables(held)
            if ended is not None:
                raise TryLater(f"store {region.leader_store_id} ended the stream: {ended.reason}")
            if self._clock.monotonic() >= silent_at:
                raise TryLater(f"region {region.id} sends nothing", at_least_s=_SILENCE_S / 10)
        raise TryLater("stopped")


def _pairs(rows: pa.Table, now_s: int) -> pa.Table:
    """What is there of these writes: the newest of each key, if it is no deletion and has not expired."""
    living = newest(states(rows, KEY_VERSION))
    living = living.filter(pc.is_valid(living["value"])).combine_chunks()
    if not living.num_rows:
        return PAIRS.empty_table()
    columns = [user_keys(living["key"].chunk(0)), living["value"], living["expire_ts"]]
    return alive(pa.Table.from_arrays(columns, schema=PAIRS), now_s)


_TOLERANCE_S = 2  # a time to live is in whole seconds
_TRIES = 20


class RawScan:
    """Scans of one cluster. `scan` may be called from several threads."""

    def __init__(self, client: RawClient, *, threads: int = 8) -> None:
        """`threads`: requests for expiries at once, of each caller."""
        self._client, self._threads = client, threads
        self._asks_expiry = client.space.api is Api.V1TTL

    def scan(self, range_: KeyRange) -> Iterator[pa.Table]:
        """Pairs (schema PAIRS) of a range of keys, by key."""
        with ThreadPoolExecutor(self._threads, thread_name_prefix="expiries") as pool:
            for page in self._client.scan(range_):
                yield self._with_expiries(page, pool) if self._asks_expiry else pairs_of(page)

    def _with_expiries(self, page: RawPage, pool: ThreadPoolExecutor) -> pa.Table:
        keys, expiry = page.keys.to_pylist(), partial(self._expiry, self._client.pd_time())
        before = list(pool.map(expiry, keys))
        values: dict[bytes, bytes] = {}
        for again in self._client.scan(KeyRange(keys[0], keys[-1] + b"\0")):
            values.update(zip(again.keys.to_pylist(), again.values.to_pylist(), strict=True))
        expiries = []
        for key, first, last in zip(keys, before, pool.map(expiry, keys), strict=True):
            value = values.get(key)
            if last is not None and (value is None or not _agree(first, last)):
                value, last = self._read(key, expiry)
            if last is not None:
                expiries.append((key, value, last))
        columns = zip(*expiries, strict=True) if expiries else ((), (), ())
        return pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, PAIRS, strict=True)], schema=PAIRS)

    def _read(self, key: bytes, expiry: Callable[[bytes], int | None]) -> tuple[bytes | None, int | None]:
        """(value, expiry) of one moment; the expiry is None when there is no such key."""
        first = expiry(key)
        for _ in range(_TRIES):
            value = self._client.get(key)
            last = expiry(key)
            if last is None or (value is not None and _agree(first, last)):
                return value, last
            first = last
        raise StoreUnavailable("an entry is replaced faster than its value and its expiry can be read", key=key.hex())

    def _expiry(self, now_s: Callable[[], int], key: bytes) -> int | None:
        """Unix seconds, 0 = never; None when there is no such key."""
        left = self._client.get_ttl(key)
        return now_s() + left if left else left


def _agree(first: int | None, last: int) -> bool:
    """Whether both may be the same expiry."""
    return first == last or (bool(first) and bool(last) and abs((first or 0) - last) <= _TOLERANCE_S)


def pairs_of(page: RawPage) -> pa.Table:
    """A page as a table of schema PAIRS; none ends."""
    return pa.Table.from_arrays([page.keys, page.values, pa.array(np.zeros(len(page.keys), np.uint64))], schema=PAIRS)
