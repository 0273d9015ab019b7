"""Names in paths that a path cannot hold as they are.

    /databases/shop/tables/a%2Fb/changes      the table `a/b`
    /databases/shop/tables/%60..%60/changes   the table `..`

Servers decode paths before routing, so an encoded slash of a name would look like a separator. The middleware replaces
it by a character that no name contains, and the `name` convertor of routes restores it. Clients take `.` and `..` out
of a path before they send it, also encoded ones, so these two names are written in backquotes (and so are the names
that consist of them and backquotes, which this makes ambiguous). Nothing else is unquoted.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from starlette.convertors import StringConvertor, register_url_convertor
from starlette.types import ASGIApp, Receive, Scope, Send

_ASIDE = "\ufdd0"  # a noncharacter of Unicode
_ENCODED = re.compile(rb"%2f", re.IGNORECASE)
_DOTS = re.compile(r"`+\.{1,2}`+")
_OF_NAMES = b"/databases/"


class _NameConvertor(StringConvertor):
    """`{table:name}` in a route."""

    def convert(self, value: str) -> str:
        name = value.replace(_ASIDE, "/")
        return name[1:-1] if _DOTS.fullmatch(name) else name

    def to_string(self, value: str) -> str:
        return value.replace("/", _ASIDE)


register_url_convertor("name", _NameConvertor())


class NameSlashes:
    """The middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path") or b""
        if scope["type"] == "http" and _OF_NAMES in raw and _ENCODED.search(raw):
            parts = _ENCODED.split(raw.partition(b"?")[0])
            scope = {**scope, "path": _ASIDE.join(unquote(part.decode("latin-1")) for part in parts)}
        await self._app(scope, receive, send)
