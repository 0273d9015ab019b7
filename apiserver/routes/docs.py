"""/docs: a page to read and try the API. All its files are served here; no inline script."""

from __future__ import annotations

import json
from pathlib import Path

from fastapi import APIRouter, Response

from tistream.http.auth.access import needs
from tistream.http.auth.core.roles import OfLimited, Right

_STATIC = Path(__file__).parents[1] / "console" / "static"
_UI = "swagger-ui-5.35.0"
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>API · TiStream</title>
<link rel="icon" href="/static/icon.svg">
<link rel="stylesheet" href="/static/vendor/{css}" integrity="{css_hash}">
</head>
<body>
<main id="api"></main>
<script src="/static/vendor/{js}" integrity="{js_hash}"></script>
<script src="/static/api_docs.js"></script>
</body>
</html>
"""


def router() -> APIRouter:
    """The page; not part of the API's description."""
    routes = APIRouter(include_in_schema=False)
    hashes = json.loads((_STATIC / "vendor" / "vendor.json").read_text("utf-8"))
    css, js = f"{_UI}/swagger-ui.css", f"{_UI}/swagger-ui-bundle.js"
    page = _PAGE.format(css=css, css_hash=hashes[css], js=js, js_hash=hashes[js])

    @routes.get("/docs", dependencies=[needs(Right.KNOWN, limited=OfLimited.NO_TABLES)])
    def docs() -> Response:
        return Response(page, media_type="text/html")

    return routes
