"""Template variables of every page: its address, the menu and the visitor's rights."""

from __future__ import annotations

from typing import Any

from starlette.requests import HTTPConnection

from tistream.http.auth.access import ACCESS, Access
from tistream.http.auth.core.roles import Right

HEADERS = {
    "Cache-Control": "no-store",  # a page and its part have the same address
    "Vary": "HX-Request",
}
_MENU = (  #: address, name, needed right, whether it concerns the whole deployment
    ("/overview", "Overview", Right.LOOK, False),
    ("/tenants", "Tenants", Right.LOOK, True),
    ("/tasks", "Tasks", Right.LOOK, True),
    ("/workers", "Workers", Right.LOOK, True),
    ("/jobs", "Jobs", Right.LOOK, True),
    ("/gaps", "Stalled ranges", Right.LOOK, True),
    ("/events", "Events", Right.LOOK, True),
    ("/keys", "Keys", Right.KEYS, False),
    ("/audit-log", "Audit log", Right.KEYS, False),
    ("/docs", "API", Right.KNOWN, False),
)


def page_context(request: HTTPConnection) -> dict[str, Any]:
    """The variables. A request refused before authentication has no principal."""
    access = request.scope.get(ACCESS, Access(principal=None))
    who = access.principal
    rights, whole = (who.rights, who.sees_all) if who is not None else (frozenset[Right](), False)
    return {
        "here": request.url.path,
        "address": request.url.path + (f"?{request.url.query}" if request.url.query else ""),
        "menu": [
            (path, name) for path, name, right, deployment in _MENU if right in rights and (whole or not deployment)
        ],
        "rights": rights,
        "whole": whole,
        "part": request.headers.get("HX-Request") == "true",
        "csrf": access.csrf,
    }
