"""Builds the worker that writes changefeeds to their destinations, for `tistream up` and `tistream replicate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from destinations.protocol import Destination
    from replicator.worker import ReplicationWorker
    from tistream.catalog.work.lanes import LaneJob
    from tistream.cli.running import Parts


def replication_worker(parts: Parts, name: str) -> ReplicationWorker:
    """A worker under this name."""
    from destinations.opening import open_destination
    from reading.deps import Services
    from replicator.worker import ReplicationWorker
    from tistream.catalog.tenancy.tenants import get_tenant

    def opened(job: LaneJob) -> Destination:
        lane = job.lane
        row = get_tenant(parts.catalog, lane.tenant)
        return open_destination(job.sink_uri, row, lane.tenant, lane.changefeed_id, lane.number, job.lanes, parts.clock)

    services = Services.create(parts.catalog, parts.store, parts.clock)
    return ReplicationWorker(services, name, opened, slots=max(1, parts.settings.replication.threads))
