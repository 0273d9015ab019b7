"""Login and logout of the console.

    GET  /login     a form; /login#CODE fills it in, and the visitor submits it
    POST /login     a login code (once) or an API key starts a session
    POST /logout    ends it

Browsers do not send the code behind the `#`, so it is in no log, and link previews cannot use it up. The session is an
HttpOnly, SameSite=Strict cookie.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from apiserver.callers import caller_of
from apiserver.core.token_buckets import BucketPolicy, Buckets
from reading.served.services import Services
from tistream.catalog.tenancy.logins import end_session
from tistream.errors import RateLimited, Unauthenticated
from tistream.http.audit.request import note_code, note_doer
from tistream.http.auth.access import access_of, needs
from tistream.http.auth.authenticator import Authenticator
from tistream.http.auth.bodies import read_body
from tistream.http.auth.core.keys import hash_of
from tistream.http.auth.core.roles import OfLimited, Principal, Right
from tistream.http.auth.issue import session_by_code, session_of
from tistream.http.auth.middleware import cookie_name
from tistream.limits import SESSION_MS

_HOME = "/overview"
_PAGE = re.compile(r"/(?:[A-Za-z0-9_.-][A-Za-z0-9/_.-]*)?")
_FORM_BYTES_MAX = 4096
_WRONG = BucketPolicy(name="wrong-logins", rate=0.2, burst=10)  # of an address

Render = Callable[[Request, str, dict[str, Any], int], Response]


def router(services: Services, render: Render) -> APIRouter:
    """The three routes. `render(request, template, view, status)` makes a page."""
    routes, wrong = APIRouter(include_in_schema=False), Buckets(_WRONG)

    @routes.get("/login", dependencies=[needs(Right.OPEN)])
    def form(request: Request, next: str = _HOME) -> Response:
        if access_of(request).authenticator is None:
            return RedirectResponse(_HOME, 303)
        return render(request, "login.html", {"next": _own_page(next), "error": ""}, 200)

    @routes.post("/login", dependencies=[needs(Right.OPEN)])
    async def log_in(request: Request) -> Response:
        authenticator = access_of(request).authenticator
        if authenticator is None:
            return RedirectResponse(_HOME, 303)
        fields = parse_qs((await read_body(request.receive, _FORM_BYTES_MAX)).decode("latin-1"), max_num_fields=10)
        caller, now_s = caller_of(request), services.clock.monotonic()
        if wait_s := math.ceil(wrong.wait_s(caller, now_s)):
            raise RateLimited(
                f"Too many wrong logins: try again in {wait_s} s.", bucket=_WRONG.name, retry_after_s=wait_s
            )
        given, page = fields.get("code", [""])[0].strip(), _own_page(fields.get("next", [_HOME])[0])
        try:
            token = await _session(services, authenticator, given)
            note_doer(request, await authenticator.authenticate_session(token))
        except Unauthenticated as e:
            wrong.take(caller, 1, now_s)
            note_code(request, e.code)
            if isinstance(e.ended, Principal):
                note_doer(request, e.ended)
            return render(request, "login.html", {"next": page, "error": e.message}, 401)
        answer = RedirectResponse(page, 303)
        scheme = request.url.scheme
        answer.set_cookie(
            cookie_name(scheme),
            token,
            max_age=SESSION_MS // 1000,
            httponly=True,
            samesite="strict",
            secure=scheme == "https",
        )
        return answer

    @routes.post("/logout", dependencies=[needs(Right.KNOWN, limited=OfLimited.NO_TABLES)])
    def log_out(request: Request) -> Response:
        access, name = access_of(request), cookie_name(request.url.scheme)
        if access.session and access.authenticator is not None:
            end_session(services.catalog, hash_of(access.session))
            access.authenticator.forget(hash_of(access.session))
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(name, httponly=True, samesite="strict", secure=request.url.scheme == "https")
        return answer

    return routes


async def _session(services: Services, authenticator: Authenticator, given: str) -> str:
    """The token of a new session. Unauthenticated with the reason."""
    if given.startswith("tsk_"):
        who = await authenticator.authenticate_key(given)
        if Right.LOOK not in who.rights:
            raise Unauthenticated(f"A key of role {who.role} cannot open the console.")
        if who.tables is not None:
            raise Unauthenticated("A key that is limited to tables cannot open the console.")
        return await run_in_threadpool(session_of, services.catalog, who.key_id)
    token = await run_in_threadpool(session_by_code, services.catalog, given)
    if token is None:
        raise Unauthenticated("This login code is invalid, used or expired. Create a new one.")
    return token


def _own_page(text: str) -> str:
    """A path of this site, else the overview."""
    return text if _PAGE.fullmatch(text) else _HOME
