"""PD client: timestamps, regions, stores, keyspaces and GC barriers.

    PdClient(["10.0.0.1:2379"]).scan_regions(start, end, limit) -> [Region ...]

Region keys are in region form (memcomparable); b"" is infinity. The caller handles gaps in a region list (during a
split) and regions without a leader. Errors: StoreUnavailable from PdChannel when PD is away; PdRefused for error
answers and invalid ones. Both are transient.

History is protected from garbage collection by a GC barrier, or by a service safe point, the older form. Both expire
after their ttl. `hold_history` uses what the server supports, and raises TsExpired when the history was collected.

`enter_keyspace` makes regions those of one keyspace of TiDB, in its own keys. A barrier then names the keyspace. Where
garbage is collected for all keyspaces together PD applies it to all; older PD servers have only such barriers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from tistream.clock import Clock, SystemClock
from tistream.errors import CorruptObject, InvalidInput, NotFound, TsExpired
from tistream.outbound.checked_names import CheckedNames
from tistream.tikv.channels import Tls
from tistream.tikv.core import pd_messages as m
from tistream.tikv.core import wire
from tistream.tikv.core.keyspaces import WHOLE, KeyspaceKeys
from tistream.tikv.core.pd_messages import HeaderError, PdRefused, Region, Store, StoreStats
from tistream.tikv.pd_channel import PdChannel
from tistream.tikv.pd_tso import TsoClient

T = TypeVar("T")

_PD, _KEYSPACE = "/pdpb.PD/", "/keyspacepb.Keyspace/"
_BEHIND_SAFE_POINT = "ErrGCBarrierTSBehindTxnSafePoint"


class PdClient:
    """One cluster's PD. Thread-safe; `close` it."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        tls: Tls | None = None,
        clock: Clock | None = None,
        patience_s: float = 15.0,
        rand: random.Random | None = None,
        connection: int | None = None,
        names: CheckedNames | None = None,
    ) -> None:
        """`connection`, `names`: see `Channels`."""
        self._channel = PdChannel(
            endpoints,
            clock=clock or SystemClock(),
            tls=tls,
            patience_s=patience_s,
            rand=rand,
            connection=connection,
            names=names,
        )
        self._tso = TsoClient(self._channel)
        self._unknown: set[str] = set()  # methods that the server does not have
        self._keys = WHOLE

    @property
    def cluster_id(self) -> int:
        """The cluster's id; asks PD the first time."""
        return self._channel.cluster_id

    def tso(self) -> int:
        """A new timestamp, larger than all earlier ones."""
        return self._tso.take()

    def rest(self) -> None:
        """Keep no threads until the next timestamp is asked for."""
        self._tso.rest()

    @property
    def newest_tso(self) -> int:
        """The largest timestamp taken so far; 0 = none."""
        return self._tso.newest

    def get_region(self, key: bytes) -> Region | None:
        """The region of a key in region form; None when PD knows none."""
        outer = self._keys.outer_boundary(key, is_end=False)
        region = self._call("GetRegion", wire.GetRegionRequest(region_key=outer), m.read_region)
        return None if region is None else self._keys.inner_region(region)

    def scan_regions(self, start: bytes, end: bytes, limit: int) -> list[Region]:
        """The regions that touch [start, end), in key order, at most `limit` (> 0). May have gaps."""
        if limit <= 0:
            raise InvalidInput("the limit must be positive", limit=limit)
        start, end = self._keys.outer_boundary(start, is_end=False), self._keys.outer_boundary(end, is_end=True)
        regions = [self._keys.inner_region(region) for region in self._scan(start, end, limit)]
        return [region for region in regions if region is not None]

    def _scan(self, start: bytes, end: bytes, limit: int) -> list[Region]:
        ranges = [wire.KeyRange(start_key=start, end_key=end)]
        request = wire.BatchScanRegionsRequest(ranges=ranges, limit=limit, contain_all_key_range=True)
        answer = self._if_known("BatchScanRegions", request)
        if answer is not None:
            try:
                return self._read(m.read_batch_regions, answer)
            except PdRefused as e:  # there is a gap: ScanRegions accepts that
                if e.facts.get("type") != HeaderError.REGIONS_NOT_CONTAIN_ALL_KEY_RANGE:
                    raise
        older = wire.ScanRegionsRequest(start_key=start, limit=limit, end_key=end)
        return self._call("ScanRegions", older, m.read_scanned_regions)

    def stores(self) -> list[Store]:
        """All stores except tombstones."""
        return self._call("GetAllStores", wire.GetAllStoresRequest(exclude_tombstone_stores=True), m.read_stores)

    def store_stats(self, store_id: int) -> StoreStats:
        return self._call("GetStore", wire.GetStoreRequest(store_id=store_id), m.read_store_stats)

    def keyspace(self, name: str) -> wire.Keyspace:
        """The keyspace of this name. NotFound when there is none."""
        request, read = wire.LoadKeyspaceRequest(name=name), partial(m.read, wire.LoadKeyspaceResponse)
        try:
            return self._call("LoadKeyspace", request, read, service=_KEYSPACE).keyspace
        except PdRefused as e:
            if e.facts.get("type") != HeaderError.ENTRY_NOT_FOUND:
                raise
            raise NotFound("the keyspace does not exist", keyspace=name, cause=e.message) from e

    def keyspace_of_id(self, keyspace_id: int) -> wire.Keyspace | None:
        """The keyspace with this id. NotFound when there is none; None when the server is too old to say."""
        first = wire.GetAllKeyspacesRequest(start_id=keyspace_id, limit=1)  # with this id or a larger one
        answer = self._if_known("GetAllKeyspaces", first, service=_KEYSPACE)
        if answer is None:
            return None
        for keyspace in self._read(partial(m.read, wire.GetAllKeyspacesResponse), answer).keyspaces:
            if keyspace.id == keyspace_id:
                return keyspace
        raise NotFound("the keyspace does not exist", id=keyspace_id)

    def enter_keyspace(self, name: str) -> KeyspaceKeys:
        """Use the keys of this keyspace from now on. Errors as `enabled_keyspace`."""
        self._keys = KeyspaceKeys(self.enabled_keyspace(name))
        return self._keys

    def enabled_keyspace(self, name: str) -> int:
        """The id of a keyspace. NotFound when it does not exist, InvalidInput when it is not enabled."""
        keyspace = self.keyspace(name)
        if keyspace.state:
            raise InvalidInput("the keyspace is not enabled", keyspace=name, id=keyspace.id, state=keyspace.state)
        return int(keyspace.id)

    # -- history ---------------------------------------------------------------------------------------------------

    def hold_history(self, name: str, ts: int, ttl_s: int) -> None:
        """Keep everything above `ts` for `ttl_s` (> 0) seconds. TsExpired when some of it was collected."""
        if ttl_s <= 0:
            raise InvalidInput("the time to live must be positive", ttl_s=ttl_s)
        try:
            answer = self._if_known("SetGCBarrier", self._barrier(name, ts, ttl_s))
            if answer is not None:
                self._read(m.read_barrier, answer)
                return
        except PdRefused as e:
            if _BEHIND_SAFE_POINT not in e.message:
                raise
            raise TsExpired("PD has collected history above the timestamp", ts=ts, cause=e.message) from e
        kept_from = self.update_service_safe_point(name, ts, ttl_s)
        if kept_from > ts:
            raise TsExpired("PD has collected history above the timestamp", ts=ts, kept_from=kept_from)

    def release_history(self, name: str) -> None:
        """Release a barrier; it need not exist."""
        answer = self._if_known("DeleteGCBarrier", self._barrier(name))
        if answer is not None:
            self._read(m.read_barrier, answer)
        else:
            self.update_service_safe_point(name, 0, 0)

    def update_service_safe_point(self, name: str, ts: int, ttl_s: int) -> int:
        """Set the older form of a barrier; a ttl of 0 or less removes it. Returns the smallest timestamp that PD keeps:
        above `ts` means that nothing is held."""
        request = wire.UpdateServiceGcSafePointRequest(service_id=name.encode(), ttl=ttl_s, safe_point=ts)
        read = partial(m.read, wire.UpdateServiceGcSafePointResponse)
        return self._call("UpdateServiceGCSafePoint", request, read).min_safe_point

    def gc_safe_point(self) -> int:
        """History at or below it may be collected; 0 = GC has never run."""
        answer = self._if_known("GetGCState", wire.GcBarrierRequest())
        if answer is not None:
            return self._read(partial(m.read, wire.GetGcStateResponse), answer).state.txn_safe_point
        return self._call("GetGCSafePoint", wire.Request(), partial(m.read, wire.GetGcSafePointResponse)).safe_point

    def close(self) -> None:
        self._tso.close()
        self._channel.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _barrier(self, name: str, ts: int = 0, ttl_s: int = 0) -> wire.GcBarrierRequest:
        scope = None if self._keys.id is None else wire.KeyspaceScope(keyspace_id=self._keys.id)
        return wire.GcBarrierRequest(keyspace_scope=scope, barrier_id=name, barrier_ts=ts, ttl_seconds=ttl_s)

    def _call(self, method: str, request: Message, read: Callable[[bytes], T], *, service: str = _PD) -> T:
        """Call a method that every server has. UNIMPLEMENTED, the only gRPC error that PdChannel passes on, is
        transient: a server that is being replaced, or a proxy, may answer so."""
        try:
            answer = self._channel.call(service + method, partial(m.encoded, request))
        except grpc.RpcError as e:
            raise PdRefused("PD does not have the method", method=method) from e
        return self._read(read, answer)

    def _read(self, read: Callable[[bytes], T], answer: bytes) -> T:
        """Parse an answer. After an error or an invalid answer the leader is looked up again."""
        try:
            body = read(answer)
            named = m.check_header(answer)
            if named != self._channel.cluster_id:  # an empty answer would read as "none" or "done"
                raise CorruptObject("an answer of PD has no cluster id, or another one", cluster_id=named)
            return body
        except PdRefused:
            self._channel.forget_leader()
            raise
        except CorruptObject as e:
            self._channel.forget_leader()
            raise PdRefused("PD sent an invalid answer", cause=str(e)) from e

    def _if_known(self, method: str, request: Message, *, service: str = _PD) -> bytes | None:
        """The answer; None when the server lacks the method and needs an older form."""
        if method in self._unknown:
            return None
        try:
            return self._channel.call(service + method, partial(m.encoded, request))
        except grpc.RpcError:
            self._unknown.add(method)
            return None
