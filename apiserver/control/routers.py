"""The routes by which pushers and operators control the service, put together. Every API server answers them.

They are registration, push access, seeds, retention, consumers, changefeeds, maintenance jobs, the audit log, and what
operators see and do. The elected meta server acts on the rows that they write; it has no routes of its own.
"""

from __future__ import annotations

from fastapi import APIRouter

from apiserver.control.admin import admin_router
from apiserver.control.audit_log import audit_log_router
from apiserver.control.changefeeds import changefeed_router
from apiserver.control.consumers import consumer_router
from apiserver.control.jobs import job_router
from apiserver.control.push import push_router
from apiserver.control.push_access import PushPlace
from apiserver.control.registration import registration_router
from apiserver.control.retention import retention_router
from apiserver.control.seeds import seed_router
from apiserver.control.targets import target_router
from apiserver.sources import sources_of
from reading.served.services import Services


def control_routers(services: Services, push: PushPlace) -> list[APIRouter]:
    """All of them. Pushers are told to write to `push`."""
    catalog, sources = services.catalog, sources_of(services)
    return [
        admin_router(sources),
        audit_log_router(catalog, services.clock),
        job_router(sources),
        registration_router(catalog, push.url, push.issuer),
        push_router(catalog, services.store, push.issuer),
        retention_router(catalog, services.log_starts),
        consumer_router(catalog),
        changefeed_router(catalog, services.registry, services.clock, services.outbound),
        target_router(catalog, services.outbound),
        seed_router(catalog, services.store, services.registry, services.clock, services.skew_max_ms),
    ]
