"""Adds pages to the console: views, as HTML and as `.json`, and admin actions with a dry run.

    @pages.view("/workers", "workers.html", every=3)       GET /workers and /workers.json
    def workers() -> dict[str, Any]: ...

    @pages.action("/workers/{worker_id}/drain")            GET shows what would happen, POST does it and goes back
    def drain(worker_id: str) -> Action: ...

Parameters of the functions are parameters of the routes. Errors are rendered as pages, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse
from jinja2 import Environment

from apiserver.console.live import LiveParts
from apiserver.console.page_context import HEADERS, page_context
from reading.served.services import Services
from tistream.errors import TiStreamError
from tistream.http import problem
from tistream.http.audit.request import note_code
from tistream.http.auth.access import access_of, needs
from tistream.http.auth.bodies import read_body
from tistream.http.auth.core.roles import OfLimited, Right

_FORM_BYTES_MAX = 16 << 10

View = TypeVar("View", bound=Callable[..., dict[str, Any]])


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form; empty for a GET."""
    body = await read_body(request.receive, _FORM_BYTES_MAX) if request.method == "POST" else b""
    return dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=20))


Form = Annotated[dict[str, str], Depends(_form)]


@dataclass(frozen=True, slots=True)
class Action:
    """An admin action. `run(dry_run=, actor=)` does it, or says what it would do."""

    run: Callable[..., dict[str, Any]]
    title: str
    back: str  #: the page to return to


class Pages:
    """The console's router. Its pages show whole tenants, so they refuse keys that are limited to tables."""

    def __init__(self, services: Services, env: Environment) -> None:
        self.services, self.live = services, LiveParts()
        self.routes = APIRouter(include_in_schema=False)
        self._env = env

    def view(
        self,
        path: str,
        template: str,
        *,
        right: Right = Right.LOOK,
        filtered: bool = False,
        every: float | None = None,
        json: bool = True,
    ) -> Callable[[View], View]:
        """Answer `path` with what the function returns, in the template. `every`: seconds between live updates."""
        needed = [needs(right, filtered=filtered, limited=OfLimited.REFUSED)]

        def add(view: View) -> View:
            signature = inspect.signature(view, eval_str=True)
            others = [p for name, p in signature.parameters.items() if name != "request"]
            takes_request = len(others) < len(signature.parameters)

            def page(request: Request, **given: Any) -> Response:
                given |= {"request": request} if takes_request else {}
                return self.show(request, template, lambda: view(**given))

            first = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Request)
            page.__signature__ = inspect.Signature([first, *others], return_annotation=Response)  # type: ignore[attr-defined]
            if json:
                self.routes.get(f"{path}.json", dependencies=needed)(view)
            if every is not None:
                self.live.every(every)(page)
            self.routes.get(path, dependencies=needed)(page)
            return view

        return add

    def action(
        self, path: str, *, right: Right = Right.OPERATE, filtered: bool = False, template: str = "confirm.html"
    ) -> Callable[[Callable[..., Action]], None]:
        """Answer GET `path` with a dry run of the action and a form, and POST by doing it."""

        def add(parse: Callable[..., Action]) -> None:
            parsed = Depends(parse)

            def confirm(request: Request, action: Any = parsed) -> Response:
                dry_run, who = request.method == "GET", access_of(request).principal
                actor = f"console {who.key_id}" if who is not None and who.key_id else "console"

                def shown() -> dict[str, Any]:
                    return {**action.run(dry_run=dry_run, actor=actor), "title": action.title, "back": action.back}

                answer = self.show(request, template, shown)
                return answer if dry_run or answer.status_code != 200 else RedirectResponse(action.back, 303)

            needed = [needs(right, filtered=filtered, limited=OfLimited.REFUSED)]
            self.routes.api_route(path, methods=["GET", "POST"], dependencies=needed)(confirm)

        return add

    def show(self, request: Request, template: str, view: Callable[[], dict[str, Any]]) -> Response:
        """The page, or the page of its error."""
        status, context = 200, page_context(request)
        try:
            text = self._env.get_template(template).render(view(), **context)
        except TiStreamError as e:
            status = problem.status_of(e)
            note_code(request, e.code)
            text = self._env.get_template("problem.html").render(problem.problem_body(e), **context)
        return Response(text, status, HEADERS, "text/html")

    def render(self, request: Request, template: str, view: dict[str, Any], status: int) -> Response:
        """A whole page with this status."""
        context = {**page_context(request), "part": False}
        return Response(self._env.get_template(template).render(view, **context), status, HEADERS, "text/html")
