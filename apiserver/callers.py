"""Who asks: the authenticated principal, or the address where there is no authentication."""

from __future__ import annotations

from starlette.requests import HTTPConnection


def caller_of(request: HTTPConnection) -> str:
    """A name for counting and limiting. `request.state.principal` wins, which authentication sets."""
    principal = getattr(request.state, "principal", None)
    if principal is not None:
        return f"principal {principal}"
    return f"address {request.client.host}" if request.client is not None else "somebody"
