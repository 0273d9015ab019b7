"""Adds routes of the control plane: each needs a right, and refuses keys that are limited to tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter

from tistream.http.auth.access import needs
from tistream.http.auth.core.roles import OfLimited, Right

F = TypeVar("F", bound=Callable[..., Any])


def route(
    routes: APIRouter, method: str, path: str, right: Right, operation_id: str, summary: str, **more: Any
) -> Callable[[F], F]:
    """A decorator that adds its function to `routes`. `more`: as FastAPI takes it."""
    named: dict[str, Any] = {"operation_id": operation_id, "summary": summary, **more}
    return routes.api_route(path, methods=[method], dependencies=[needs(right, limited=OfLimited.REFUSED)], **named)
