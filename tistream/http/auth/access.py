"""What a route needs, said where the route is made, and the look at who asks from inside of one.

    routes = APIRouter(dependencies=[needs(Right.READ)])             all routes of a router
    @routes.post("/v1/keys", dependencies=[needs(Right.KEYS, filtered=True)])
    def create(who: Who) -> ...: ...

A route that names a tenant in its address ({cluster_id}, {tenant_id}) is refused to keys of other tenants with the
words that a tenant gets that was never registered. A route without one is about the deployment and closed to keys that
are bound to a tenant, unless it says `filtered=True`: its handler then shows only what `who.sees(tenant)`.

`undeclared` lists the routes of an application that say nothing; an application with such a route does not start.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, params
from fastapi.routing import APIRoute
from starlette.routing import Mount

from tistream.catalog.tenancy.tenants import not_registered
from tistream.errors import NotAllowed, NotFound, invariant
from tistream.http import error_reference
from tistream.http.auth.authenticator import Authenticator
from tistream.http.auth.core.roles import Principal, Right, Verdict, decide
from tistream.ids import Tenant

ACCESS = "tistream.http.access_log"  #: where the wall leaves it in a request's scope
OPEN_PATHS = frozenset({"/livez", "/readyz", "/version", "/login", error_reference.PATH})
OPEN_PREFIXES = ("/static/", f"{error_reference.PATH}/")  #: everybody may read what problems mean
_ANY_KEY = frozenset({"/openapi.json"})  #: made by the framework, behind the wall like everything
_NUMBER = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What a route asks for."""

    right: Right
    filtered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who asks, and how they proved it."""

    principal: Principal | None  #: None: nobody, on an open address
    authenticator: Authenticator | None = None  #: None: no keys are asked for
    session: str = ""  #: the token of a console session; empty for a key
    again: Callable[[], Awaitable[Principal]] | None = None  #: asks the guard once more

    @property
    def csrf(self) -> str:
        """What a page of this session sends back with whatever changes something."""
        return csrf_of(self.session) if self.session else ""


_DECLARED: dict[Callable[..., Any], Declared] = {}


def needs(right: Right, *, filtered: bool = False) -> params.Depends:
    """The dependency that a route, or a router, has for being guarded."""

    async def check(request: Request) -> None:
        if right is not Right.OPEN:
            _check(request, right, filtered)

    _DECLARED[check] = Declared(right=right, filtered=filtered)
    dependency = Depends(check)
    assert isinstance(dependency, params.Depends)
    return dependency


def access_of(request: Request) -> Access:
    """Who asks; fails where no wall stands."""
    found = request.scope.get(ACCESS)
    invariant(isinstance(found, Access), "an application with routes of its own has the wall installed")
    assert isinstance(found, Access)
    return found


def principal_of(request: Request) -> Principal:
    """Who asks, for handlers of routes that are not open."""
    found = access_of(request).principal
    invariant(found is not None, "nobody passes the wall without a principal")
    assert found is not None
    return found


Who = Annotated[Principal, Depends(principal_of)]


async def check_key(request: Request) -> None:
    """For answers without an end: Unauthenticated when key or session have ended meanwhile. Costs nothing as a rule;
    call it every few seconds."""
    again = access_of(request).again
    if again is not None:
        await again()


def csrf_of(session: str) -> str:
    """A token that only pages of this session know."""
    return hmac.new(session.encode("utf-8", "surrogateescape"), b"csrf", hashlib.sha256).hexdigest()


def declared(route: APIRoute) -> list[Declared]:
    """What a route asks for; empty when it says nothing."""
    return [_DECLARED[d.call] for d in route.dependant.dependencies if d.call in _DECLARED]


def every_route(app: FastAPI) -> Iterator[Any]:
    """All routes, however routers are nested."""
    todo = list(reversed(app.routes))
    while todo:
        route = todo.pop()
        inner = getattr(getattr(route, "original_router", None), "routes", None)
        if inner is not None:
            todo += reversed(inner)
        else:
            yield route


def undeclared(app: FastAPI) -> list[str]:
    """Addresses that do not say what they need, or say that they are open and are not, or the other way round."""
    bad = []
    for route in every_route(app):
        path = getattr(route, "path", str(route))
        if path.startswith(error_reference.PATH):
            continue
        if isinstance(route, APIRoute):
            said = {d.right for d in declared(route)}
            if not said or (said == {Right.OPEN}) != (path in OPEN_PATHS):
                bad.append(path)
        elif path not in _ANY_KEY and not (isinstance(route, Mount) and path + "/" in OPEN_PREFIXES):
            bad.append(path)
    return bad


def _check(request: Request, right: Right, filtered: bool) -> None:
    who = principal_of(request)
    named = request.path_params.keys() & {"cluster_id", "tenant_id"}
    tenant = _tenant(request.path_params) if named else None
    if named and tenant is None and not who.sees_all:
        raise NotFound("There is no such tenant.")  # an address that means none means no tenant of this key's
    match decide(who, right, tenant, filtered=filtered or (bool(named) and tenant is None)):
        case Verdict.ALLOWED:
            return
        case Verdict.HIDDEN:
            assert tenant is not None
            raise not_registered(tenant)
    bound = ", for one tenant only" if who.tenant is not None and right in who.rights else ""
    raise NotAllowed(
        f"This needs the right '{right}'; the key's role is {who.role}{bound}.", right=right, role=who.role
    )


def _tenant(given: Mapping[str, Any]) -> Tenant | None:
    """The tenant that an address names; None when its ids are no plain numbers, which no handler accepts either."""
    words = [str(given.get(name, "")) for name in ("cluster_id", "tenant_id")]
    if not all(_NUMBER.fullmatch(word) for word in words):
        return None
    return Tenant(int(words[0]), int(words[1]))
