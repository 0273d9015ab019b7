"""Authentication middleware: every request needs a valid key or session, except on open paths.

    Authorization: Bearer tsk_...          a key
    Cookie: tistream_session=tss_...       a console session; changes need its CSRF token, too

Open are the probes, static files and the login page. The middleware authenticates; routes declare what they need
(`tistream.http.auth.access`). Without an authenticator (`--auth none`, on loopback) everyone is ANYONE.

In both modes cross-site requests of browsers are refused. Without an authenticator the Host header must be an address
or a local name, too, against DNS rebinding: there a foreign page is same-site to the browser. A browser without a
session is redirected to the login page.
"""

from __future__ import annotations

import hmac
from functools import partial
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import structlog
from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tistream.errors import NotAllowed, TiStreamError, Unauthenticated
from tistream.http.audit.request import note_ended
from tistream.http.auth.access import ACCESS, OPEN_PATHS, OPEN_PREFIXES, Access, csrf_of
from tistream.http.auth.authenticator import Authenticator
from tistream.http.auth.bodies import read_body, receive_with
from tistream.http.auth.core.roles import ANYONE, Principal
from tistream.http.problem import SECURITY_HEADERS, problem_response

log = structlog.get_logger(__name__)

CSRF_HEADER, CSRF_FIELD = "x-csrf-token", "csrf"
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_FORM = "application/x-www-form-urlencoded"
_FORM_BYTES_MAX = 64 << 10
_COOKIE = "tistream_session"
_NOT_CACHED = (b"cache-control", b"no-store")


def cookie_name(scheme: str) -> str:
    """The `__Host-` prefix binds the cookie to this host and to https."""
    return f"__Host-{_COOKIE}" if scheme == "https" else _COOKIE


class AuthMiddleware:
    """ASGI middleware. `authenticator` None requires no keys; `any_host` then accepts every Host header."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator | None = None, *, any_host: bool = False) -> None:
        self._app, self._authenticator, self._any_host = app, authenticator, any_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        request = HTTPConnection(scope)
        try:
            _refuse_other_sites(request)
            access, receive = await self._authenticate(request, receive)
        except TiStreamError as e:
            if isinstance(e, Unauthenticated) and isinstance(e.ended, Principal):
                note_ended(request, e.ended)
            await _refusal(request, e)(scope, receive, send)
            return
        scope[ACCESS] = access
        if access.principal is not None and access.principal.key_id:
            request.state.principal = access.principal.key_id  # for rate limits and counts
        await self._app(scope, receive, send)

    async def _authenticate(self, request: HTTPConnection, receive: Receive) -> tuple[Access, Receive]:
        if self._authenticator is None:
            if not self._any_host:
                _refuse_other_names(request.headers.get("host", ""))
            return Access(principal=ANYONE), receive
        path = request.scope["path"]
        is_open = path in OPEN_PATHS or path.startswith(OPEN_PREFIXES)
        try:
            access = await self._principal(request, self._authenticator)
        except TiStreamError:
            if not is_open:
                raise
            return Access(principal=None, authenticator=self._authenticator), receive
        if access.session and request.scope["method"] not in SAFE and not is_open:
            request.scope[ACCESS] = access  # whose session it is counts also when the request is refused
            receive = await _checked_csrf(request, receive, csrf_of(access.session))
        return access, receive

    async def _principal(self, request: HTTPConnection, authenticator: Authenticator) -> Access:
        given = request.headers.getlist("authorization")
        if given:
            word, _, key = given[0].partition(" ")
            if len(given) > 1 or word.lower() != "bearer":
                raise Unauthenticated("Authorization has the form: Bearer KEY.")
            again = partial(authenticator.authenticate_key, key.strip())
            return Access(principal=await again(), authenticator=authenticator, again=again)
        token = request.cookies.get(cookie_name(request.scope["scheme"]), "")
        if not token:
            raise Unauthenticated("This address needs an API key.")
        again = partial(authenticator.authenticate_session, token)
        return Access(principal=await again(), authenticator=authenticator, session=token, again=again)


class SecurityHeaders:
    """ASGI middleware: SECURITY_HEADERS on every answer that does not set its own. Only static files are cached by
    default."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._headers = [(k.lower().encode("ascii"), v.encode("ascii")) for k, v in SECURITY_HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                there: Any = list(message.get("headers", ()))
                names = {name.lower() for name, _ in there}
                headers = self._headers if scope["path"].startswith("/static/") else [*self._headers, _NOT_CACHED]
                message["headers"] = there + [pair for pair in headers if pair[0] not in names]
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)


def _refuse_other_names(host: str) -> None:
    """Refuse a Host that is neither an address nor a local name."""
    name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    try:
        ip_address(name)
    except ValueError:
        if "." in name and not name.endswith(".localhost"):
            raise NotAllowed(
                f"Without API keys this service accepts only addresses and local names as Host, not {name}: "
                "use http://127.0.0.1, or start it with --auth keys.",
                host=name,
            ) from None


def _refuse_other_sites(request: HTTPConnection) -> None:
    """Refuse changes requested by pages of other sites. Browsers send the origin; programs do not, and need a key. A
    header such as Authorization proves nothing: a page may send one, and without keys it is not looked at."""
    headers = request.headers
    if request.scope["method"] in SAFE:
        return
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is None and origin is not None:
        site = "same-origin" if urlsplit(origin).netloc == headers.get("host") else "cross-site"
    if site not in (None, "same-origin", "none"):
        raise NotAllowed("Cross-site requests may not change anything.", site=site)


async def _checked_csrf(request: HTTPConnection, receive: Receive, token: str) -> Receive:
    """NotAllowed unless header or form hold the session's token. A form that was read can be received again."""
    given = request.headers.get(CSRF_HEADER, "")
    if not given and request.headers.get("content-type", "").partition(";")[0].strip().lower() == _FORM:
        body = await read_body(receive, _FORM_BYTES_MAX)
        given = parse_qs(body.decode("latin-1"), max_num_fields=1000).get(CSRF_FIELD, [""])[0]
        receive = receive_with(body, receive)
    if not hmac.compare_digest(given.encode("utf-8", "replace"), token.encode("ascii")):
        raise NotAllowed("The request lacks the CSRF token of this session: reload the page.")
    return receive


def _refusal(request: HTTPConnection, error: TiStreamError) -> Response:
    path, headers = request.scope["path"], request.headers
    if "authorization" in headers or "cookie" in headers:
        log.info("request refused", path=path, code=error.code, why=error.message)
    if not isinstance(error, Unauthenticated) or path.startswith("/v1/") or "authorization" in headers:
        return problem_response(error)
    if headers.get("hx-request") == "true":
        answer = problem_response(error)
        answer.headers["HX-Redirect"] = "/login"
        return answer
    if request.scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
        return RedirectResponse(f"/login?next={quote(path, safe='/')}", 303, dict(SECURITY_HEADERS))
    return problem_response(error)
