"""Probes of the API server: alive, ready, what is wrong, metrics."""

from __future__ import annotations

from reading.deps import Services
from tistream.http.readiness import Probes, store_answers


def probes_of(services: Services) -> Probes:
    """Readiness needs the catalog, the object store and every service in this process."""
    checks = {"catalog": services.catalog.ping, "object store": store_answers(services.store), **services.checks}
    return Probes(checks=checks, problems=services.problems, reported=services.reported, collect=services.collect)
