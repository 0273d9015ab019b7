"""Adds routes of the control plane: each needs a right, and refuses keys that are limited to tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter

from tistream import ts as tso
from tistream.errors import InvalidInput
from tistream.http.auth.access import needs
from tistream.http.auth.core.roles import OfLimited, Right

_INT_MAX = (1 << 63) - 1
_LAST_MS = 253_402_300_799_000  # of the year 9999
F = TypeVar("F", bound=Callable[..., Any])


def route(
    routes: APIRouter, method: str, path: str, right: Right, operation_id: str, summary: str, **more: Any
) -> Callable[[F], F]:
    """A decorator that adds its function to `routes`. `more`: as FastAPI takes it."""
    named: dict[str, Any] = {"operation_id": operation_id, "summary": summary, **more}
    return routes.api_route(path, methods=[method], dependencies=[needs(right, limited=OfLimited.REFUSED)], **named)


def timestamp(text: str) -> int:
    """A TSO of digits. InvalidInput when its time is after the year 9999."""
    value = int(text)
    if value > _INT_MAX or (value and tso.physical_ms(value) > _LAST_MS):
        raise InvalidInput(f"{text} is not a timestamp.")
    return value
