"""Names the caller of a request: the authenticated principal, or else the client address."""

from __future__ import annotations

from starlette.requests import HTTPConnection


def caller_of(request: HTTPConnection) -> str:
    """The caller's name for counts and limits. Authentication sets `request.state.principal`."""
    principal = getattr(request.state, "principal", None)
    if principal is not None:
        return f"principal {principal}"
    return f"address {request.client.host}" if request.client is not None else "unknown"
