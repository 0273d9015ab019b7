"""API keys for people: who holds one, since when, and until when.

    /keys                     keys without their secrets, and a form that makes one by POST /v1/keys
    /keys/{id}/rotate         a form that gives a key a successor by POST /v1/keys/{id}:rotate
    /keys/{id}/revoke         says what would end, and ends it

A new key is in the answer of the API that made it, which the page shows once; no page that is served holds one. What
somebody may see, make and end here is what the API lets them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from apiserver.console.live import LiveParts
from apiserver.console.onboarding import asks_for_keys
from apiserver.routes.keys import KeyId, listed_keys, own_key, revoke_own, shown
from reading.deps import Services
from tistream.catalog.tenancy.keys import KeyRow
from tistream.catalog.tenancy.tenants import list_tenants
from tistream.errors import NotFound
from tistream.http.auth.access import Who, needs
from tistream.http.auth.core.roles import Principal, Right, Role, fits, may_give
from tistream.limits import KEY_CACHE_MS

Show = Callable[[Request, str, Callable[[], dict[str, Any]]], Response]

_KEYS_SHOWN = 200
_MEANINGS = {
    Role.VIEWER: "looks at states and lag",
    Role.CONSUMER: "pulls one tenant's rows",
    Role.PUSHER: "pushes one tenant's changes",
    Role.TENANT_ADMIN: "everything for one tenant, its keys too",
    Role.OPERATOR: "runs the deployment, reads no rows",
    Role.OWNER: "everything",
}


def add_pages(routes: APIRouter, services: Services, show: Show, live: LiveParts) -> None:
    """Put the pages under the console's router."""
    mine = [needs(Right.KEYS, filtered=True)]

    @routes.get("/keys.json", dependencies=mine)
    def keys_json(request: Request, who: Who, ended: bool = False) -> dict[str, Any]:
        return _keys(services, who, ended=ended, keyed=asks_for_keys(request))

    @routes.get("/keys", dependencies=mine)
    @live.every(3)
    def keys_page(request: Request, who: Who, ended: bool = False) -> Response:
        return show(request, "keys.html", lambda: _keys(services, who, ended=ended, keyed=asks_for_keys(request)))

    @routes.get("/keys/{key_id}/rotate", dependencies=mine)
    def rotate_page(request: Request, key_id: KeyId, who: Who) -> Response:
        return show(request, "key_rotate.html", lambda: shown(own_key(services, who, key_id)))

    @routes.api_route("/keys/{key_id}/revoke", methods=["GET", "POST"], dependencies=mine)
    def revoke(request: Request, key_id: KeyId, who: Who) -> Response:
        def facts() -> dict[str, Any]:
            row = own_key(services, who, key_id)
            if request.method == "POST":
                revoke_own(services, request, who, key_id)
            return {"words": _words(row, who), "title": "Revoke key", "back": "/keys"}

        answer = show(request, "confirm.html", facts)
        return RedirectResponse("/keys", 303) if request.method == "POST" and answer.status_code == 200 else answer


def _keys(services: Services, who: Principal, *, ended: bool, keyed: bool) -> dict[str, Any]:
    """Keys, the newest first, and what may be done with them."""
    rows = listed_keys(services, who)[::-1]
    living = [row for row in rows if row.state == "living"]
    found = rows if ended else living
    tenants = [row.tenant for row in list_tenants(services.catalog) if who.sees(row.tenant)]
    roles = [role for role in Role if may_give(who, role, who.tenant)]
    return {
        "items": [{**shown(row), "changes": _changes(who, row)} for row in found[:_KEYS_SHOWN]],
        "living": len(living),
        "ended": len(rows) - len(living),
        "ended_shown": ended,
        "more": max(0, len(found) - _KEYS_SHOWN),
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
    """What `who` may do with the key."""
    if row.state != "living" or not may_give(who, Role(row.role), row.tenant):
        return []
    return ["revoke"] if row.replaced_by else ["rotate", "revoke"]


def _words(row: KeyRow, who: Principal) -> str:
    if row.state != "living":
        raise NotFound(f"key {row.key_id} has ended already", key_id=row.key_id)
    of = f" of tenant {row.tenant}" if row.tenant else ""
    own = " It is the key that you signed in with: you are signed out." if row.key_id == who.key_id else ""
    return (
        f"The {row.role} key {row.key_id}{of}, '{row.name}', counts no more, in other processes after at most"
        f" {KEY_CACHE_MS // 1000} s. Whoever shows it is refused. This cannot be taken back.{own}"
    )
