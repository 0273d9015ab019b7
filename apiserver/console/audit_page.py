"""The page of the audit log: who changed what, with filters. It shows what GET /v1/audit-log answers."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query

from apiserver.console.operator_pages import parse_tenant
from apiserver.console.operator_views import ROWS
from apiserver.console.pages import Pages
from apiserver.control.audit_log import Cursor, OfOperation, OfPrincipal, Since, moment_ms, visible_tenant
from tistream.admin.audit_log import entries_page
from tistream.catalog.rows.audit import Result
from tistream.catalog.tenancy.audit_log import EntryFilter
from tistream.catalog.tenancy.tenants import list_tenants
from tistream.errors import InvalidInput
from tistream.http.auth.access import Who
from tistream.http.auth.core.roles import Right

_PATH = "/audit-log"
_TenantName = Annotated[str | None, Query(alias="tenant", max_length=40)]
_Result = Annotated[str | None, Query(max_length=32)]


def add_pages(pages: Pages) -> None:
    """Add the page."""
    services = pages.services

    @pages.view(_PATH, "audit_log.html", right=Right.KEYS, filtered=True, every=3)
    def audit_log(
        who: Who,
        tenant: _TenantName = None,
        principal: OfPrincipal = None,
        operation: OfOperation = None,
        result: _Result = None,
        since_time: Since = None,
        cursor: Cursor = None,
    ) -> dict[str, Any]:
        chosen = visible_tenant(who, parse_tenant(tenant))
        which = EntryFilter(
            since_ms=moment_ms(since_time, services.clock),
            principal=principal or None,
            operation=operation or None,
            tenant=chosen,
            result=_checked(result),
        )
        given = {
            "tenant": tenant,
            "principal": principal,
            "operation": operation,
            "result": result,
            "since_time": since_time,
        }
        page = entries_page(services.catalog, which, limit=ROWS, cursor=cursor or None)
        query = urlencode({name: value for name, value in given.items() if value})
        return {
            **page,
            **given,
            "cursor": cursor,
            "newest_page": f"{_PATH}?{query}".rstrip("?"),
            "older_page": f"{_PATH}?{query}&cursor={page['next_cursor']}".replace("?&", "?"),
            "results": [str(each) for each in Result],
            "tenants": [str(row.tenant) for row in list_tenants(services.catalog) if who.sees(row.tenant)],
            "chosen": None if chosen is None else str(chosen),
        }


def _checked(result: str | None) -> str | None:
    if result and result not in list(Result):
        raise InvalidInput(f"Entries are {', '.join(Result)}.", result=result)
    return result or None
