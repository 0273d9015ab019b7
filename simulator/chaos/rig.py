"""A whole deployment on this machine: real processes on a real MariaDB and a real S3 server, fed by a modelled cluster.

    modelled TiKV (this process) <- two pushers -> proxy -> S3 server        proxies: bucket, database, control
                                        |           ^
                                      proxy -> two meta servers, dispatchers, sorters, API servers -> proxy -> MariaDB

Every process is one of TiStream's own commands. The judge reads the database directly, not through its proxy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import orjson
import zstandard

from simulator.chaos.plan import BUCKET, CONTROL, DATABASE, PROCESS, Choice, Harm, PlannedHarm
from simulator.chaos.servers.durable_s3 import DurableS3
from simulator.chaos.servers.fake_clock import FakeClock
from simulator.chaos.servers.mariadb import MariaDBServer
from simulator.chaos.servers.processes import TiStreamProcess
from simulator.chaos.servers.proxy import Proxy, Trouble
from simulator.chaos.servers.s3server import CREDENTIALS
from simulator.chaos.servers.services import Services
from simulator.hostile import HOSTILE
from simulator.judging.core.takeover import Item
from simulator.profiles import DEFAULT, WorkloadProfile, weights
from simulator.serve.content import workload_cluster
from simulator.serve.faults import STORM
from simulator.serve.served import ServedCluster
from simulator.workload import Workload
from tistream import ts as tso
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.tenants import get_tenant, register_tenant
from tistream.catalog.work.stopped_items import list_stopped_items
from tistream.catalog.work.stores import list_stores
from tistream.catalog.work.tasks import list_tasks
from tistream.client import Client, connect
from tistream.clock import SystemClock
from tistream.errors import TiStreamError
from tistream.ids import Tenant
from tistream.objectstore.layout import SchemaSnapKey

TENANT = Tenant(1, 1)
HOSTILE_TENANTS = {Tenant(1, 10 + n): name for n, name in enumerate(HOSTILE)}  #: and the fault of their snapshots
STORES = 4
START_S = 120.0
_PAUSE_S = 0.1
_BUCKET = "tistream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many of each service, and how much happens upstream."""

    metas: int = 2
    dispatchers: int = 2
    sorters: int = 2
    apis: int = 2
    data_tasks: int = 3
    steps_per_s: float = 200.0  #: of the modelled workload
    tables: int = 6
    rows: int = 400  #: handles of a table


