"""A modelled cluster on the loopback interface: PD and stores that answer over gRPC as real ones do.

    with ServedCluster(cluster_of(versions, floor_ts=S)) as served:
        PdClient([served.pd_address]) ...
        with served.changing() as cluster:
            cluster.prewrite(...)

    with ServedCluster(cluster, workload=Workload(seed, cluster, profile), steps_per_s=200, faults=STORM) as served:
        ...
        end_ts = served.settle()        nothing is left undecided, no more faults
        served.workload.committed       what a complete copy of the feed contains

    served.add_store(); served.move_leader(region_id, 4)      a store joins
    served.kill_store(1); served.remove_store(1)              a store dies, and never comes back
    served.restart_stores(away_s=1.0)                         all stop at once

Relations:

- one lock guards the model and its answers: `changing` holds it, and so does every answer;
- timestamps come from one oracle, PD's, which never gives one at or below anything that the model has seen;
- a store that is dead in the model, or restarts, answers nothing: its calls end with UNAVAILABLE, and requests under
  way are lost;
- resolved ts are sent every `resolved_s`; a client that does not read is congested, because a store's memory is
bounded.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import grpc

from simulator.core.cluster import Cluster
from simulator.core.raw_writes import RawWrites
from simulator.loopback.cluster import LoopbackCluster
from simulator.loopback.core.feed_wire import Request, region_form
from simulator.loopback.core.pd import NEWER_METHODS
from simulator.loopback.servers import unary
from simulator.raw_workload import RawWorkload
from simulator.serve.core.kv import (
    KV_CHECK_SECONDARIES,
    KV_CHECK_TXN,
    KV_GET,
    KV_RESOLVE_LOCK,
    KV_SCAN,
    KV_SCAN_LOCK,
    KvReads,
)
from simulator.serve.core.pd import ServedPd
from simulator.serve.core.raw import WRITES, RawStores, begins_within_s, mishaps
from simulator.serve.faults import CALM, Faults
from simulator.serve.feed import ServedFeed
from simulator.workload import Workload
from tistream import ts
from tistream.clock import Clock
from tistream.errors import TiStreamError
from tistream.tikv.core import wire
from tistream.tikv.core.api_versions import Api

CLUSTER_ID = 7_470_614_063_661_512_001
_TURN_S = 0.01
_STEPS_AT_ONCE = 10  # then others may have the lock
_UNREAD_BYTES_MAX = 256 << 20  # of a stream
_LATE = 0.9  # of the time that it has, a late write waits


class _LateWrite(NamedTuple):
    """A write without a client: a store begins with it at `due_s`, or not at all."""

    due_s: float
    until_s: float
    store_id: int
    write: Callable[[int, bytes], bytes]
    request: bytes


class PdStamps:
    """Timestamps of a store that asks PD for each."""

    def __init__(self, tso: Callable[[int], int]) -> None:
        self._tso = tso

    def take(self) -> int:
        return self._tso(1)

    def renewed(self, first: int, count: int) -> None: ...

    def led_elsewhere(self, region_max_ts: int) -> None: ...


def _as_it_is(key: bytes) -> bytes:
    return key


class ServedCluster(LoopbackCluster):
    """`close` it, or use it as a context.

    `raw_kv.on_write` is called with each write of a RawKV client; `raw_latency_s` gives the latency of a store.

    `stores`: their ids, 1 .. stores. `workload`, or `raw` of RawKV: changes the cluster, by itself `steps_per_s` times
    a second, which may be set at any time. `seed`: of the faults. `keyspaces`: names and ids that PD knows. `api`: of
    the stores.
    `plain_boundaries`: regions are cut at plain keys, as those of RawKV of API V1 are.
    `old_pd`: PD does not know the methods of its newer versions. `interceptors`: of all calls to PD and stores. `host`:
    what they listen on."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        stores: int = 3,
        workload: Workload | None = None,
        raw: RawWorkload | None = None,
        steps_per_s: float = 0.0,
        resolved_s: float = 1.0,
        faults: Faults = CALM,
        seed: int = 0,
        cluster_id: int = CLUSTER_ID,
        keyspaces: Mapping[str, int] | None = None,
        api: Api = Api.V1,
        plain_boundaries: bool = False,
        old_pd: bool = False,
        interceptors: Sequence[grpc.ServerInterceptor] = (),
        clock: Clock | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        super().__init__(range(1, stores + 1), clock, interceptors, host)
        boundary = _as_it_is if plain_boundaries else region_form
        self._cluster, self.workload, self.raw = cluster, workload, raw
        self._driver = raw or workload
        self.steps_per_s, self._resolved_s = steps_per_s, resolved_s
        self._last_ts = cluster.now_ts
        self._rand = random.Random(seed)
        self._dead: frozenset[int] = cluster.dead_stores
        self._back_at = float("-inf")  # when stores that restart answer again
        self.pd = ServedPd(
            cluster,
            cluster_id=cluster_id,
            address=self.pd_address,
            store_addresses=self._addresses,
            tso=self._tso,
            keyspaces=keyspaces,
            dice=self._rand.random,
            boundary=boundary,
        )
        self.reads = KvReads(cluster, api)
        self.reads.boundary = boundary
        if workload is not None:
            self.reads.is_alive = workload.is_alive
        self._writes = raw.writes if raw is not None else RawWrites(cluster, lambda: PdStamps(self._tso))
        self.raw_kv = RawStores(self._writes, api, self.reads, lambda: self._tso(1))
        self.raw_kv.died = lambda store_id: self._raw_died.append(store_id)
        self._raw_died: list[int] = []
        self._late: list[_LateWrite] = []
        self.raw_latency_s: Callable[[int], float] = lambda store_id: 0.0  #: of a RawKV request to a store
        self.feed = ServedFeed(cluster, cluster_id=cluster_id, rand=self._rand, api=api)
        self._set_faults(faults)
        self._start(self.pd, NEWER_METHODS if old_pd else ())

    @property
    def late_writes(self) -> int:
        """RawKV writes whose client has lost its connection, and which are not applied yet."""
        return len(self._late)

    @contextmanager
    def changing(self) -> Iterator[Cluster]:
        """The model, with exclusive access; its messages are sent before this returns."""
        with self._lock:
            yield self._cluster
            self._send(self._clock.monotonic())

    def tso(self) -> int:
        """A new timestamp."""
        with self._lock:
            return self._tso(1)

    def add_store(self) -> int:
        """A new store joins, which leads nothing yet; its id."""
        with self._lock:
            store_id = max(self.store_ids) + 1
            self._add_server(store_id)
            if self._driver is not None:
                self._driver.add_store(store_id)
            return store_id

    def move_leader(self, region_id: int, to_store: int) -> None:
        """Another store leads the region."""
        with self.changing():
            self._writes.move_leader(region_id, to_store)

    def kill_store(self, store_id: int) -> None:
        """A store dies; the others lead its regions."""
        with self.changing():
            self._kill(store_id)

    def remove_store(self, store_id: int) -> None:
        """A dead store never comes back, and PD does not list it any more."""
        with self.changing() as cluster:
            cluster.remove_store(store_id)

    def restart_stores(self, *, away_s: float) -> None:
        """All stores stop at once and answer again later: streams, registrations and writes in flight are lost, and
        other stores lead the regions. Nothing is written meanwhile."""
        with self.changing() as cluster:
            self._back_at = self._clock.monotonic() + away_s
            for store_id in set(self.store_ids) - cluster.dead_stores:
                self._kill(store_id)
                self._store_died(store_id)
                cluster.start_store(store_id)

    def settle(self) -> int:
        """End steps and faults, decide every transaction, and bring every store back that was not removed. Returns a
        timestamp above all of it, which every followed region's resolved ts reaches. Raises the error that ended the
        workload early."""
        with self._lock:
            self.check()
            self.steps_per_s, self._back_at = 0.0, float("-inf")
            self._set_faults(CALM)
            self._apply_late(float("inf"))
            if self._driver is not None:
                self._driver.drain()
            self._cluster.start_stores()
            self._send(self._clock.monotonic())
            return self._tso(1)

    def check(self) -> None:
        """Raises the error that stopped the cluster, if any."""
        if self._fault is not None:
            raise self._fault

    # -- time ----------------------------------------------------------------------------------------------------------

    def _play(self) -> None:
        began = self._clock.monotonic()
        resolve_at = refresh_at = began
        steps = 0.0
        while not self._clock.wait(self._closed, _TURN_S):
            with self._lock:
                now = self._clock.monotonic()
                steps += (now - began) * self.steps_per_s
                steps -= self._work(int(steps))
                self._cut_streams(now - began)
                self._apply_late(now)
                began = now
                self._send(now)
                if now >= resolve_at:
                    resolve_at = max(resolve_at + self._resolved_s, now)
                    self._resolve(now)
                if now >= refresh_at:
                    refresh_at = now + self._rand.random() * self.feed.faults.pd_late_s
                    self.pd.refresh(late=self.feed.faults.pd_late_s > 0)

    def _work(self, steps: int) -> int:
        """Run steps of the workload, sending messages between them; their number."""
        if self._driver is None or self._clock.monotonic() < self._back_at:
            return steps
        if self.raw is not None:  # its stores ask PD for timestamps all the time
            self.raw.advance_to(max(self._last_ts, ts.compose(self._clock.unix_ms())))
        for _ in range(min(steps, _STEPS_AT_ONCE)):
            self._driver.step()
            self._send(self._clock.monotonic())
        return steps

    def _resolve(self, now: float) -> None:
        now_ts = self._tso(1)
        self.feed.tick(self._driver.tick() if self._driver is not None else now_ts, now)
        self._hand_out()

    def _cut_streams(self, seconds: float) -> None:
        if self._rand.random() < self.feed.faults.cut * seconds:
            self.streams.cut_store(self._rand.choice(self.store_ids), lost=True)

    def _apply_late(self, now: float) -> None:
        """Apply the late writes that are due."""
        due = [late for late in self._late if late.due_s <= now]
        self._late = [late for late in self._late if late.due_s > now]
        for late in due:
            if not self._is_down(late.store_id) and self._clock.monotonic() <= late.until_s:
                late.write(late.store_id, late.request)

    def _send(self, now: float) -> None:
        """Send the clients what has happened in the model."""
        for store_id in self._cluster.dead_stores - self._dead:
            self._store_died(store_id)
        self._dead = self._cluster.dead_stores
        self.feed.pump(now)
        for stream in self.streams.slow(_UNREAD_BYTES_MAX):
            self.feed.congest(stream)
        self._hand_out()

    def _kill(self, store_id: int) -> None:
        others = [s for s in self.store_ids if s != store_id and s not in self._cluster.dead_stores]
        heirs = {region.region_id: self._rand.choice(others) for region in self._cluster.regions(store_id)}
        self._writes.kill_store(store_id, heirs)

    def _store_died(self, store_id: int) -> None:
        self.feed.store_died(store_id)
        self.streams.cut_store(store_id, lost=True)

    def _hand_out(self) -> None:
        for stream, data in self.feed.take_output():
            self.streams.put(stream, data)

    def _set_faults(self, faults: Faults) -> None:
        self.feed.faults = self.pd.faults = faults
        self.pd.refresh(late=faults.pd_late_s > 0)

    # -- clients ---------------------------------------------------------------------------------------------------

    def is_away(self, store_id: int) -> bool:
        is_down = store_id in self._cluster.dead_stores or self._clock.monotonic() < self._back_at
        return is_down or self._closed.is_set()

    def requested(self, stream: int, store_id: int, request: Request) -> None:
        self.feed.request(stream, store_id, request, self._clock.monotonic())
        self._hand_out()

    def stream_over(self, stream: int) -> None:
        self.feed.stream_over(stream)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _tso(self, count: int) -> int:
        """The last of `count` timestamps, above all that were issued."""
        given = self._last_ts if self._driver is None else max(self._last_ts, self._driver.last_ts)
        self._last_ts = max(given, self._cluster.now_ts, ts.compose(self._clock.unix_ms())) + count
        if self._driver is not None:
            self._driver.advance_to(self._last_ts)
        self.reads.latest_ts = self._last_ts
        return self._last_ts

    def _store_methods(self, store_id: int) -> dict[str, grpc.RpcMethodHandler]:
        def answered(read: Callable[[int, bytes], bytes]) -> grpc.RpcMethodHandler:
            return unary(partial(self._read, store_id, read))

        return {
            KV_SCAN: answered(self.reads.scan),
            KV_GET: answered(self.reads.get),
            KV_SCAN_LOCK: answered(self.reads.scan_lock),
            KV_CHECK_TXN: answered(self.reads.check_txn),
            KV_CHECK_SECONDARIES: answered(self.reads.check_secondaries),
            KV_RESOLVE_LOCK: answered(self.reads.resolve_lock),
            **{
                f"/tikvpb.Tikv/{name}": unary(partial(self._raw, store_id, read, name in WRITES))
                for name, read in self.raw_kv.methods.items()
            },
        }

    def _raw(
        self, store_id: int, read: Callable[[int, bytes], bytes], is_write: bool, request: bytes, context: Any
    ) -> bytes:
        """A RawKV request, with half of its latency before it is served."""
        latency_s, faults = self.raw_latency_s(store_id), self.feed.faults
        self._clock.wait(self._closed, latency_s / 2)
        if not context.is_active():  # the client does not wait any more, and the store drops it
            return b""
        with self._lock:
            mishap: wire.RegionError | None = None
            if self._rand.random() < faults.raw_refused:
                mishap = self._rand.choice(mishaps(0, busy_ms=20))
            refused = mishap is not None and not mishap.HasField("undetermined_result")
            is_lost = self._rand.random() < faults.raw_lost
            if is_write and self._rand.random() < faults.raw_late:
                self._keep_late(store_id, read, request)
                context.abort(grpc.StatusCode.UNAVAILABLE, "Connection reset by peer")
        answer = b"" if refused else self._read(store_id, read, request, context)
        if store_id in self._raw_died or is_lost:
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        self._clock.wait(self._closed, latency_s / 2)
        return answer if mishap is None else wire.RawWriteResponse(region_error=mishap).SerializeToString()

    def _keep_late(self, store_id: int, write: Callable[[int, bytes], bytes], request: bytes) -> None:
        time_s, now = begins_within_s(request), self._clock.monotonic()
        self._late.append(_LateWrite(now + time_s * _LATE, now + time_s, store_id, write, request))

    def _is_down(self, store_id: int) -> bool:
        return self.is_away(store_id) or store_id in self._raw_died

    def _read(self, store_id: int, read: Callable[[int, bytes], bytes], request: bytes, context: Any) -> bytes:
        with self._lock:
            if self._is_down(store_id):
                context.abort(grpc.StatusCode.UNAVAILABLE, "the store is away")
            try:
                return read(store_id, request)
            except TiStreamError as e:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(e))
        raise AssertionError("abort raises")
