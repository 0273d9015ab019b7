"""Roles, the rights they hold, and the access decision of every request.

| role | bound to a tenant | holds |
| --- | --- | --- |
| viewer | as its key says | look |
| consumer | always | look, read |
| pusher | always | push |
| tenant-admin | always | look, read, push, tenant, keys |
| operator | never | look, push, tenant, operate |
| owner | never | all |

A consumer's key may be limited to tables; routes say how they treat it (`OfLimited`). An operator runs the deployment
and reads no rows. To a key of one tenant, other tenants look unregistered. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tistream.ids import Tenant


class Right(StrEnum):
    """What a route requires."""

    OPEN = "open"  #: probes, static files, login: no key needed
    KNOWN = "known"  #: any valid key
    LOOK = "look"  #: states, lag, tasks and problems
    READ = "read"  #: rows, changes, files and schemas
    PUSH = "push"  #: push: destinations, frontier, incarnations, seeds
    TENANT = "tenant"  #: pause, resume and configure a tenant
    KEYS = "keys"  #: create, list, rotate and revoke keys
    OPERATE = "operate"  #: change the deployment: register tenants, move work


class Role(StrEnum):
    """What a key is for."""

    VIEWER = "viewer"
    CONSUMER = "consumer"
    PUSHER = "pusher"
    TENANT_ADMIN = "tenant-admin"
    OPERATOR = "operator"
    OWNER = "owner"


GRANTS: Mapping[Role, frozenset[Right]] = {
    Role.VIEWER: frozenset({Right.LOOK}),
    Role.CONSUMER: frozenset({Right.LOOK, Right.READ}),
    Role.PUSHER: frozenset({Right.PUSH}),
    Role.TENANT_ADMIN: frozenset({Right.LOOK, Right.READ, Right.PUSH, Right.TENANT, Right.KEYS}),
    Role.OPERATOR: frozenset({Right.LOOK, Right.PUSH, Right.TENANT, Right.OPERATE}),
    Role.OWNER: frozenset(Right),
}
_ALWAYS_BOUND = frozenset({Role.CONSUMER, Role.PUSHER, Role.TENANT_ADMIN})
_NEVER_BOUND = frozenset({Role.OPERATOR, Role.OWNER})


class OfLimited(StrEnum):
    """What a route does for keys that are limited to tables."""

    REFUSED = "refused"  #: nothing
    WITHIN = "within"  #: shows what is within: its handler asks for the limit
    NO_TABLES = "no tables"  #: the same as for other keys: the answer depends on no table


LIMITABLE = frozenset({Role.CONSUMER})  #: roles whose keys may be limited to tables
#: rights that limited keys hold: a route of one of these says what it does for them
LIMITED_RIGHTS = frozenset().union(*(GRANTS[role] for role in LIMITABLE)) | {Right.KNOWN}


class AccessDecision(StrEnum):
    """An access decision."""

    ALLOWED = "allowed"
    HIDDEN = "hidden"  #: another tenant: answered as not found
    WEAK = "weak"  #: the role lacks the right, or a tenant's key uses a route of the deployment


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who makes a request."""

    key_id: str
    name: str
    role: Role
    tenant: Tenant | None = None  #: the only visible tenant; None = all
    tables: tuple[str, ...] | None = None  #: rules of the tables that it may read; None = all

    @property
    def rights(self) -> frozenset[Right]:
        """Its rights."""
        return GRANTS[self.role] | {Right.OPEN, Right.KNOWN}

    def sees(self, tenant: Tenant) -> bool:
        """Whether the tenant is visible."""
        return self.tenant is None or self.tenant == tenant

    @property
    def sees_all(self) -> bool:
        """Whether the whole deployment is visible."""
        return self.tenant is None


#: the principal where no keys are required
ANYONE = Principal(key_id="", name="anyone", role=Role.OWNER)


def decide(who: Principal, right: Right, tenant: Tenant | None, *, filtered: bool = False) -> AccessDecision:
    """Whether `who` may use a route of this right.

    `tenant` is that of the path. Without one the route concerns the deployment and refuses keys of one tenant, unless
    it is `filtered`: it then shows or changes only what the key may see.
    """
    if right in (Right.OPEN, Right.KNOWN):
        return AccessDecision.ALLOWED
    if tenant is not None and not who.sees(tenant):
        return AccessDecision.HIDDEN
    if right not in who.rights or (tenant is None and not filtered and not who.sees_all):
        return AccessDecision.WEAK
    return AccessDecision.ALLOWED


def fits(role: Role, tenant: Tenant | None) -> bool:
    """Whether keys of this role may have this tenant, or none."""
    return role not in _ALWAYS_BOUND if tenant is None else role not in _NEVER_BOUND


def may_give(who: Principal, role: Role, tenant: Tenant | None) -> bool:
    """Whether `who` may create, rotate or revoke such a key: never one with more rights than its own."""
    if Right.KEYS not in who.rights or not GRANTS[role] <= who.rights:
        return False
    return who.tenant is None or who.tenant == tenant
