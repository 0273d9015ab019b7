"""A process per role over MariaDB and a folder, with eyes in the catalog: who owns what, and how far everything is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from simulator.chaos.servers.processes import TiStreamProcess
from simulator.chaos.servers.services import Services
from tests.kit.waiting import eventually
from tistream import ts
from tistream.catalog.database.engine import Catalog
from tistream.catalog.work.stores import store_places
from tistream.catalog.work.tasks import frontier, task_places
from tistream.errors import CatalogUnavailable
from tistream.ids import Tenant

Held = Mapping[object, tuple[str | None, int]]  #: task id, or tenant and store -> owner and epoch


class ServiceCluster(Services):
    """Use it as a context: at its end every process is killed. `catalog_url` names an empty database."""

    def __init__(self, folder: Path, catalog_url: str, settings: Mapping[str, str] | None = None) -> None:
        """`settings` are TISTREAM_* variables of every process."""
        where = {"TISTREAM_CATALOG_URL": catalog_url, "TISTREAM_OBJECT_STORE_URL": f"file://{folder}/bucket"}
        super().__init__(folder, lambda _: {**where, **(settings or {})})
        self.catalog = Catalog(catalog_url)
        (folder / "bucket").mkdir()
        self.url = self.url_of("api-1")

    def __enter__(self) -> Self:
        self.catalog.migrate()
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()
        self.catalog.close()

    def start(self, *names: str) -> None:
        """Start `meta-1`, `api-1`, `sorter-2`, `replicate-1` ...; meta and api answer when this returns."""
        super().start(*names)
        if answering := [name for name in names if name.startswith(("meta", "api"))]:
            self.wait_until_ready(*answering)

    def push(self, *args: str) -> TiStreamProcess:
        """A pusher of tenant 1/1, started; killed with the others."""
        self.add("push", "push", "--url", self.url, "-c", "1", "-t", "1", *args)
        self.start("push")
        return self.processes["push"]

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
        return eventually(done, lambda: f"{what} is not so\n{self.logs()}")


def owners(held: Held) -> set[str | None]:
    """All that have something."""
    return {owner for owner, _ in held.values()}


def moved(before: Held, after: Held) -> dict[object, int]:
    """What was assigned in between -> how often."""
    return {key: epoch - before[key][1] for key, (_, epoch) in after.items() if epoch != before[key][1]}
