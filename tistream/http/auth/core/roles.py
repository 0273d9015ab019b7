"""Who may do what: roles, the rights they hold, and the one decision that every request passes.

| role | bound to a tenant | holds |
| --- | --- | --- |
| viewer | as its key says | look |
| consumer | always | look, read |
| pusher | always | push |
| tenant-admin | always | look, read, push, tenant, keys |
| operator | never | look, push, tenant, operate |
| owner | never | all |

An operator runs the deployment and reads nobody's rows. A key of one tenant is told of other tenants what it would be
told of tenants that were never registered: whether they exist is not its business. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tistream.ids import Tenant


class Right(StrEnum):
    """What a route lets one do; each route names one."""

    OPEN = "open"  #: probes, static files, the way to log in: no key is asked for
    KNOWN = "known"  #: any valid key
    LOOK = "look"  #: states, lag, tasks and problems
    READ = "read"  #: rows, changes, files and schemas
    PUSH = "push"  #: where to write, the frontier, incarnations, seeds
    TENANT = "tenant"  #: change what is done for a tenant
    KEYS = "keys"  #: make, list, rotate and revoke keys
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


class Verdict(StrEnum):
    """What becomes of a request."""

    ALLOWED = "allowed"
    HIDDEN = "hidden"  #: it is about another tenant: to this key there is no such thing
    WEAK = "weak"  #: the role does not hold the right, or the key is bound to a tenant and the route is not


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who asks."""

    key_id: str
    name: str
    role: Role
    tenant: Tenant | None = None  #: the only tenant that it may see; None = all

    @property
    def rights(self) -> frozenset[Right]:
        """What it may do, where it may do it."""
        return GRANTS[self.role] | {Right.OPEN, Right.KNOWN}

    def sees(self, tenant: Tenant) -> bool:
        """Whether it may know of this tenant."""
        return self.tenant is None or self.tenant == tenant

    @property
    def sees_all(self) -> bool:
        """Whether it may know of the deployment as a whole."""
        return self.tenant is None


#: who asks where no keys are asked for
ANYONE = Principal(key_id="", name="anyone", role=Role.OWNER)


def decide(who: Principal, right: Right, tenant: Tenant | None, *, filtered: bool = False) -> Verdict:
    """Whether `who` may use a route of this right.

    `tenant` is the one that the address names. Without one the route is about the deployment, which a key of one tenant
    may not touch, unless the route is `filtered`: it then shows or changes only what the key may see.
    """
    if right in (Right.OPEN, Right.KNOWN):
        return Verdict.ALLOWED
    if tenant is not None and not who.sees(tenant):
        return Verdict.HIDDEN
    if right not in who.rights or (tenant is None and not filtered and not who.sees_all):
        return Verdict.WEAK
    return Verdict.ALLOWED


def fits(role: Role, tenant: Tenant | None) -> bool:
    """Whether there are keys of this role with, or without, a tenant."""
    return role not in _ALWAYS_BOUND if tenant is None else role not in _NEVER_BOUND


def may_give(who: Principal, role: Role, tenant: Tenant | None) -> bool:
    """Whether `who` may make, rotate or revoke such a key: nobody gives more than they have."""
    if Right.KEYS not in who.rights or not GRANTS[role] <= who.rights:
        return False
    return who.tenant is None or who.tenant == tenant
