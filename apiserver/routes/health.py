"""Is the process alive, is it ready, what is wrong, what does it measure: `tistream.http.probes` of this server."""

from __future__ import annotations

from fastapi import APIRouter

from reading.deps import Services
from tistream.http.probes import Probes, probe_router, store_answers


def router(services: Services) -> APIRouter:
    """Unauthenticated probes."""
    checks = {"catalog": services.catalog.ping, "object store": store_answers(services.store), **services.checks}
    return probe_router(Probes(checks=checks, problems=services.problems, collect=services.collect))
