"""API keys: who holds one, since when, and until when.

    /keys                     keys without their secrets, and a form that creates one by POST /v1/keys
    /keys/{id}/rotate         a form that gives a key a successor by POST /v1/keys/{id}:rotate
    /keys/{id}/revoke         shows what would end, and ends it

A new key is only in the answer of the API, which the page shows once. Visible keys and allowed changes are those of the
API.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request

from apiserver.console.onboarding import asks_for_keys
from apiserver.console.pages import Action, Pages
from apiserver.routes.keys import KeyId, listed_keys, own_key, revoke_own, shown
from reading.served.services import Services
from tistream.catalog.tenancy.keys import KeyRow
from tistream.catalog.tenancy.tenants import list_tenants
from tistream.errors import NotFound
from tistream.http.auth.access import Who
from tistream.http.auth.core.roles import Principal, Right, Role, fits, may_give
from tistream.limits import KEY_CACHE_MS

_KEYS_SHOWN = 200
_MEANINGS = {
    Role.VIEWER: "sees states and lag",
    Role.CONSUMER: "pulls one tenant's rows",
    Role.PUSHER: "pushes one tenant's changes",
    Role.TENANT_ADMIN: "everything for one tenant, including its keys",
    Role.OPERATOR: "runs the deployment, reads no rows",
    Role.OWNER: "everything",
}


def add_pages(pages: Pages) -> None:
    """Add the pages of API keys."""
    services = pages.services

    @pages.view("/keys", "keys.html", right=Right.KEYS, filtered=True, every=3)
    def keys(request: Request, who: Who, ended: bool = False) -> dict[str, Any]:
        return _keys(services, who, ended=ended, keyed=asks_for_keys(request))

    @pages.view("/keys/{key_id}/rotate", "key_rotate.html", right=Right.KEYS, filtered=True, json=False)
    def rotate(key_id: KeyId, who: Who) -> dict[str, Any]:
        return shown(own_key(services, who, key_id))

    @pages.action("/keys/{key_id}/revoke", right=Right.KEYS, filtered=True)
    def revoke(request: Request, key_id: KeyId, who: Who) -> Action:
        def run(*, dry_run: bool, actor: str) -> dict[str, Any]:
            row = own_key(services, who, key_id)
            if not dry_run:
                revoke_own(services, request, who, key_id)
            return {"words": _consequences(row, who)}

        return Action(run, "Revoke key", "/keys")


def _keys(services: Services, who: Principal, *, ended: bool, keyed: bool) -> dict[str, Any]:
    """Keys, the newest first, and allowed changes."""
    rows = listed_keys(services, who)[::-1]
    living = [row for row in rows if row.state == "living"]
    listed = rows if ended else living
    tenants = [row.tenant for row in list_tenants(services.catalog) if who.sees(row.tenant)]
    roles = [role for role in Role if may_give(who, role, who.tenant)]
    return {
        "items": [{**shown(row), "changes": _changes(who, row)} for row in listed[:_KEYS_SHOWN]],
        "living": len(living),
        "ended": len(rows) - len(living),
        "ended_shown": ended,
        "more": max(0, len(listed) - _KEYS_SHOWN),
        "keyed": keyed,
        "own": who.key_id,
        "bound": None if who.tenant is None else str(who.tenant),
        "roles": [
            {"role": role, "words": _MEANINGS[role], "bound": not fits(role, None)}
            for role in roles
            if fits(role, who.tenant) or who.tenant is None
        ],
        "tenants": [str(tenant) for tenant in tenants],
    }


def _changes(who: Principal, row: KeyRow) -> list[str]:
    """The changes of the key that `who` may make."""
    if row.state != "living" or not may_give(who, Role(row.role), row.tenant):
        return []
    return ["revoke"] if row.replaced_by else ["rotate", "revoke"]


def _consequences(row: KeyRow, who: Principal) -> str:
    if row.state != "living":
        raise NotFound(f"key {row.key_id} has ended already", key_id=row.key_id)
    of = f" of tenant {row.tenant}" if row.tenant else ""
    own = " You signed in with this key, so you are signed out." if row.key_id == who.key_id else ""
    return (
        f"The {row.role} key {row.key_id}{of}, '{row.name}', is revoked, in other processes within"
        f" {KEY_CACHE_MS // 1000} s. Requests with it are refused. This cannot be undone.{own}"
    )
