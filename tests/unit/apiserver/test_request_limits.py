"""What stands before every route: buckets of requests and bytes, and what a request may carry."""

from __future__ import annotations

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from apiserver import request_limits
from apiserver.request_limits import RateLimits, RequestLimits
from tests.kit.manual_clock import ManualClock
from tistream.http import problem
from tistream.http.auth.access import ACCESS, Access
from tistream.http.auth.core.roles import Principal, Role
from tistream.ids import Tenant

TENANT = "/v1/clusters/1/tenants/{}/x"


class Known:
    """Stands for the check of keys: it says who asks."""

    def __init__(self, app: ASGIApp, principal: Principal) -> None:
        self._app, self._principal = app, principal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[ACCESS] = Access(principal=self._principal)
        await self._app(scope, receive, send)


def app_with(limits: RateLimits, clock: ManualClock, principal: Principal | None = None) -> TestClient:
    app = FastAPI()
    problem.install(app)
    app.add_middleware(RequestLimits, limits=limits, clock=clock)
    if principal is not None:
        app.add_middleware(Known, principal=principal)

    @app.get("/v1/clusters/{c}/tenants/{t}/x")
    def answer(c: int, t: int, size: int = 10) -> PlainTextResponse:
        return PlainTextResponse("x" * size)

    @app.get("/live")
    @app.get("/livez")
    def livez() -> str:
        return "ok"

    @app.post("/echo")
    async def echo(request: Request) -> int:
        return len(await request.body())

    return TestClient(app, raise_server_exceptions=False)


def test_without_bounds_nothing_is_said() -> None:
    answer = app_with(RateLimits(), ManualClock(0)).get(TENANT.format(1))
    assert answer.status_code == 200
    assert "ratelimit" not in answer.headers


def test_an_empty_bucket_refuses_by_name_and_says_when_it_is_not() -> None:
    clock = ManualClock(0)
    http = app_with(RateLimits(caller_requests_per_s=0.5, burst_s=4), clock)
    first = http.get(TENANT.format(1))
    assert first.headers["ratelimit-policy"] == '"caller-requests";q=2;w=4'
    assert first.headers["ratelimit"] == '"caller-requests";r=1;t=0'
    assert http.get(TENANT.format(2)).headers["ratelimit"] == '"caller-requests";r=0;t=2'
    refused = http.get(TENANT.format(1))
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
    assert (refused.json()["code"], refused.json()["facts"]["bucket"]) == ("TS-1090", "caller-requests")
    assert http.get("/livez").status_code == 200, "probes are never refused"
    assert http.get("/live").status_code == 200, "nor is the console's stream: its parts are"
    clock.advance(2)
    assert http.get(TENANT.format(1)).status_code == 200


def test_tenants_have_buckets_of_their_own_however_their_ids_are_written() -> None:
    http = app_with(RateLimits(tenant_requests_per_s=0.1, burst_s=10), ManualClock(0))
    assert http.get(TENANT.format(1)).status_code == 200
    assert http.get(TENANT.format("01")).json()["facts"]["bucket"] == "tenant-requests"
    assert http.get(TENANT.format(2)).status_code == 200


def test_bytes_are_taken_when_they_are_sent_and_waited_for_afterwards() -> None:
    clock = ManualClock(0)
    http = app_with(RateLimits(tenant_mib_per_s=1, burst_s=1), clock)
    assert len(http.get(TENANT.format(1), params={"size": 3 << 20}).content) == 3 << 20
    refused = http.get(TENANT.format(1))
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
    assert 'qu="content-bytes"' in refused.headers["ratelimit-policy"]
    clock.advance(2.1)
    assert http.get(TENANT.format(1)).status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch, chunked: bool) -> None:
    monkeypatch.setattr(request_limits, "REQUEST_BODY_BYTES_MAX", 1000)
    http = app_with(RateLimits(), ManualClock(0))
    assert http.post("/echo", content=b"x" * 1000).text == "1000"
    refused = http.post("/echo", content=iter([b"x" * 600, b"x" * 600]) if chunked else b"x" * 1200)
    assert (refused.status_code, refused.json()["code"]) == (413, "TS-1008")


def test_a_key_of_another_tenant_neither_uses_nor_sees_a_tenants_budget() -> None:
    limits = RateLimits(tenant_requests_per_s=0.1, burst_s=20)
    http = app_with(limits, ManualClock(0), Principal(key_id="b", name="b", role=Role.CONSUMER, tenant=Tenant(1, 2)))
    for _ in range(5):
        answer = http.get(TENANT.format(1))
        assert answer.status_code == 200, "the route is what refuses"
        assert "ratelimit" not in answer.headers
    assert http.get(TENANT.format(2)).headers["ratelimit"] == '"tenant-requests";r=1;t=0'
