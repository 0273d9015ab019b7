"""A process per role over MariaDB and a folder, with eyes in the catalog: who owns what, and how far everything is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from simulator.chaos.servers.ports import free_port
from simulator.chaos.servers.processes import TiStreamProcess, wait_until_ready
from tests.kit.waiting import eventually
from tistream import ts
from tistream.catalog.database.engine import Catalog
from tistream.catalog.work.stores import store_places
from tistream.catalog.work.tasks import frontier, task_places
from tistream.errors import CatalogUnavailable
from tistream.ids import Tenant

Held = Mapping[object, tuple[str | None, int]]  #: task id, or tenant and store -> owner and epoch


class ServiceCluster:
    """Use it as a context: at its end every process is killed. `catalog_url` names an empty database."""

    def __init__(self, folder: Path, catalog_url: str, settings: Mapping[str, str] | None = None) -> None:
        """`settings` are TISTREAM_* variables of every process."""
        self.folder, self._env = folder, dict(settings or {})
        self.catalog = Catalog(catalog_url)
        self._where = ("--catalog", catalog_url, "--object-store", f"file://{folder}/bucket")
        (folder / "bucket").mkdir()
        self.url, self._meta = (f"http://127.0.0.1:{free_port()}" for _ in range(2))  #: of the API, and of the probes
        self.processes: dict[str, TiStreamProcess] = {}

    def __enter__(self) -> Self:
        self.catalog.migrate()
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self.processes.values():
            process.kill()
        self.catalog.close()

    def start(self, *names: str) -> None:
        """Start `meta-1`, `api-1`, `sorter-2`, `replicate-1` ...; meta and api answer when this returns."""
        for name in names:
            if name not in self.processes:
                self.processes[name] = TiStreamProcess(*self._args(name), log=self._log(name), env=self._env)
            self.processes[name].start()
        for name in names:
            if url := {"meta": self._meta, "api": self.url}.get(name.partition("-")[0]):
                wait_until_ready(self.processes[name], url)

    def push(self, *args: str) -> TiStreamProcess:
        """A pusher of tenant 1/1, started; killed with the others."""
        process = TiStreamProcess("push", "--url", self.url, "-c", "1", "-t", "1", *args, log=self._log("push"))
        self.processes["push"] = process
        process.start()
        return process

    def tasks(self) -> Held:
        """Who has which task, at which epoch."""
        return {row.task_id: (row.owner, row.epoch) for row in task_places(self.catalog)}

    def stores(self) -> Held:
        """Who has which store, at which epoch."""
        return {(row.tenant, row.store_id): (row.dispatcher, row.epoch) for row in store_places(self.catalog)}

    def reached(self) -> float:
        """Up to which second, by the upstream's clock, everything is in the log; 0 before it began or while the
        catalog is away."""
        try:
            durable_timestamps = [row.durable_ts for row in frontier(self.catalog, Tenant(1, 1))]
        except CatalogUnavailable:
            return 0.0
        return ts.physical_ms(min(durable_timestamps, default=0)) / 1000

    def wait_for(self, what: str, done: Callable[[], bool]) -> float:
        """Wait until it is so; how many seconds that took."""

        def said() -> str:
            outputs = (f"{name}:\n{p.output()[-1500:]}" for name, p in self.processes.items())
            return "\n".join([f"{what} is not so", *outputs])

        return eventually(done, said)

    def _args(self, name: str) -> tuple[str, ...]:
        match name.partition("-")[0]:
            case "meta":
                return ("meta", "--name", name, "--metrics-port", self._meta.rpartition(":")[2], *self._where)
            case "api":
                return ("serve", "--port", self.url.rpartition(":")[2], *self._where)
            case "sorter":
                return ("sort", "--name", name, *self._where)
            case "replicate":
                return ("replicate", "--name", name, *self._where)
            case "dispatcher":
                return ("dispatch", "--name", name, *self._where)
        raise ValueError(name)

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


def owners(held: Held) -> set[str | None]:
    """All that have something."""
    return {owner for owner, _ in held.values()}


def moved(before: Held, after: Held) -> dict[object, int]:
    """What was assigned in between -> how often."""
    return {key: epoch - before[key][1] for key, (_, epoch) in after.items() if epoch != before[key][1]}
