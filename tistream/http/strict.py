"""Refuses query parameters and body members that a route does not know, with the nearest name that it knows.

An unknown name is a typing error or a wish of the caller; ignoring it answers another question than the one that was
asked. The dependency is added to a whole application and applies to the routes in its OpenAPI description.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import get_args
from urllib.parse import parse_qsl

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel

from tistream.errors import InvalidInput, did_you_mean
from tistream.http.auth.middleware import CSRF_FIELD


async def refuse_unknown(request: Request) -> None:
    """InvalidInput for an unknown query parameter or body member."""
    route = request.scope["route"]
    if not isinstance(route, APIRoute) or not route.include_in_schema:
        return
    parameters, hidden = query_parameters(route)
    _check("parameter", request.query_params, parameters, hidden)
    if request.method in ("GET", "HEAD"):
        return
    body = await request.body()
    if not body:
        return
    members = _members(route)
    if not members and _is_bare_form(request, body):
        return
    try:
        sent = await request.json()  # once: a route that takes a body has had it parsed
    except (ValueError, RecursionError):
        sent = None  # the route says so when it takes a body
    if not members and sent != {}:
        raise InvalidInput(f"{request.method} {request.url.path} takes no body.")
    if isinstance(sent, dict):
        _check("member in the body", sent, members)


def _is_bare_form(request: Request, body: bytes) -> bool:
    """Whether the body is a form of the console that carries nothing but the token against forgery."""
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return False
    return {name for name, _ in parse_qsl(body.decode("latin-1"), keep_blank_values=True)} == {CSRF_FIELD}


def _check(kind: str, given: Collection[str], known: Collection[str], hidden: Collection[str] = ()) -> None:
    for name in given:
        if name not in known and name not in hidden:
            near = did_you_mean(name, known) if known else ": the route takes none."
            raise InvalidInput(f"There is no {kind} {name[:80]!r}{near}", name=name[:80])


def query_parameters(route: APIRoute) -> tuple[frozenset[str], frozenset[str]]:
    """The query parameters of a route: those in its description, and others that it takes."""
    fields = [field for each in _all(route.dependant) for field in each.query_params]
    shown = {field.alias for field in fields if getattr(field.field_info, "include_in_schema", True)}
    return frozenset(shown), frozenset(field.alias for field in fields) - shown


def _members(route: APIRoute) -> frozenset[str]:
    """The members of a route's body."""
    fields = [field for each in _all(route.dependant) for field in each.body_params]
    return frozenset(name for field in fields for name in _names(field.field_info.annotation))


def _all(dependant: Dependant) -> Iterator[Dependant]:
    yield dependant
    for each in dependant.dependencies:
        yield from _all(each)


def _names(annotation: object) -> Iterator[str]:
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from kind.model_fields
