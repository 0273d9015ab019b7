"""Whether a form was sent by one of our own pages: the one place where that is decided.

A browser says with `Sec-Fetch-Site` where a request comes from, and no page can change that; one that does not say it
sends `Origin` with every POST. Programs use the API, not the console's forms.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from fastapi import Request

from tistream.errors import InvalidInput


def check_origin(request: Request) -> None:
    """InvalidInput unless the request comes from a page of this console."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        ours = site == "same-origin"
    else:
        origin = request.headers.get("Origin")
        ours = origin is not None and urlsplit(origin).netloc == request.headers.get("Host")
    if not ours:
        raise InvalidInput("This form was not sent by a page of the console; nothing was done.")
