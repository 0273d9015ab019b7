"""Access rules of routes, and who makes a request.

    routes = APIRouter(dependencies=[needs(Right.READ)])             all routes of a router
    @routes.post("/v1/keys", dependencies=[needs(Right.KEYS, filtered=True)])
    def create(who: Who) -> ...: ...

A route with {cluster_id} and {tenant_id} in its path answers keys of other tenants as if the tenant were not
registered. A route without them concerns the deployment and refuses keys bound to a tenant, unless it is declared
`filtered=True`: its handler then shows only tenants with `who.sees(tenant)`.

A route that keys with a limit to tables could reach says what it does for them (`limited=OfLimited...`). One that shows
only what is within takes the limit as `KeyTables`; one that says nothing refuses them.

`undeclared` lists routes without a rule; an application with such a route does not start.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, params
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.routing import Mount

from tistream.catalog.tenancy.tenants import not_registered
from tistream.errors import KeyLimited, NotAllowed, NotFound, invariant
from tistream.http import error_reference
from tistream.http.audit.request import begin
from tistream.http.auth.authenticator import Authenticator
from tistream.http.auth.core.roles import LIMITED_RIGHTS, AccessDecision, OfLimited, Principal, Right, decide
from tistream.ids import Tenant

ACCESS = "tistream.http.access_log"  #: key of an Access in a request's scope
NOTIFICATIONS_PATH = "/v1/notifications"  #: asks for a token of its own
OPEN_PATHS = frozenset({"/livez", "/readyz", "/version", "/login", error_reference.PATH, NOTIFICATIONS_PATH})
OPEN_PREFIXES = ("/static/", f"{error_reference.PATH}/")  #: the error reference is public
_ANY_KEY = frozenset({"/openapi.json"})  #: added by the framework; needs any valid key
_NUMBER = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """The rule of a route."""

    right: Right
    filtered: bool = False
    limited: OfLimited | None = None  #: what it does for a key limited to tables; None: not said
    changes: bool = True  #: False: it changes nothing, whatever its method


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who makes a request, and how it was authenticated."""

    principal: Principal | None  #: None: anonymous, on an open path
    authenticator: Authenticator | None = None  #: None: no keys are required
    session: str = ""  #: the token of a console session; empty for a key
    again: Callable[[], Awaitable[Principal]] | None = None  #: authenticates again

    @property
    def csrf(self) -> str:
        """The CSRF token of a console session; empty without one."""
        return csrf_of(self.session) if self.session else ""


_DECLARED: dict[Callable[..., Any], Declared] = {}


def needs(
    right: Right, *, filtered: bool = False, limited: OfLimited | None = None, changes: bool = True
) -> params.Depends:
    """The dependency that declares the rule of a route or a router, and lets operations begin in the audit log.
    `changes`: False for a route that changes nothing, whatever its method."""

    async def check(request: Request) -> None:
        if right is not Right.OPEN:
            _check(request, right, filtered)
            _check_limit(principal_of(request), limited)
        await begin(request, None if right is Right.OPEN else principal_of(request), silent=not changes)

    _DECLARED[check] = Declared(right=right, filtered=filtered, limited=limited, changes=changes)
    dependency = Depends(check)
    assert isinstance(dependency, params.Depends)
    return dependency


def access_of(request: Request) -> Access:
    """The access of a request that passed the auth middleware."""
    access = request.scope.get(ACCESS)
    invariant(isinstance(access, Access), "the auth middleware is installed")
    assert isinstance(access, Access)
    return access


def principal_of(request: Request) -> Principal:
    """Who makes the request, for routes that are not open."""
    principal = access_of(request).principal
    invariant(principal is not None, "the auth middleware sets a principal")
    assert principal is not None
    return principal


Who = Annotated[Principal, Depends(principal_of)]


def key_tables(request: Request) -> tuple[str, ...] | None:
    """The rules of the tables that the key may read; None = all."""
    return principal_of(request).tables


KeyTables = Annotated[tuple[str, ...] | None, Depends(key_tables)]


async def check_key(request: Request) -> None:
    """For streams: Unauthenticated when key or session have ended meanwhile. Cheap: call it every few seconds."""
    again = access_of(request).again
    if again is not None:
        await again()


def csrf_of(session: str) -> str:
    """The CSRF token of a session."""
    return hmac.new(session.encode("utf-8", "surrogateescape"), b"csrf", hashlib.sha256).hexdigest()


def declared(route: APIRoute) -> list[Declared]:
    """The rules of a route; empty when it declares none."""
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
    """Paths without a rule, or with a rule that contradicts OPEN_PATHS."""
    bad = []
    for route in every_route(app):
        path = getattr(route, "path", str(route))
        if path.startswith(error_reference.PATH):
            continue
        if isinstance(route, APIRoute):
            rights = {d.right for d in declared(route)}
            if not rights or (rights == {Right.OPEN}) != (path in OPEN_PATHS) or not _says_of_limited(route):
                bad.append(path)
        elif path not in _ANY_KEY and not (isinstance(route, Mount) and path + "/" in OPEN_PREFIXES):
            bad.append(path)
    return bad


def _says_of_limited(route: APIRoute) -> bool:
    """Whether a route that limited keys could reach says what it does for them, and asks for the limit if it shows what
    is within."""
    said = declared(route)
    if any(d.right in LIMITED_RIGHTS and d.limited is None for d in said):
        return False
    return all(d.limited is not OfLimited.WITHIN for d in said) or key_tables in _calls(route.dependant)


def _calls(dependant: Dependant) -> set[Callable[..., Any] | None]:
    """The functions that a route depends on."""
    return {dependant.call}.union(*(_calls(each) for each in dependant.dependencies))


def _check_limit(who: Principal, limited: OfLimited | None) -> None:
    if who.tables is not None and limited not in (OfLimited.WITHIN, OfLimited.NO_TABLES):
        raise KeyLimited(
            f"This key is limited to the tables {', '.join(who.tables)}, and this is not about these alone.",
            tables=list(who.tables),
        )


def _check(request: Request, right: Right, filtered: bool) -> None:
    who = principal_of(request)
    named = request.path_params.keys() & {"cluster_id", "tenant_id"}
    tenant = _tenant(request.path_params) if named else None
    if named and tenant is None and not who.sees_all:
        raise NotFound("Tenant not found.")  # invalid ids name no tenant that this key may see
    match decide(who, right, tenant, filtered=filtered or (bool(named) and tenant is None)):
        case AccessDecision.ALLOWED:
            return
        case AccessDecision.HIDDEN:
            assert tenant is not None
            raise not_registered(tenant)
    bound = ", for one tenant only" if who.tenant is not None and right in who.rights else ""
    raise NotAllowed(
        f"This needs the right '{right}'; the key's role is {who.role}{bound}.", right=right, role=who.role
    )


def _tenant(given: Mapping[str, Any]) -> Tenant | None:
    """The tenant of a path; None when its ids are not numbers, which handlers refuse as well."""
    words = [str(given.get(name, "")) for name in ("cluster_id", "tenant_id")]
    if not all(_NUMBER.fullmatch(word) for word in words):
        return None
    return Tenant(int(words[0]), int(words[1]))
