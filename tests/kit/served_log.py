"""A built log behind a real API server process: what tools read that speak HTTP or run Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from simulator.chaos.servers.ports import free_port
from simulator.chaos.servers.processes import TiStreamProcess, wait_until_ready
from tests.kit.log_builder import LogBuilder
from tistream.catalog.database.engine import Catalog
from tistream.objectstore.local import LocalStore


@dataclass
class ServedLog:
    """The log is for the test to build; the server sees it as it grows."""

    catalog: Catalog
    catalog_url: str
    store: LocalStore
    store_url: str
    log: LogBuilder
    url: str
    server: TiStreamProcess

    @property
    def base(self) -> str:
        """The address of the tenant."""
        return f"{self.url}/v1/clusters/1/tenants/1"


@contextmanager
def served_log(folder: Path) -> Iterator[ServedLog]:
    """A registered tenant in a SQLite catalog and a folder, and `tistream serve` over both."""
    catalog_url, store_url = f"sqlite:///{folder}/catalog.db", f"file://{folder}/bucket"
    catalog = Catalog(catalog_url)
    catalog.migrate()
    store = LocalStore(folder / "bucket")
    log = LogBuilder(catalog, store).register()
    port = free_port()
    where = ("--catalog", catalog_url, "--object-store", store_url)
    server = TiStreamProcess("serve", "--port", str(port), "--auth", "none", *where, log=folder / "serve.log")
    url = f"http://127.0.0.1:{port}"
    try:
        server.start()
        wait_until_ready(server, url)
        yield ServedLog(catalog, catalog_url, store, store_url, log, url, server)
    finally:
        server.kill()
        catalog.close()
