"""The port on which a push shows its probes and metrics. A pusher has no catalog and no lease: it is ready when the
control plane knows its tenant."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tistream.ids import Tenant


@contextmanager
def pusher_probes(url: str, tenant: Tenant, host: str, port: int | None) -> Iterator[None]:
    """Serve them for as long as the push goes on; None: do not. ConfigError when the port is taken."""
    if port is None:
        yield
        return
    from pusher.control import HttpControl
    from tistream.cli.server import HttpServer
    from tistream.http.probes import Probes, probe_app

    control = HttpControl(url, tenant)

    def control_plane() -> None:
        control.push_bundle()

    server = HttpServer(probe_app(Probes(checks={"control plane": control_plane})), host, port)
    server.start()
    print(f"probes at {server.url}", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        server.stop()
        control.close()
