"""A modelled cluster on the loopback interface: PD and stores that answer over gRPC as real ones do.

    with ServedCluster(cluster_of(versions, floor_ts=S)) as served:
        PdClient([served.pd_address]) ...
        with served.changing() as cluster:
            cluster.prewrite(...)

Relations:

- one lock guards the model and everything that is said of it: `changing` holds it, and so does every answer;
- timestamps come from one oracle, PD's, which never gives one at or below anything that the model has seen;
- a store that is dead in the model answers nothing: its calls end with UNAVAILABLE.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any

import grpc

from tistream import ts
from tistream.clock import Clock, SystemClock
from tistream.errors import TiStreamError
from tistream.simulator.cluster import Cluster
from tistream.simulator.loopback.pd import NEWER_METHODS
from tistream.simulator.loopback.pd_service import pd_methods
from tistream.simulator.loopback.servers import LoopbackServer, unary
from tistream.simulator.serve.kv import KV_GET, KV_SCAN, KvReads
from tistream.simulator.serve.pd import ServedPd

CLUSTER_ID = 7_470_614_063_661_512_001
_PD = 0  # among the servers, which are known by their stores' ids


class ServedCluster:
    """`close` it, or use it as a context.

    `stores`: their ids, 1 .. stores. `keyspaces`: names and ids that PD knows. `api_v2`: whether the stores take keys
    of keyspaces. `old_pd`: PD does not know the methods of its newer versions."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        stores: int = 3,
        cluster_id: int = CLUSTER_ID,
        keyspaces: Mapping[str, int] | None = None,
        api_v2: bool = False,
        old_pd: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._cluster, self._clock = cluster, clock or SystemClock()
        self._lock = threading.Condition()
        self._last_ts = cluster.now_ts
        self.store_ids = tuple(range(1, stores + 1))
        self._servers = {store_id: LoopbackServer() for store_id in (_PD, *self.store_ids)}
        self.pd_address = self._servers[_PD].address  #: host:port
        self.pd = ServedPd(
            cluster,
            cluster_id=cluster_id,
            address=self.pd_address,
            store_addresses={store_id: self._servers[store_id].address for store_id in self.store_ids},
            tso=self._tso,
            keyspaces=keyspaces,
        )
        self.reads = KvReads(cluster, api_v2=api_v2)
        self._servers[_PD].start(pd_methods(self.pd, self._lock, without=NEWER_METHODS if old_pd else ()))
        for store_id in self.store_ids:
            self._servers[store_id].start(self._store_methods(store_id))

    @contextmanager
    def changing(self) -> Iterator[Cluster]:
        """The model, while nobody else sees or changes it."""
        with self._lock:
            yield self._cluster

    def tso(self) -> int:
        """A new timestamp."""
        with self._lock:
            return self._tso(1)

    def close(self) -> None:
        """Stop the servers; streams end."""
        LoopbackServer.stop(list(self._servers.values()))

    def __enter__(self) -> ServedCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _tso(self, count: int) -> int:
        self._last_ts = max(self._last_ts, self._cluster.now_ts, ts.compose(self._clock.unix_ms())) + count
        return self._last_ts

    def _store_methods(self, store_id: int) -> dict[str, grpc.RpcMethodHandler]:
        def answered(read: Callable[[int, bytes], bytes]) -> grpc.RpcMethodHandler:
            return unary(partial(self._read, store_id, read))

        return {KV_SCAN: answered(self.reads.scan), KV_GET: answered(self.reads.get)}

    def _read(self, store_id: int, read: Callable[[int, bytes], bytes], request: bytes, context: Any) -> bytes:
        with self._lock:
            if store_id in self._cluster.dead_stores:
                context.abort(grpc.StatusCode.UNAVAILABLE, "the store is away")
            try:
                return read(store_id, request)
            except TiStreamError as e:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(e))
        raise AssertionError("abort raises")
