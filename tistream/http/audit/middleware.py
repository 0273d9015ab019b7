"""Records every request that may change something in the audit log, those that are refused on the way included.

It is outside of authentication, limits and stored answers. A request that reached its operation has an entry that is
completed here; any other is counted among its equals.
"""

from __future__ import annotations

from dataclasses import replace

import orjson
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tistream.catalog.rows.audit import Deed, Outcome, Result
from tistream.errors import TiStreamError
from tistream.http.access_log import REQUEST_ID
from tistream.http.audit.request import AUDIT, AuditedRequest, operation_of, tenant_of
from tistream.http.audit.trail import AuditTrail
from tistream.http.auth.access import ACCESS, Access, every_route
from tistream.http.auth.middleware import SAFE
from tistream.http.problem import MEDIA_TYPE


class AuditMiddleware:
    """ASGI middleware around AuthMiddleware."""

    def __init__(self, app: ASGIApp, trail: AuditTrail) -> None:
        self._app, self._trail = app, trail
        self._routes: list[APIRoute] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in SAFE:
            await self._app(scope, receive, send)
            return
        client = scope.get("client")
        request = AuditedRequest(
            self._trail, address=client[0] if client else "unknown", request_id=scope.get(REQUEST_ID, "")
        )
        scope[AUDIT] = request
        status, is_problem = 0, False

        async def seen(message: Message) -> None:
            nonlocal status, is_problem
            if message["type"] == "http.response.start":
                status = message["status"]
                is_problem = (b"content-type", MEDIA_TYPE.encode()) in message.get("headers", ())
                if not is_problem:
                    await self._end(request, scope, status, request.code)
            elif is_problem:
                is_problem = False
                await self._end(request, scope, status, str(orjson.loads(message["body"])["code"]))
            await send(message)

        try:
            await self._app(scope, receive, seen)
        except Exception as e:
            if not status:
                await self._end(request, scope, 500, e.code if isinstance(e, TiStreamError) else TiStreamError.code)
            raise

    async def _end(self, request: AuditedRequest, scope: Scope, status: int, code: str) -> None:
        result = Result.DONE if status < 400 else Result.REFUSED if status < 500 else Result.FAILED
        outcome = Outcome(result=result, status=status, code=code)
        if request.doer is not None:
            await request.end(outcome)
            return
        access = scope.get(ACCESS)
        principal = access.principal if isinstance(access, Access) else request.ended
        deed = self._deed(scope, request.request_id)
        if principal is None or deed.tenant is None or not principal.sees(deed.tenant):
            # a tenant's administrators learn nothing of others who guess at its address
            deed = replace(deed, tenant=None if principal is None else principal.tenant)
        self._trail.count(request.by(principal), deed, outcome)

    def _deed(self, scope: Scope, request_id: str) -> Deed:
        """What a request would have done that did not reach its route."""
        if self._routes is None:
            app = scope["app"]
            assert isinstance(app, FastAPI)
            routes = [route for route in every_route(app) if isinstance(route, APIRoute)]
            self._routes = [route for route in routes if set(route.methods or ()) - SAFE]
        for route in self._routes:
            if scope["method"] in (route.methods or ()) and (match := route.path_regex.match(scope["path"])):
                return Deed(operation=operation_of(route), tenant=tenant_of(match.groupdict()), request_id=request_id)
        return Deed(operation=operation_of(None), request_id=request_id)
