"""Looks at what a service would start over, as its settings say: catalog, bucket, and who issues push credentials."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from tistream.diagnostics.findings import Finding, Look, Verdict, check
from tistream.errors import ConfigError

if TYPE_CHECKING:
    from tistream.clock import Clock
    from tistream.config import Settings


def examine_deployment(settings: Settings, clock: Clock) -> list[Finding]:
    """All checks of what the settings name. ConfigError when they name neither catalog nor bucket."""
    from tistream.catalog.database.examine import examine_catalog

    catalog, bucket = settings.catalog.url, settings.object_store.url
    if not catalog and not bucket:
        raise ConfigError("Say what to look at: --catalog, --object-store, or --config with [catalog], [object_store].")
    found = examine_catalog(catalog, clock) if catalog else []
    if bucket:
        found += _bucket(bucket, clock)
    if settings.push.role_arn:
        found.append(check("push credentials", lambda: _issued(settings)))
    return found


def _bucket(url: str, clock: Clock) -> list[Finding]:
    from tistream.objectstore.examine import examine_store
    from tistream.objectstore.factory import open_store

    reached = check("object store", lambda: _reached(url))
    if reached.verdict is Verdict.FAIL:
        return [reached]
    return [reached, *examine_store(open_store(url), clock, uuid.uuid4().hex[:16])]


def _reached(url: str) -> Look:
    """Without making a folder that is missing."""
    from tistream.objectstore.factory import open_store

    some = next(iter(open_store(url, foreign=True).list("")), None)
    return Verdict.OK, "it answers" if some else "it answers, and is empty", {"empty": some is None}


def _issued(settings: Settings) -> Look:
    """Credentials for a tenant that is nobody's are issued, and forgotten."""
    from tistream.cli.assembly import push_issuer
    from tistream.ids import Tenant

    issuer = push_issuer(settings)
    assert issuer is not None
    issuer.issue(Tenant(0, 0))
    minutes = issuer.duration_s // 60
    return (
        Verdict.OK,
        f"the role of pushers can be taken; it counts for {minutes} minutes",
        {"valid_s": issuer.duration_s},
    )
