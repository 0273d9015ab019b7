"""Targets that operators allow for a tenant: where the service may write for its administrators.

Rules are texts as in `tistream.outbound.rules`. A writer reads them when it opens a destination.
"""

from __future__ import annotations

from sqlalchemy import bindparam, func, select

from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import EventKind, record_event
from tistream.catalog.database.tables import allowed_targets, ensure_row, of_asked_tenant, tenant_ids
from tistream.catalog.tenancy.tenants import lock_tenant
from tistream.errors import InvalidInput, NotFound
from tistream.ids import Tenant
from tistream.outbound.policy import Policy, Terms
from tistream.outbound.rules import Rule

TARGETS_MAX = 100  #: of a tenant

_t = allowed_targets.c
_ALL = select(_t.target).where(of_asked_tenant(allowed_targets)).order_by(_t.target)
_COUNT = select(func.count()).select_from(allowed_targets).where(of_asked_tenant(allowed_targets))
_REMOVE = allowed_targets.delete().where(of_asked_tenant(allowed_targets), _t.target == bindparam("asked_target"))


def list_targets(catalog: Catalog, tenant: Tenant) -> list[str]:
    """The rules of a tenant, in order."""
    with catalog.reading() as conn:
        return [str(target) for target in conn.execute(_ALL, tenant_ids(tenant)).scalars()]


def allow_target(catalog: Catalog, tenant: Tenant, target: str, *, actor: str = "") -> None:
    """Add a rule; idempotent. InvalidInput for one that is none, or one too many."""
    rule = Rule.parse(target)
    with catalog.transaction() as conn:
        lock_tenant(conn, tenant)
        if rule.text in conn.execute(_ALL, tenant_ids(tenant)).scalars().all():
            return
        if conn.execute(_COUNT, tenant_ids(tenant)).scalar_one() >= TARGETS_MAX:
            raise InvalidInput(f"A tenant has {TARGETS_MAX} allowed targets at most.", option="target")
        ensure_row(conn, allowed_targets, cluster_id=tenant.cluster_id, tenant_id=tenant.tenant_id, target=rule.text)
        record_event(conn, EventKind.TENANT_ALLOWED, tenant, tenant=tenant, actor=actor, target=rule.text)


def disallow_target(catalog: Catalog, tenant: Tenant, target: str, *, actor: str = "") -> None:
    """Remove a rule. NotFound when the tenant has none of this text."""
    with catalog.transaction() as conn:
        lock_tenant(conn, tenant)
        if not conn.execute(_REMOVE, {**tenant_ids(tenant), "asked_target": target}).rowcount:
            raise NotFound("The tenant has no allowed target of this text.", target=target)
        record_event(conn, EventKind.TENANT_DISALLOWED, tenant, tenant=tenant, actor=actor, target=target)


def policy_of(catalog: Catalog, terms: Terms, tenant: Tenant, *, is_operated: bool) -> Policy:
    """What may be opened for a target of this tenant. `is_operated`: an operator has named it."""
    rules = tuple(Rule.parse(text) for text in list_targets(catalog, tenant))
    return Policy(terms=terms, rules=rules, is_operated=is_operated)
