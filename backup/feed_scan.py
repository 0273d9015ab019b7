"""The pairs of a keyspace of an API V2 cluster with their expiries, by the change feed from timestamp 0, region by
region.

    region of the next key -> registration at checkpoint 0 -> newest version of each key -> INITIALIZED -> pairs by key

RawScan has no expiries, and asking for each key's is a request a key. An opening scan from 0 sends the newest version
of every key with its expiry. Writes that arrive meanwhile count if they come before the end of the scan, so each key
shows a version no older than at the moment when its region was registered.

Each region starts where the one before ended, so each key is read once, whatever splits, merges or moves. A region that
cannot be read is looked up again and retried, with growing pauses, for as long as the patience lasts. One region at a
time is held in memory for each caller of `scan`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from backup.core.pairs import PAIRS, alive
from pusher.core.cdcpb import split_change_data
from pusher.core.cdcpb_rows import read_entries
from pusher.core.raw_rows import raw_rows
from pusher.tikv.core.pieces import Piece
from pusher.tikv.core.region_errors import pause_s, refusal
from pusher.tikv.core.requests import Header, KvApi, Register, encode_request
from pusher.tikv.stream import FeedStream, Inbox
from tistream import ts as tso
from tistream.catalog.tenancy.kinds import TenantKind, stored_range
from tistream.clock import Clock
from tistream.codec.newest import KEY_VERSION, newest, states
from tistream.codec.raw.keys import user_keys
from tistream.errors import CorruptObject, ErrorKind, StoreUnavailable, TiStreamError
from tistream.keyrange import KeyRange
from tistream.model.change import ROWS
from tistream.runtime.service import Backoff
from tistream.tikv.channels import Tls
from tistream.tikv.core.pd_messages import Region
from tistream.tikv.core.regions import plain_range, region_form
from tistream.tikv.pd import PdClient

_INBOX_BYTES = 64 << 20  # received but not decoded; the store waits for us beyond it
_TAKEN_BYTES = 8 << 20
_SILENCE_S = 120.0  # a scan without any message of its region for so long is begun again
_POLL_S = 0.5
_REQUEST = 1


class _Later(Exception):
    """The region cannot be read now."""

    def __init__(self, why: str, at_least_s: float = 0.0) -> None:
        self.at_least_s = at_least_s
        super().__init__(why)


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
        self._patience_s, self._notice = patience_s, notice

    def scan(self, wanted: KeyRange) -> Iterator[pa.Table]:
        """Pairs (schema PAIRS) of a range of user keys, by key; one table a region. StoreUnavailable when stopped or
        out of patience, InvalidInput when a store refuses the change feed."""
        left = stored_range(TenantKind.RAW, self._keyspace_id, wanted)
        while True:
            part, pairs = self._retried(left)
            yield pairs
            if not part.end or part.end == left.end:
                return
            left = KeyRange(part.end, left.end)

    def _retried(self, left: KeyRange) -> tuple[KeyRange, pa.Table]:
        """The first part of `left` that lies in one region, and its pairs."""
        ends_at = self._clock.monotonic() + self._patience_s
        backoff = Backoff(first_s=0.1, max_s=5.0, rand=random.Random())
        while True:
            try:
                return self._first_region(left)
            except (_Later, TiStreamError) as e:
                if isinstance(e, TiStreamError) and e.kind is not ErrorKind.RETRY:
                    raise
                why, at_least_s = str(e), e.at_least_s if isinstance(e, _Later) else 0.0
            if self._clock.monotonic() >= ends_at:
                raise StoreUnavailable("the keys cannot be read", range=str(left), cause=why)
            self._notice(why)
            if self._clock.wait(self._stop, max(backoff.next_s(), at_least_s)):
                raise StoreUnavailable("stopped", range=str(left), cause=why)

    def _first_region(self, left: KeyRange) -> tuple[KeyRange, pa.Table]:
        region = self._pd.get_region(region_form(left.start))
        found = None if region is None else plain_range(region)
        part = None if found is None else found.intersect(left)
        if region is None or part is None or part.start != left.start:
            raise _Later(f"PD lists no region at the key {left.start.hex()}")
        address = next((s.address for s in self._pd.stores() if s.id == region.leader_store_id), None)
        if address is None:
            raise _Later(f"region {region.id} has no leader that PD knows")
        now_s = tso.physical_ms(self._pd.tso()) // 1000
        return part, _pairs(self._read(region, part, address), now_s)

    def _read(self, region: Region, part: KeyRange, address: str) -> pa.Table:
        """All rows of an opening scan (schema change.ROWS), and those written until its end."""
        inbox = Inbox(_INBOX_BYTES)
        inbox.begin(_REQUEST)
        inbox.wait_when_full(True)
        stream = FeedStream(_REQUEST, address, self._tls, inbox)
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
            raise _Later(f"store {region.leader_store_id} sent invalid data: {e}") from e
        finally:
            inbox.begin(0)
            stream.close()

    def _received(self, region: Region, part: KeyRange, inbox: Inbox) -> pa.Table:
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
                    raise _Later(f"region {region.id}: {event.error.kind.name}", pause_s(event.error))
                if event.entries is not None:
                    rows, initialized = read_entries(event.entries)
                    held.append(pa.Table.from_batches([raw_rows(rows, part, 0)]))
                    if initialized:
                        return pa.concat_tables(held)
            if ended is not None:
                raise _Later(f"store {region.leader_store_id} ended the stream: {ended.reason}")
            if self._clock.monotonic() >= silent_at:
                raise _Later(f"region {region.id} sends nothing", _SILENCE_S / 10)
        raise _Later("stopped")


def _pairs(rows: pa.Table, now_s: int) -> pa.Table:
    """What is there of these writes: the newest of each key, if it is no deletion and has not expired."""
    found = newest(states(rows, KEY_VERSION))
    found = found.filter(pc.is_valid(found["value"])).combine_chunks()
    if not found.num_rows:
        return PAIRS.empty_table()
    columns = [user_keys(found["key"].chunk(0)), found["value"], found["expire_ts"]]
    return alive(pa.Table.from_arrays(columns, schema=PAIRS), now_s)
