"""Error reference of a server: what each error means and what to do, at the address that a problem document names.

    /problems            all errors
    /problems/TS-1005    one

Generated from the error classes. Pages contain no script and nothing of the request.
"""

from __future__ import annotations

import html
import inspect

from fastapi import APIRouter, Response

from tistream.errors import ErrorKind, NotFound, TiStreamError

PATH = "/problems"
TO_DO = {
    ErrorKind.RETRY: "try again later; nothing is lost",
    ErrorKind.FENCED: "another process owns this now: drop its state and stop",
    ErrorKind.INVALID: "change the request",
    ErrorKind.CORRUPT: "an object is damaged: restore a good copy; nothing of the damaged one was used",
    ErrorKind.NOT_FOUND: "check the name",
    ErrorKind.INTERNAL: "a defect: report it with the log",
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "public, max-age=3600",
}


def type_of(error: type[TiStreamError]) -> str:
    """The `type` of a problem document: a path of the answering server."""
    return f"{PATH}/{error.code}"


def known_errors() -> dict[str, type[TiStreamError]]:
    """Code -> class, of every error of this process, by code."""
    errors, todo = {TiStreamError}, [TiStreamError]
    while todo:
        new = todo.pop().__subclasses__()
        errors.update(new)
        todo += new
    return {error.code: error for error in sorted(errors, key=lambda e: e.code)}


def router() -> APIRouter:
    """The pages; not part of the API's description."""
    routes = APIRouter(include_in_schema=False)

    @routes.get(PATH)
    def all_of_them() -> Response:
        rows = "".join(
            f'<li><a href="{type_of(e)}"><code>{code}</code></a> {html.escape(first_line(e))}</li>'
            for code, e in known_errors().items()
        )
        return _page("Problems", f"<h1>Problems</h1><ul>{rows}</ul>")

    @routes.get(PATH + "/{code}")
    def one(code: str) -> Response:
        error = known_errors().get(code)
        if error is None:
            raise NotFound("Unknown error code.", asked=code[:40])
        text = "".join(f"<p>{html.escape(part)}</p>" for part in paragraphs(error))
        hint = f"<p><strong>What to do:</strong> {html.escape(error.hint)}</p>" if error.hint else ""
        kind = f"<p><strong>Kind:</strong> {error.kind}: {html.escape(TO_DO[error.kind])}.</p>"
        name = f"<h1><code>{code}</code> {error.__name__}</h1>"
        return _page(code, f'{name}{text}{hint}{kind}<p><a href="{PATH}">All problems</a></p>')

    return routes


def first_line(error: type[TiStreamError]) -> str:
    """What happened, in one sentence."""
    return (error.__doc__ or "").split("\n")[0]


def paragraphs(error: type[TiStreamError]) -> list[str]:
    """The docstring of an error, by paragraph."""
    return [" ".join(part.split()) for part in inspect.cleandoc(error.__doc__ or "").split("\n\n")]


def _page(title: str, body: str) -> Response:
    text = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title} · TiStream</title><main>{body}</main>'
    return Response(text, headers=_HEADERS, media_type="text/html")
