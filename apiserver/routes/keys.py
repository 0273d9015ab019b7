"""API keys over HTTP, and login codes for the console.

    GET     /v1/whoami               this key and its rights
    POST    /v1/keys                 create a key; only the answer contains it
    GET     /v1/keys                 all keys, without their secrets
    DELETE  /v1/keys/{id}            revoke
    POST    /v1/keys/{id}:rotate     create a successor; the old key stays valid for a while
    POST    /v1/console-codes        a code that opens the console once, as this key

A key of one tenant sees and creates only keys of this tenant; others are not found. No key can grant more rights than
it has. A consumer's key may be limited to tables.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, Field

from apiserver.answers.keys import ApiKey, Caller, ConsoleCode, CreatedKey, KeyList
from reading.filters import TEXT_MAX
from reading.served.key_limit import checked_limit
from reading.served.services import Services
from tistream import ts as tso
from tistream.catalog.tenancy import keys
from tistream.errors import InvalidInput, NotAllowed, NotFound
from tistream.http.audit.request import note_target
from tistream.http.auth.access import Who, access_of, needs
from tistream.http.auth.core.roles import OfLimited, Principal, Right, Role, may_give
from tistream.http.auth.issue import NAME_MAX, IssuedKey, issue_key, login_code, rotated_key, ttl_ms_of
from tistream.ids import Tenant
from tistream.limits import INT_MAX, LOGIN_CODE_MS

_EXPIRY_S_MAX = 86_400 * 3660
TABLE_RULES_MAX = 100

KeyId = Annotated[str, Path(pattern=r"^[a-z2-7]{13}$", description="The part of a key between its underscores.")]
ClusterId = Annotated[int | None, Query(ge=0, le=INT_MAX, description="Keys bound to this cluster's tenant.")]
TenantId = Annotated[int | None, Query(ge=0, le=INT_MAX, description="Keys bound to this tenant.")]


class NewKey(BaseModel):
    """A new key."""

    name: str = Field(min_length=1, max_length=NAME_MAX, description="for people: who or what will use it")
    role: Role
    cluster_id: int | None = Field(default=None, ge=0, le=INT_MAX)
    tenant_id: int | None = Field(default=None, ge=0, le=INT_MAX)
    tables: list[Annotated[str, Field(max_length=TEXT_MAX)]] | None = Field(
        default=None,
        max_length=TABLE_RULES_MAX,
        description="limits a consumer's key to these tables, such as `shop.*` and `!shop.audit_*`; all by default",
    )
    expires_in_s: float = Field(default=0, ge=0, le=_EXPIRY_S_MAX, description="0 = never")


class Rotation(BaseModel):
    """When the old key expires."""

    overlap_s: float = Field(default=86_400, ge=0, le=_EXPIRY_S_MAX, description="how long the old key stays valid")


def router(services: Services) -> APIRouter:
    """The routes over the catalog's keys."""
    routes = APIRouter(tags=["keys"])
    _add_own(services, routes)
    needed = [needs(Right.KEYS, filtered=True)]

    @routes.post(
        "/v1/keys", status_code=201, summary="Create a key", dependencies=needed, responses={201: {"model": CreatedKey}}
    )
    def create_key(request: Request, new: NewKey, who: Who) -> dict[str, Any]:
        tenant = _tenant(new.cluster_id, new.tenant_id)
        if not may_give(who, new.role, tenant):
            raise NotAllowed(f"A key of role {who.role} cannot create such a key.", role=new.role)
        made = issue_key(
            services.catalog,
            name=new.name,
            role=new.role,
            tenant=tenant,
            tables=checked_limit(new.tables),
            ttl_ms=ttl_ms_of(new.expires_in_s),
            created_by=who.key_id,
        )
        note_target(request, tenant=tenant, key_id=made.row.key_id, role=new.role)
        return _issued(made)

    @routes.get(
        "/v1/keys", summary="Keys without their secrets", dependencies=needed, responses={200: {"model": KeyList}}
    )
    def list_keys(who: Who, cluster_id: ClusterId = None, tenant_id: TenantId = None) -> dict[str, Any]:
        return {"items": [shown(row) for row in listed_keys(services, who, _tenant(cluster_id, tenant_id))]}

    @routes.delete(
        "/v1/keys/{key_id}",
        summary="Revoke a key; safe to repeat",
        dependencies=needed,
        responses={200: {"model": ApiKey}},
    )
    def revoke_key(request: Request, key_id: KeyId, who: Who) -> dict[str, Any]:
        return revoke_own(services, request, who, key_id)

    @routes.post(
        "/v1/keys/{key_id}:rotate",
        status_code=201,
        summary="Replace a key by a successor",
        dependencies=needed,
        responses={201: {"model": CreatedKey}},
    )
    def rotate_key(request: Request, key_id: KeyId, who: Who, how: Rotation | None = None) -> dict[str, Any]:
        note_target(request, tenant=own_key(services, who, key_id).tenant)
        overlap_ms = int((how or Rotation()).overlap_s * 1000)
        made = rotated_key(services.catalog, key_id, overlap_ms=overlap_ms, created_by=who.key_id)
        _forget(request)
        note_target(request, successor=made.row.key_id)
        return _issued(made)

    return routes