class Rig:
    """The deployment, running while it is a context."""

    def __init__(self, folder: Path, seed: int, size: Size) -> None:
        self.folder, self.size = folder, size
        self._seed = seed
        self._open = ExitStack()
        self.services = Services(folder, self._environment)
        self.processes = self.services.processes
        self._proxies: dict[str, Proxy] = {}
        self._clocks: dict[str, FakeClock] = {}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    # -- targets of faults ------------------------------------------------------------------------------------------

    def targets(self) -> dict[str, Sequence[Choice]]:
        """Everything, by name."""
        return {**dict.fromkeys(self.processes, PROCESS), "database": DATABASE, "bucket": BUCKET, "control": CONTROL}

    def begin(self, event: PlannedHarm) -> None:
        """Do the harm."""
        process, proxy = self.processes.get(event.target), self._proxies.get(event.target)
        match event.harm, process, proxy:
            case Harm.CLOCK, _, _:
                self._clocks[event.target].shift(event.step_s)
            case Harm.KILL, TiStreamProcess(), _:
                process.kill()
            case Harm.PAUSE, TiStreamProcess(), _:
                process.pause()
            case Harm.KILL, None, Proxy():
                self._server(event.target).kill()
            case Harm.CUT, None, Proxy():
                proxy.cut()
            case _, None, Proxy():
                proxy.trouble = Trouble(event.harm)
            case _:
                raise ValueError(f"no such fault: {event}")

    def end(self, event: PlannedHarm) -> None:
        """Let it be over."""
        process, proxy = self.processes.get(event.target), self._proxies.get(event.target)
        if event.harm is Harm.CLOCK:
            self._clocks[event.target].shift(0)
        elif process is not None and event.harm is Harm.PAUSE:
            process.resume()
        elif process is not None:
            process.start()
        elif event.harm is Harm.KILL:
            self._server(event.target).start()
        elif proxy is not None and proxy.trouble is not Trouble.PASS:
            proxy.trouble = Trouble.PASS

    def revive(self) -> list[str]:
        """Restart the processes that ended by themselves (fenced after a pause), as a supervisor would. Their names."""
        ended = [name for name, process in self.processes.items() if process.ended_by_itself]
        for name in ended:
            self.processes[name].start()
        return ended

    # -- state ------------------------------------------------------------------------------------------

    def holding(self) -> dict[Item, tuple[str | None, int]]:
        """Every store and task, with its worker and epoch."""
        holding: dict[Item, tuple[str | None, int]] = {}
        for store in list_stores(self.catalog):
            holding["store", store.tenant, store.store_id] = (store.dispatcher, store.dispatcher_epoch)
        for task in list_tasks(self.catalog):
            holding["task", task.task_id] = (task.owner, task.epoch)
        return holding

    def durable_ts(self) -> int:
        """Up to where the log is complete."""
        return min(row.durable_ts for row in list_tasks(self.catalog, TENANT))

    def unnamed(self) -> list[str]:
        """The hostile tenants that the list of stops does not name."""
        named = {row.stopped.tenant for row in list_stopped_items(self.catalog)}
        return [f"{tenant}: {name}" for tenant, name in HOSTILE_TENANTS.items() if tenant not in named]

    # -- inside ----------------------------------------------------------------------------------------------------

    def _server(self, target: str) -> MariaDBServer | DurableS3:
        return self._database if target == "database" else self._bucket

    def _start(self) -> None:
        self._start_servers()
        self._start_upstream()
        self._start_services()
        self._add_hostile_tenants()  # first, so that any harm to the activation of others shows
        with self.control() as client:
            client.tenant(TENANT.cluster_id, TENANT.tenant_id).register()
        # one pusher starts the tenant with a snapshot of the schema; the others continue from it
        half = STORES // 2
        self._start_pusher("pusher-1", range(1, half + 1))
        _wait(lambda: get_tenant(self.catalog, TENANT).start_ts > 0, "the tenant does not begin", self.services.logs)
        self._start_pusher("pusher-2", range(half + 1, STORES + 1))
        begun = self.durable_ts()
        _wait(lambda: self.durable_ts() > begun, "no data comes", self.services.logs)

    def _start_servers(self) -> None:
        (self.folder / "db").mkdir()
        self._database = MariaDBServer(self.folder / "db", self._clock("database"))
        self._database.start()
        self._open.callback(self._database.kill)
        self._bucket = DurableS3(self.folder / "s3")
        self._bucket.start()
        self._open.callback(self._bucket.kill)
        self._bucket.server.create_bucket(_BUCKET)
        self._proxies["database"] = self._open.enter_context(Proxy(self._database.port))
        self._proxies["bucket"] = self._open.enter_context(Proxy(self._bucket.port))
        self.catalog = Catalog(self._database.url())
        self._open.callback(self.catalog.close)
        self.catalog.migrate()

    def _start_upstream(self) -> None:
        profile = _profile(self.size)
        cluster = workload_cluster(profile, floor_ts=tso.compose(SystemClock().unix_ms()), regions=12)
        self.workload = Workload(self._seed, cluster, profile, whole_meta=True)
        self.upstream = self._open.enter_context(
            ServedCluster(
                cluster,
                stores=STORES,
                workload=self.workload,
                steps_per_s=self.size.steps_per_s,
                faults=replace(STORM, cut=0.02),
                seed=self._seed,
            )
        )

    def _start_services(self) -> None:
        size = self.size
        metas, apis = _names("meta", size.metas), _names("api", size.apis)
        self.api_urls = [self.services.url_of(name) for name in apis]
        ports = [int(url.rpartition(":")[2]) for url in self.api_urls]
        self._proxies["control"] = self._open.enter_context(Proxy(*ports))
        self._open.callback(self.services.kill)
        self.services.start(*metas, *apis, *_names("dispatcher", size.dispatchers), *_names("sorter", size.sorters))
        self.services.wait_until_ready(*metas, *apis)

    def _add_hostile_tenants(self) -> None:
        ts = tso.compose(SystemClock().unix_ms())
        good = {"ts": str(ts), "schema_version": 1, "dbs": [], "tables": []}
        for tenant, name in HOSTILE_TENANTS.items():
            data = zstandard.compress(orjson.dumps(HOSTILE[name](good)))
            self._bucket.server.put(_BUCKET, str(SchemaSnapKey(tenant=tenant, ts=ts)), data)
            register_tenant(self.catalog, tenant)

    def _start_pusher(self, name: str, stores: range) -> None:
        to = ("--url", f"http://127.0.0.1:{self._proxies['control'].port}", "--cluster", "1", "--tenant", "1")
        of = [f"--store-id={n}" for n in stores]
        self.services.add(name, "push", "--pd", self.upstream.pd_address, *to, *of)
        self.services.start(name)

    def _clock(self, name: str) -> dict[str, str]:
        self._clocks[name] = FakeClock(self.folder / f"{name}.clock")
        return self._clocks[name].environment

    def _environment(self, name: str) -> dict[str, str]:
        bucket = replace(self._bucket.server, endpoint=f"http://127.0.0.1:{self._proxies['bucket'].port}")
        return {
            **CREDENTIALS,
            "TISTREAM_CATALOG_URL": self._database.url(self._proxies["database"].port),
            "TISTREAM_OBJECT_STORE_URL": bucket.url(_BUCKET),
            "TISTREAM_META_DATA_TASKS": str(self.size.data_tasks),
            **self._clock(name),
        }

    def control(self) -> Client:
        """A client of the API servers, through the proxy of the pushers."""
        return connect(f"http://127.0.0.1:{self._proxies['control'].port}")


#: of two thousand steps: some topology changes each second, a store that dies each ten, a DDL each few
_ACTIONS = weights(
    "begin 300, advance 1400, rewrite_lock 80, roll_back_unseen 60, roll_back_committed 60,"
    " split 10, merge 10, move_leader 15, kill_store 1, start_store 4, ddl 20"
)


def _profile(size: Size) -> WorkloadProfile:
    """A load that leaves the machine room for all the processes."""
    return replace(DEFAULT, name="chaos", stores=STORES, tables=size.tables, rows=size.rows, hot=0.1, actions=_ACTIONS)


def _names(role: str, count: int) -> list[str]:
    return [f"{role}-{n + 1}" for n in range(count)]


def _wait(is_so: Callable[[], bool], otherwise: str, logs: Callable[[], str]) -> None:
    clock, never = SystemClock(), threading.Event()
    deadline = clock.monotonic() + START_S
    while not is_so():
        if clock.monotonic() > deadline:
            raise TiStreamError(f"{otherwise}\n{logs()}")
        clock.wait(never, _PAUSE_S)
