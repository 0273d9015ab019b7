"""Adds routes of the control plane: each needs a right, and refuses keys that are limited to tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter
from pydantic import BaseModel

from tistream import ts as tso
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.errors import InvalidInput
from tistream.http.auth.access import needs
from tistream.http.auth.core.roles import OfLimited, Right
from tistream.ids import Tenant
from tistream.limits import INT_MAX

_LAST_MS = 253_402_300_799_000  # of the year 9999
F = TypeVar("F", bound=Callable[..., Any])


def route(
    routes: APIRouter,
    method: str,
    path: str,
    right: Right,
    summary: str,
    *,
    answer: type[BaseModel] | None = None,
    **more: Any,
) -> Callable[[F], F]:
    """A decorator that adds its function to `routes`. `answer`: the model of what it returns as a dictionary; `more`:
    as FastAPI takes it."""
    if answer is not None:
        more["responses"] = {200: {"model": answer}}
    needed = [needs(right, limited=OfLimited.REFUSED)]
    return routes.api_route(path, methods=[method], dependencies=needed, summary=summary, **more)


def known(catalog: Catalog, tenant: Tenant) -> Tenant:
    """The tenant. NotFound, TenantDeleted."""
    return get_tenant(catalog, tenant).tenant


def timestamp(text: str) -> int:
    """A TSO of digits. InvalidInput when its time is after the year 9999."""
    value = int(text)
    if value > INT_MAX or (value and tso.physical_ms(value) > _LAST_MS):
        raise InvalidInput(f"{text} is not a timestamp.")
    return value
