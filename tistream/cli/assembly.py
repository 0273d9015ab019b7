"""The composition root: settings become components, components become running services.

Everything that knows all rooms is here. `embedded` runs the whole service in one process over a folder; the other
functions build one service each for deployments with a process per role. Nothing else builds Settings or components.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tistream import __version__, config
from tistream.catalog.engine import Catalog
from tistream.cli import allocator, warm
from tistream.cli.server import HttpServer
from tistream.clock import SystemClock
from tistream.config import Settings
from tistream.drain import Drainable, drain
from tistream.errors import ConfigError, StoreUnavailable
from tistream.objectstore.factory import open_store
from tistream.objectstore.protocol import ObjectStore
from tistream.service import Problem, Service, ServiceGroup

if TYPE_CHECKING:
    from fastapi import FastAPI

    from dispatcher.worker import DispatcherWorker
    from sorter.worker import SorterWorker
    from tistream.feed import Feed
    from tistream.ids import Tenant


@dataclass(slots=True)
class Parts:
    """What every service needs."""

    settings: Settings
    catalog: Catalog
    store: ObjectStore
    clock: SystemClock


class Running:
    """Services with an HTTP server in front of them, where there is one."""

    def __init__(
        self,
        parts: Parts,
        services: Sequence[Service],
        app: FastAPI | None = None,
        closing: Callable[[], None] = lambda: None,
        *,
        drains: Drainable | None = None,
        drain_timeout_s: int = 0,
    ) -> None:
        """`drains`: the worker whose things are moved off before it ends in good order."""
        self.parts = parts
        self._drains, self._drain_timeout_s = drains, drain_timeout_s
        self._closing = closing
        self.services = ServiceGroup("services", services, parts.clock)
        server = parts.settings.server
        self.http = HttpServer(app, server.host, server.port) if app is not None else None

    def start(self) -> None:
        """Start everything; returns when the port answers."""
        self.services.start()
        if self.http is not None:
            self.http.start()

    @property
    def url(self) -> str:
        """Where the HTTP port is; empty without one."""
        return self.http.url if self.http is not None else ""

    def greeting(self) -> str:
        """What to tell the person who started it."""
        where = f" at {self.http.url}" if self.http is not None else ""
        names = ", ".join(member.name for member in self.services.members) or "API server"
        return f"TiStream {__version__}{where} ({names}). Ctrl-C stops it."

    def stopped(self) -> Problem | None:
        """The first part that has ended by an error, if one has."""
        return next((p for p in self.services.problems() if p.fatal), None)

    def drain(self, hurry: threading.Event) -> None:
        """Before `close`: wait until others have what this process holds, or `hurry` is set."""
        if self._drains is not None and self._drain_timeout_s:
            drain(self.parts.catalog, self._drains, self.parts.clock, self._drain_timeout_s, hurry)

    def close(self) -> None:
        """Stop everything in order."""
        if self.http is not None:
            self.http.stop()
        self.services.stop()
        self._closing()
        self.parts.catalog.close()


def load_settings(path: Path | None, flags: Mapping[str, object]) -> Settings:
    """Settings from file, environment and flags. TISTREAM_URL belongs to the client commands and is left out."""
    environ = {k: v for k, v in os.environ.items() if k not in ("TISTREAM_URL", "TISTREAM_CONFIG")}
    return config.load(path, environ, flags)


def open_parts(settings: Settings) -> Parts:
    """Open catalog and object store; both are needed by every service."""
    if not settings.catalog.url or not settings.object_store.url:
        raise ConfigError(
            "Say where catalog and bucket are: --catalog and --object-store, or [catalog] and [object_store]."
        )
    catalog = Catalog(settings.catalog.url)
    catalog.migrate()
    return Parts(settings=settings, catalog=catalog, store=open_store(settings.object_store.url), clock=SystemClock())


def embedded(settings: Settings, data: Path) -> Running:
    """Everything in one process, kept in `data`: catalog.db and bucket/."""
    root = data.resolve()
    try:
        (root / "bucket").mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ConfigError(f"Cannot keep data in {root}: {e.strerror}.") from e
    where = {
        "catalog": {"url": settings.catalog.url or f"sqlite:///{root}/catalog.db"},
        "object_store": {"url": settings.object_store.url or f"file://{root}/bucket"},
    }
    allocator.keep_freed_memory()
    warm.start()
    parts = open_parts(settings.model_copy(update=_sections(where)))
    follow = _dispatcher(parts, "dispatcher-1")
    sorters = [_sorter(parts, name, follow) for name in ("sorter-1", "sorter-2")]
    members = [_meta(parts, "meta-1"), follow, *sorters]
    return Running(parts, members, _api(parts, members, control=True))


def meta(parts: Parts, name: str) -> Running:
    """A meta server with its control plane."""
    from metaserver.app import create_app

    worker = _meta(parts, name)
    app = create_app(parts.catalog, parts.settings.object_store.url, worker.problems, parts.store)
    return Running(parts, [worker], app)


def dispatcher(parts: Parts, name: str) -> Running:
    """A dispatcher with its Flight port."""
    from dispatcher.flight_server import FlightFeedServer

    settings = parts.settings.dispatcher
    server = FlightFeedServer(settings.host, settings.port)
    worker = _dispatcher(parts, name, f"grpc://{settings.host}:{server.port}")
    server.feed = worker
    timeout_s = settings.drain_timeout_s
    return Running(parts, [worker], closing=server.shutdown, drains=worker, drain_timeout_s=timeout_s)


def sorter(parts: Parts, name: str) -> Running:
    """A sorter that subscribes to the dispatchers the catalog names."""
    from tistream.catalog import stores, workers
    from tistream.feed_flight import FlightFeed

    def locate(tenant: Tenant, store_id: int) -> str | None:
        owner = next((s.dispatcher for s in stores.list_stores(parts.catalog, tenant) if s.store_id == store_id), None)
        return next(
            (w.address for w in workers.list_workers(parts.catalog, "dispatcher") if w.worker_id == owner), None
        )

    allocator.keep_freed_memory()
    worker = _sorter(parts, name, FlightFeed(locate))
    return Running(parts, [worker], drains=worker, drain_timeout_s=parts.settings.sorter.drain_timeout_s)


def api_server(parts: Parts) -> Running:
    """An API server with the console."""
    warm.start()
    return Running(parts, [], _api(parts, [], control=False))


def _api(parts: Parts, services: Sequence[Service], *, control: bool) -> FastAPI:
    """The API server's application; with `control` also the control plane's routes, on the same port."""
    from apiserver.app import create_app
    from apiserver.deps import Services

    def problems() -> list[dict[str, object]]:
        return [p.shown() for service in services for p in service.problems()]

    def running() -> None:
        stopped = [p for service in services for p in service.problems() if p.fatal]
        if stopped:
            raise StoreUnavailable(f"{stopped[0].source} has stopped: {stopped[0].message}")

    wired = Services.create(parts.catalog, parts.store, parts.clock, checks={"services": running}, problems=problems)
    extra = []
    if control:
        from metaserver.routes import control_router
        from metaserver.seed_routes import seed_router

        extra.append(control_router(parts.catalog, parts.settings.object_store.url))
        extra.append(seed_router(parts.catalog, parts.store))
    return create_app(wired, extra)


def _meta(parts: Parts, name: str) -> Service:
    from metaserver.loop import MetaWorker

    settings = parts.settings.meta
    interval_s = settings.interval_ms / 1000
    return MetaWorker(parts.catalog, parts.store, parts.clock, name, settings.data_tasks, interval_s=interval_s)


def _dispatcher(parts: Parts, name: str, address: str = "") -> DispatcherWorker:
    from dispatcher.tail import TailTiming
    from dispatcher.worker import DispatcherWorker

    settings = parts.settings.dispatcher
    return DispatcherWorker(
        parts.catalog,
        parts.store,
        parts.clock,
        name,
        address,
        timing=TailTiming(poll_s=settings.poll_interval_ms / 1000),
        reclaim_s=settings.reclaim_interval_ms / 1000,
    )


def _sorter(parts: Parts, name: str, feed: Feed) -> SorterWorker:
    from sorter.spill import Spill, default_budget_bytes
    from sorter.worker import SorterWorker

    settings = parts.settings.sorter
    return SorterWorker(
        parts.catalog,
        parts.store,
        feed,
        parts.clock,
        worker_id=name,
        flush_interval_s=settings.flush_interval_ms / 1000,
        snapshot_interval_s=settings.snapshot_interval_ms / 1000,
        spill=Spill(
            settings.memory_mb << 20 or default_budget_bytes(),
            Path(settings.spill_folder) if settings.spill_folder else None,
        ),
    )


def _sections(where: Mapping[str, Mapping[str, str]]) -> dict[str, object]:
    return {
        "catalog": config.CatalogSettings(**where["catalog"]),
        "object_store": config.ObjectStoreSettings(**where["object_store"]),
    }
