"""Route of the audit log: GET /v1/audit-log. Keys of one tenant see the entries of this tenant. Nothing deletes one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from apiserver.answers.audit_log import AuditLogPage
from apiserver.control.admin import Limit, TenantFilter
from reading.served.position import parse_ts
from tistream import ts as tso
from tistream.admin.audit_log import entries_page
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.audit_log import EntryFilter
from tistream.catalog.tenancy.tenants import not_registered
from tistream.clock import Clock
from tistream.http.auth.access import Who, needs
from tistream.http.auth.core.roles import Principal, Right
from tistream.ids import Tenant

_FORMS = "an RFC 3339 time, a TSO, or a span back from now as -15m"
Cursor = Annotated[str | None, Query(max_length=40, description="next_cursor of the previous page")]
After = Annotated[str | None, Query(max_length=20, description="newer than this entry_no, in order")]
Since = Annotated[str | None, Query(max_length=40, description=f"begun at or after: {_FORMS}")]
Until = Annotated[str | None, Query(max_length=40, description=f"begun before: {_FORMS}")]
OfPrincipal = Annotated[str | None, Query(max_length=255, description="name or id of a key, or the user of a command")]
OfOperation = Annotated[str | None, Query(max_length=128, description="as pause_tenant")]
OfResult = Annotated[Literal["unknown", "done", "refused", "failed"] | None, Query(description="how it ended")]


def audit_log_router(catalog: Catalog, clock: Clock) -> APIRouter:
    """The route over this catalog."""
    routes = APIRouter(tags=["admin"], dependencies=[needs(Right.KEYS, filtered=True)])

    @routes.get("/v1/audit-log", summary="Who changed what, newest first", responses={200: {"model": AuditLogPage}})
    def list_audit_entries(
        who: Who,
        tenant: TenantFilter,
        limit: Limit = 100,
        cursor: Cursor = None,
        after: After = None,
        since_time: Since = None,
        until_time: Until = None,
        principal: OfPrincipal = None,
        operation: OfOperation = None,
        result: OfResult = None,
    ) -> dict[str, Any]:
        which = EntryFilter(
            since_ms=moment_ms(since_time, clock),
            until_ms=moment_ms(until_time, clock),
            principal=principal,
            operation=operation,
            tenant=visible_tenant(who, tenant),
            result=result,
        )
        return entries_page(catalog, which, limit=limit, cursor=cursor, after=after)

    return routes


def visible_tenant(who: Principal, tenant: Tenant | None) -> Tenant | None:
    """The tenant whose entries are shown; None = all. NotFound for one that the key may not see."""
    if tenant is not None and not who.sees(tenant):
        raise not_registered(tenant)
    return who.tenant if tenant is None else tenant


def moment_ms(text: str | None, clock: Clock) -> int | None:
    """Unix milliseconds. InvalidInput for another text."""
    if not text:
        return None
    now_ms = clock.unix_ms()
    return tso.physical_ms(parse_ts(text, earliest=0, latest=tso.compose(now_ms), now_ms=now_ms))