def _add_own(services: Services, routes: APIRouter) -> None:
    @routes.get(
        "/v1/whoami",
        summary="This key and its rights",
        dependencies=[needs(Right.KNOWN, limited=OfLimited.NO_TABLES)],
        responses={200: {"model": Caller}},
    )
    def whoami(who: Who) -> dict[str, Any]:
        return {
            "key_id": who.key_id,
            "name": who.name,
            "role": who.role,
            **_ids(who.tenant),
            "tables": _tables(who.tables),
            "rights": sorted(who.rights - {Right.OPEN, Right.KNOWN}),
        }

    @routes.post(
        "/v1/console-codes",
        status_code=201,
        summary="A code that opens the console once, as this key",
        dependencies=[needs(Right.LOOK, filtered=True, limited=OfLimited.REFUSED)],
        responses={201: {"model": ConsoleCode}},
    )
    def create_console_code(request: Request, who: Who) -> dict[str, Any]:
        if not who.key_id:
            raise InvalidInput("The console needs no login: the service runs with server.auth = none.")
        code = login_code(services.catalog, who.key_id)
        url = f"{str(request.base_url).rstrip('/')}/login#{code}"
        return {"url": url, "code": code, "good_for_s": LOGIN_CODE_MS // 1000}


def shown(row: keys.KeyRow) -> dict[str, Any]:
    """A key as JSON, without its secret."""
    return {
        "key_id": row.key_id,
        "name": row.name,
        "role": row.role,
        **_ids(row.tenant),
        "tables": _tables(row.tables),
        "state": row.state,
        "created_time": _time(row.created_ms),
        "expires_time": _time(row.expires_ms),
        "last_used_time": _time(row.last_used_ms),
        "revoked_time": _time(row.revoked_ms),
        "created_by": row.created_by or None,
        "replaced_by": row.replaced_by,
    }


def _issued(made: IssuedKey) -> dict[str, Any]:
    return {"key": made.text, **shown(made.row)}


def _tables(tables: tuple[str, ...] | None) -> list[str] | None:
    return None if tables is None else list(tables)


def _ids(tenant: Tenant | None) -> dict[str, int | None]:
    if tenant is None:
        return {"cluster_id": None, "tenant_id": None}
    return {"cluster_id": tenant.cluster_id, "tenant_id": tenant.tenant_id}


def _time(ms: int) -> str | None:
    return tso.to_text(tso.compose(ms)) if ms else None


def _tenant(cluster_id: int | None, tenant_id: int | None) -> Tenant | None:
    if cluster_id is None and tenant_id is None:
        return None
    if cluster_id is None or tenant_id is None:
        raise InvalidInput("Give both cluster_id and tenant_id, or neither.")
    return Tenant(cluster_id, tenant_id)


def _sees(who: Principal, row: keys.KeyRow) -> bool:
    return who.sees_all or (row.tenant is not None and who.sees(row.tenant))


def listed_keys(services: Services, who: Principal, tenant: Tenant | None = None) -> list[keys.KeyRow]:
    """The keys that `who` may see, of one tenant if given; the oldest first."""
    rows = keys.list_keys(services.catalog, who.tenant if tenant is None else tenant)
    return [row for row in rows if _sees(who, row)]


def own_key(services: Services, who: Principal, key_id: str) -> keys.KeyRow:
    """The key. NotFound when it does not exist or `who` may not change it."""
    row = keys.get_key(services.catalog, key_id)
    if not (_sees(who, row) and may_give(who, Role(row.role), row.tenant)):
        raise NotFound(f"key {key_id} not found", key_id=key_id)
    return row


def revoke_own(services: Services, request: Request, who: Principal, key_id: str) -> dict[str, Any]:
    """Revoke a key that `who` may change. Safe to repeat."""
    note_target(request, tenant=own_key(services, who, key_id).tenant)
    keys.revoke_key(services.catalog, key_id, actor=who.key_id)
    _forget(request)
    return shown(keys.get_key(services.catalog, key_id))


def _forget(request: Request) -> None:
    """Drop cached keys and sessions of this process."""
    authenticator = access_of(request).authenticator
    if authenticator is not None:
        authenticator.forget()
