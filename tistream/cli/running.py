"""What runs in a process: its services in order, their HTTP server and probes, from the start to the end.

A service that requires keys says at its start: on a terminal the first owner's key, once per catalog, and a link that
opens the console; elsewhere, where they would stay in a log, the command that creates one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog

from tistream import __version__
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.server_settings import CommitsNotDurable, lost_in_a_crash
from tistream.catalog.work.drain import Drainable, drain
from tistream.cli.ports import Certificates
from tistream.clock import SystemClock
from tistream.config import Settings
from tistream.http.readiness import Probes
from tistream.model.problem import Problem
from tistream.objectstore.generations import LOOK_S, GenerationWatch
from tistream.objectstore.protocol import ObjectStore
from tistream.runtime.proxies import is_loopback
from tistream.runtime.service import Repeating, Service, ServiceGroup

if TYPE_CHECKING:
    from fastapi import FastAPI

    from tistream.catalog.database.engine import Catalog
    from tistream.cli.server import HttpServer


log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Parts:
    """What every service needs."""

    settings: Settings
    catalog: Catalog
    store: ObjectStore
    clock: SystemClock
    watch: GenerationWatch
    certificates: Certificates | None = None  #: of the HTTP ports

    @property
    def own_services(self) -> list[Service]:
        """Those that every process with such parts has."""
        watch = Repeating("generation", self.watch.look, interval_s=LOOK_S, clock=self.clock)
        return [watch] if self.certificates is None else [watch, self.certificates]


class Running:
    """Services, and their HTTP server if they have one."""

    def __init__(
        self,
        parts: Parts,
        services: Sequence[Service],
        app: FastAPI | None = None,
        closing: Callable[[], None] = lambda: None,
        probes: Probes | None = None,
        *,
        has_console: bool = False,
        drains: Drainable | None = None,
        drain_timeout_s: int = 0,
    ) -> None:
        """`probes`: served on the port of [metrics], if set, by a process without `app`. `drains`: the worker that is
        drained before the process ends."""
        self.parts = parts
        self._has_console = has_console
        self._drains, self._drain_timeout_s = drains, drain_timeout_s
        self._closing = closing
        audit = [app.state.audit] if app is not None else []
        server, metrics = parts.settings.server, parts.settings.metrics
        self.services = ServiceGroup("services", [*services, *audit, *parts.own_services], parts.clock)
        followers = getattr(app.state, "followers", None) if app is not None else None
        closing = followers.close if followers is not None else lambda: None
        self.http = None
        if app is not None:
            self.http = _served(app, parts, server.host, server.port, closing)
        self.probes = None
        probes = probes or (app.state.probes if app is not None else None)
        if probes is not None and metrics.port >= 0:
            from tistream.http.probes import probe_app

            self.probes = _served(probe_app(probes), parts, metrics.host, metrics.port)

    def start(self) -> None:
        """Start everything; returns when the port answers."""
        for weak in lost_in_a_crash(self.parts.catalog.server_settings() or {}):
            log.warning("the catalog's database may lose transactions", code=CommitsNotDurable.code, setting=weak)
        self.services.start()
        for server in (self.http, self.probes):
            if server is not None:
                server.start()

    @property
    def url(self) -> str:
        """Address of the HTTP port; empty without one."""
        return self.http.url if self.http is not None else ""

    def greeting(self) -> str:
        """The message at the start."""
        where = f" at {self.http.url}" if self.http is not None else ""
        where += f" with probes at {self.probes.url}" if self.probes is not None else ""
        names = ", ".join(member.name for member in self.services.members)
        said = [f"TiStream {__version__}{where} ({names}). Ctrl-C stops it."]
        if self.http is not None and self.parts.settings.server.auth == "keys":
            said += first_words(self.parts.catalog, self.http.url, has_console=self._has_console)
        return "\n".join(said)

    def stopped(self) -> Problem | None:
        """The first part that an error has ended, if any."""
        return next((p for p in self.services.problems() if p.ends_process), None)

    def drain(self, skip: threading.Event) -> None:
        """Before `close`: wait until others own what this process owns, or `skip` is set."""
        if self._drains is not None and self._drain_timeout_s:
            drain(self.parts.catalog, self._drains, self.parts.clock, self._drain_timeout_s, skip)

    def close(self) -> None:
        """Stop everything in order."""
        for server in (self.http, self.probes):
            if server is not None:
                server.stop()
        self.services.stop()
        self._closing()
        self.parts.catalog.close()


def _served(app: FastAPI, parts: Parts, host: str, port: int, closing: Callable[[], None] = lambda: None) -> HttpServer:
    """The application with an id for each request, at a port. Imported here: a process without one needs neither."""
    from tistream.cli.server import ConnectionLimits, HttpServer
    from tistream.http.access_log import RequestLog

    settings = parts.settings.server
    limits = ConnectionLimits(slow_s=settings.slow_consumer_s, address_max=settings.address_connections_max)
    server = HttpServer(app, host, port, closing, limits, parts.certificates)
    app.add_middleware(RequestLog, access_log=parts.settings.log.access)  # around all others
    return server


def first_words(catalog: Catalog, url: str, *, has_console: bool) -> list[str]:
    """Lines below the greeting. A secret is for a terminal only: what a service prints elsewhere is kept in logs."""
    from tistream.catalog.rows.audit import Deed
    from tistream.catalog.tenancy.keys import list_keys
    from tistream.cli.recorded import record_done
    from tistream.http.auth.core.keys import parse_key
    from tistream.http.auth.core.roles import Role
    from tistream.http.auth.issue import first_owner_key, login_code

    lines: list[str] = []
    if _has_terminal():
        key = first_owner_key(catalog)
        if key is not None:
            record_done(catalog, Deed(operation="first owner key", target=f"key_id={parse_key(key).key_id}"))
            lines += [
                f"  owner key  {key}",
                "             shown this once and kept nowhere: `tistream login` remembers it for you",
            ]
        owners = [row.key_id for row in list_keys(catalog) if row.role == Role.OWNER and row.state == "living"]
        who = parse_key(key).key_id if key is not None else next(iter(owners), None)
        if has_console and who is not None:
            record_done(catalog, Deed(operation="console code", target=f"key_id={who}"))
            lines.append(f"  console    {url}/login#{login_code(catalog, who)}")
            lines.append("             signs you in once, within ten minutes; later: tistream login --console")
    elif not any(row.role == Role.OWNER for row in list_keys(catalog)):
        lines.append(
            "  owner key  none yet: `tistream key owner`, with the settings or the --data of this process, creates it"
        )
    place = urlsplit(url)
    if place.scheme == "http" and not is_loopback(place.hostname or ""):
        lines.append("  note       keys travel as plain text here: give the port a certificate (--tls-cert, --tls-key)")
    return lines


def _has_terminal() -> bool:
    """Whether the process was started by hand. A container in the background has no input."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
