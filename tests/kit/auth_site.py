"""The service that `tistream up --auth keys` serves, for tests: keys, routes, and its clock in the hand of the test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.testclient import TestClient

from tests.kit.answer_judge import judged
from tests.kit.log_builder import LogBuilder
from tests.kit.manual_clock import ManualClock
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.cli import assembly
from tistream.cli.running import Parts
from tistream.config import CatalogSettings, ObjectStoreSettings, ServerSettings, Settings
from tistream.http.auth.access import every_route
from tistream.http.auth.core.roles import Role
from tistream.http.auth.issue import issue_key
from tistream.ids import Tenant

MINE, OTHER, NOBODYS = Tenant(1, 1), Tenant(2, 7), Tenant(9, 9)
FILLED = {
    "database": "absent", "table": "none", "store_id": "1", "task_id": "1", "key_id": "a" * 13, "ts": "1", "name": "f",
}  # fmt: skip
OPEN = {("GET", "/livez"), ("GET", "/readyz"), ("GET", "/version"), ("GET", "/login"), ("POST", "/login")}


@dataclass
class Site:
    """A service that asks for keys, and the clients of the tests."""

    parts: Parts
    app: FastAPI
    http: TestClient
    clock: ManualClock

    def key(self, role: Role, tenant: Tenant | None = None, **more: Any) -> str:
        return issue_key(self.parts.catalog, name=f"a {role}", role=role, tenant=tenant, **more).text

    def ask(self, method: str, path: str, key: str | None = None, **more: Any) -> httpx2.Response:
        headers = {**({} if key is None else {"Authorization": f"Bearer {key}"}), **more.pop("headers", {})}
        return self.http.request(method, path, headers=headers, follow_redirects=False, **more)

    def get(self, path: str, key: str | None = None, **more: Any) -> httpx2.Response:
        return self.ask("GET", path, key, **more)

    @contextmanager
    def without_keys(self) -> Iterator[TestClient]:
        """The same service as one that asks for no keys."""
        server = self.parts.settings.server.model_copy(update={"auth": "none"})
        parts = replace(self.parts, settings=self.parts.settings.model_copy(update={"server": server}))
        with TestClient(assembly._api(parts, []), raise_server_exceptions=False) as http:
            yield http

    def routes(self) -> list[tuple[str, str, APIRoute]]:
        """(method, address with parameters, route) of everything that is not open."""
        api_routes = [r for r in every_route(self.app) if isinstance(r, APIRoute)]
        every = [(m, r.path, r) for r in api_routes for m in sorted(r.methods or ())]
        return [row for row in every if row[:2] not in OPEN and not row[1].startswith("/problems")]


@contextmanager
def auth_site(folder: Path) -> Iterator[Site]:
    """The service over an empty folder, with a tenant that has a log and another one that has none."""
    (folder / "bucket").mkdir()
    settings = Settings(
        catalog=CatalogSettings(url=f"sqlite:///{folder}/catalog.db"),
        object_store=ObjectStoreSettings(url=f"file://{folder}/bucket"),
        server=ServerSettings(auth="keys"),
    )
    parts = assembly.open_parts(settings)
    clock = ManualClock(parts.clock.unix_ms())
    parts.clock = clock  # type: ignore[assignment]
    LogBuilder(parts.catalog, parts.store).register().build(2)
    register_tenant(parts.catalog, OTHER)
    app = assembly._api(parts, [])
    judge = judged(app)
    with TestClient(app, raise_server_exceptions=False) as http:
        yield Site(parts, app, http, clock)
    parts.catalog.close()
    judge.check()


def fill(path: str, tenant: Tenant = MINE) -> str:
    """The address with something in the place of each parameter."""
    values = {**FILLED, "cluster_id": str(tenant.cluster_id), "tenant_id": str(tenant.tenant_id)}
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda m: values.get(m[1], "1"), path)


def is_problem(answer: httpx2.Response, status: int, code: str) -> bool:
    """A problem document that names nothing of ours but what the caller sent."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    if answer.request.method == "HEAD":
        return True
    assert answer.json()["code"] == code
    for secret in ("catalog.db", "bucket", "Traceback", "shop", "sqlite", "tsk_a", "tsk_b"):
        assert secret not in answer.text.replace("tsk_..._...", "")
    return True
