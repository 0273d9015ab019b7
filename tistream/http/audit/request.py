"""What the audit log gets to know of one request that may change something.

AuditMiddleware puts an AuditedRequest into the scope
`needs` calls `begin` when the caller may use the route: before the operation begins, its entry exists
a handler says with `note_target` what is not in its path, such as the id of a new key
the middleware records the outcome before the answer ends
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from tistream.catalog.rows.audit import Deed, Doer, Outcome, Result
from tistream.http.audit.trail import AuditTrail
from tistream.http.auth.core.roles import Principal
from tistream.ids import Tenant
from tistream.limits import INT_MAX

AUDIT = "tistream.http.audit"  #: key of an AuditedRequest in a request's scope
NO_KEY = "(no key)"  #: the principal of a request without a valid key

#: operations that readers and pushers repeat all the time: equal ones of a minute are one entry
ROUTINE = frozenset({
    "pull_consumer", "acknowledge", "move_checkpoint", "set_safe_point", "compare_pushed_object",
})  # fmt: skip
_NOTHING = Deed(operation="")


@dataclass(slots=True)
class AuditedRequest:
    """One request, from its arrival to its answer."""

    trail: AuditTrail
    address: str
    request_id: str
    doer: Doer | None = None  #: None: it has not reached its operation
    deed: Deed = _NOTHING
    entry_no: int | None = None
    ended: Principal | None = None  #: whose key it showed, which has ended
    silent: bool = False  #: its success is not recorded: it changes nothing
    code: str = ""  #: of the error that a page shows

    @property
    def is_routine(self) -> bool:
        """Whether its equals of a minute are one entry."""
        return self.deed.operation in ROUTINE

    def by(self, principal: Principal | None) -> Doer:
        """Who makes the request."""
        if principal is None:
            return Doer(key_id="", principal=NO_KEY, role="", address=self.address)
        return Doer(key_id=principal.key_id, principal=principal.name, role=principal.role, address=self.address)

    async def end(self, outcome: Outcome) -> None:
        """Record how an operation ended that was reached."""
        doer = self.doer
        assert doer is not None
        if self.entry_no is not None:
            await run_in_threadpool(self.trail.end, self.entry_no, doer, self.deed, outcome, routine=self.is_routine)
        elif outcome.result is not Result.DONE or self.is_routine:
            self.trail.count(doer, self.deed, outcome)
        elif not self.silent:
            await run_in_threadpool(self.trail.add, doer, self.deed, outcome)


def audited(request: HTTPConnection) -> AuditedRequest | None:
    """Of a request that may change something; None of others."""
    record = request.scope.get(AUDIT)
    return record if isinstance(record, AuditedRequest) else None


async def begin(request: Request, principal: Principal | None, *, silent: bool = False) -> None:
    """Record that the operation of this request begins. An open route learns from what it is sent who sends it,
    so it is recorded when it has ended. CatalogUnavailable: it may not begin."""
    record = audited(request)
    if record is None or record.doer is not None:
        return
    doer, record.silent = record.by(principal), silent
    record.deed = deed_of(request, record.request_id)
    if record.deed.tenant is None and principal is not None:
        record.deed = replace(record.deed, tenant=principal.tenant)
    if principal is not None and not silent and record.trail.takes_entry(doer, record.deed, routine=record.is_routine):
        record.entry_no = await run_in_threadpool(record.trail.begin, doer, record.deed)
    record.doer = doer


def note_doer(request: Request, principal: Principal) -> None:
    """Who a request on an open route turned out to be."""
    if (record := audited(request)) is not None:
        record.doer = record.by(principal)


def note_ended(request: HTTPConnection, principal: Principal) -> None:
    """Whose key or session a request showed that has ended."""
    if (record := audited(request)) is not None:
        record.ended = principal


def note_target(request: Request, *, tenant: Tenant | None = None, **target: object) -> None:
    """The tenant and the object of an operation whose path does not name them. Never a secret."""
    if (record := audited(request)) is not None:
        words = [record.deed.target, *(f"{name}={value}" for name, value in target.items())]
        record.deed = replace(record.deed, tenant=tenant or record.deed.tenant, target=" ".join(filter(None, words)))


def note_code(request: Request, code: str) -> None:
    """The code of an error that is answered as a page."""
    if (record := audited(request)) is not None:
        record.code = code


def deed_of(request: Request, request_id: str) -> Deed:
    """What a request does, by its route and path."""
    route, given = request.scope.get("route"), request.path_params
    words = [f"{name}={value}" for name, value in given.items() if name not in ("cluster_id", "tenant_id")]
    words += ["dry_run"] if request.query_params.get("dry_run") == "true" else []
    return Deed(operation=operation_of(route), tenant=tenant_of(given), target=" ".join(words), request_id=request_id)


def operation_of(route: Any) -> str:
    """The operation's name in the API's description; of pages, `console` and their address."""
    if not isinstance(route, APIRoute):
        return "(no operation)"
    return (route.operation_id or route.name) if route.include_in_schema else f"console {route.path}"


def tenant_of(given: dict[str, Any]) -> Tenant | None:
    """The tenant of a path; None without one, or when its ids are none."""
    try:
        ids = [int(given[name]) for name in ("cluster_id", "tenant_id")]
    except (KeyError, ValueError):
        return None
    return Tenant(*ids) if all(0 <= number <= INT_MAX for number in ids) else None
