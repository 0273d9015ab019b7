"""A process of real pushers, of any number of tenants, each store with a modelled feed.

    python -m benchmarks.load.push 'JSON of a Load'

Lines on its input: `start` (transactions begin), `stop` (no more of them), `report` (a line of JSON); it ends with its
input. One thread steps the pushers that write and IDLE_THREADS the others, because a step may wait for the API server,
and pushers of different clusters do not wait for each other. Uploads have separate threads, as in any pusher.
"""

from __future__ import annotations

import heapq
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TypeVar

import httpx2
import orjson

from benchmarks.load.feed import FIRST_TABLE_ID, LoadStore, regions, schema
from pusher.control import HttpControl, retrying
from pusher.flush_schedule import FlushSchedule
from pusher.frontier import FrontierReader
from pusher.schema_push import put_schema_snapshot
from pusher.worker import PusherWorker
from tistream import ts as tso
from tistream.clock import SystemClock
from tistream.errors import ErrorKind, TiStreamError
from tistream.ids import Tenant
from tistream.objectstore.layout import SchemaSnapKey
from tistream.objectstore.metered import open_metered
from tistream.objectstore.protocol import ObjectStore

T = TypeVar("T")

READY_S = 600.0
IDLE_THREADS = 6
STEP_S = 15.0  #: a pusher is stepped at least this often: it asks whether it was replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load. Tenants are 1/1 and the following."""

    url: str = ""
    tenants: int = 1
    writing: int = 1  #: of the tenants, the first ones
    tables: int = 10  #: of each tenant
    active: int = 10  #: of the tables of a tenant that writes
    stores: int = 2  #: of each tenant
    rows_per_s: float = 5000.0  #: of each store of a tenant that writes
    flush_s: float = 1.0
    idle_s: float = 1.0  #: of a tenant that does not write


class Pushers:
    """All of them."""

    def __init__(self, load: Load) -> None:
        self._load, self._clock, self._rand = load, SystemClock(), random.Random(1)
        self._stop = threading.Event()
        self._http = httpx2.Client(timeout=30.0)
        self.workers: list[tuple[PusherWorker, LoadStore]] = []
        self.error = ""
        self.began = time.monotonic()

    def start(self) -> None:
        """Push the schemas, wait until the tenants are active, and begin to step."""
        load = self._load
        tables = list(range(FIRST_TABLE_ID, FIRST_TABLE_ID + load.tables))
        edges = regions(tables, load.stores)
        controls = [self._control(1 + i) for i in range(load.tenants)]
        ts = tso.compose(int(time.time() * 1000))
        text, bucket = schema(ts, tables), None
        for control in controls:
            bundle = self._again(control.push_bundle)
            bucket = bucket or open_metered(bundle.object_store)
            put_schema_snapshot(bucket, SchemaSnapKey(tenant=control.tenant, ts=ts), text)
        assert bucket is not None
        for n, control in enumerate(controls):
            frontier = FrontierReader(control, self._clock)
            while not frontier.read():
                if time.monotonic() - self.began > READY_S:
                    raise TimeoutError("a tenant does not begin")
                time.sleep(0.1)
            schedule = FlushSchedule.for_tenant(control.tenant, self._clock, flush_s=load.flush_s, idle_s=load.idle_s)
            for store_id in range(1, load.stores + 1):
                own = tables[store_id - 1 :: load.stores]
                self._add(bucket, control, frontier, schedule, store_id, own, edges[store_id], writes=n < load.writing)

    def _add(
        self,
        bucket: ObjectStore,
        control: HttpControl,
        frontier: FrontierReader,
        schedule: FlushSchedule,
        store_id: int,
        tables: list[int],
        bounds: list[bytes],
        *,
        writes: bool,
    ) -> None:
        load = self._load
        source = LoadStore(
            store_id,
            tables,
            active=-(-load.active // load.stores) if writes else 0,
            rows_per_s=load.rows_per_s,
            bounds=bounds,
            schedule=schedule,
            clock=self._clock,
            seed=control.tenant.tenant_id,
        )
        worker = PusherWorker(
            source=source, control=control, frontier=frontier, store=bucket, clock=self._clock, rand=self._rand
        )
        worker.start(self._stop)
        self.workers.append((worker, source))

    def _control(self, tenant_id: int) -> HttpControl:
        control = HttpControl(self._load.url, Tenant(1, tenant_id))
        control._http.close()
        control._http = self._http  # a connection for each of a thousand tenants would distort the measurement
        return control

    def _again(self, ask: Callable[[], T]) -> T:
        answer = retrying(ask, stop=self._stop, clock=self._clock, rand=self._rand)
        assert answer is not None, "it is stopped before it has begun"
        return answer

    def run(self) -> None:
        """Step the pushers that are due until closed."""
        writes = [n for n, (_, source) in enumerate(self.workers) if source.writes]
        idle = [n for n, (_, source) in enumerate(self.workers) if not source.writes]
        parts = [writes, *(idle[i::IDLE_THREADS] for i in range(IDLE_THREADS))]
        threads = [threading.Thread(target=self._run, args=(part,), name="pushers", daemon=True) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _run(self, numbers: list[int]) -> None:
        due = [(0.0, n) for n in numbers]
        heapq.heapify(due)
        try:
            while not self._stop.is_set() and due:
                at, n = heapq.heappop(due)
                if (pause := at - time.monotonic()) > 0:
                    time.sleep(min(pause, 0.2))
                    if pause > 0.2:
                        heapq.heappush(due, (at, n))
                        continue
                worker, source = self.workers[n]
                try:
                    worker.step()
                except TiStreamError as e:
                    if e.kind is not ErrorKind.RETRY:
                        raise
                next_at, now = source.due_at, time.monotonic()
                heapq.heappush(due, (min(next_at, now + STEP_S) if next_at else now + 0.1, n))
        except Exception as e:  # noqa: BLE001 - sent with the next report
            self.error = repr(e)

    def go(self, going: bool) -> None:
        for _, source in self.workers:
            source.going = going and source.writes

    def report(self) -> dict[str, object]:
        return {
            "error": self.error,
            "committed": sum(source.committed for _, source in self.workers),
            "files": sum(worker.uploads().files for worker, _ in self.workers),
        }

    def close(self) -> None:
        self._stop.set()


def main() -> None:
    pushers = Pushers(Load(**orjson.loads(sys.argv[1])))
    pushers.start()
    thread = threading.Thread(target=pushers.run, name="pushers", daemon=True)
    thread.start()
    print(orjson.dumps({"ready_s": time.monotonic() - pushers.began}).decode(), flush=True)
    for line in sys.stdin:
        match line.strip():
            case "start":
                pushers.go(True)
            case "stop":
                pushers.go(False)
        print(orjson.dumps(pushers.report()).decode(), flush=True)
    pushers.close()
    thread.join(5)


def argument(load: Load) -> str:
    """The process's argument."""
    return orjson.dumps(asdict(load)).decode()


if __name__ == "__main__":
    main()
