"""Probes of the API server: alive, ready, what is wrong, metrics."""

from __future__ import annotations

from reading.served.services import Services
from tistream.http.readiness import Probes, catalog_answers, export_age, store_answers


def probes_of(services: Services) -> Probes:
    """Readiness needs the catalog, the object store and every service in this process."""
    process = services.process
    checks = {
        "catalog": catalog_answers(services.catalog, services.clock),
        "object store": store_answers(services.store),
        **process.checks,
    }
    return Probes(
        checks=checks,
        problems=services.problems,
        reported=process.reported,
        facts=export_age(services.catalog),
        collect=process.collect,
    )
