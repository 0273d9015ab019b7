"""Each request gets an id, a log line and a count."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from fastapi import FastAPI
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from tistream.errors import NotFound
from tistream.http import problem
from tistream.http.access_log import RequestLog
from tistream.runtime import metrics

log = structlog.get_logger(__name__)


@pytest.fixture(params=[True, False], ids=["with a line", "without"])
def http(request: pytest.FixtureRequest) -> Iterator[TestClient]:
    app = FastAPI()
    problem.install(app)

    @app.get("/v1/clusters/{c}/tenants/{t}/x")
    def look(c: int, t: int) -> dict[str, object]:
        return dict(structlog.contextvars.get_contextvars())

    @app.get("/gone")
    def gone() -> None:
        raise NotFound("no such thing")

    @app.get("/defect")
    def defect() -> None:
        raise RuntimeError("inside")

    app.add_middleware(RequestLog, access_log=request.param)
    with TestClient(app, raise_server_exceptions=False) as client:
        client.headers["X-Access"] = str(request.param)
        yield client


def test_an_id_is_made_up_bound_and_returned(http: TestClient) -> None:
    answers = [http.get("/v1/clusters/3/tenants/4/x") for _ in range(2)]
    for answer in answers:
        assert answer.json() == {"request_id": answer.headers["X-Request-ID"], "tenant": "3/4"}
        assert re.fullmatch(r"[0-9a-f]{16}", answer.headers["X-Request-ID"])
    assert answers[0].headers["X-Request-ID"] != answers[1].headers["X-Request-ID"]
    assert structlog.contextvars.get_contextvars() == {}


@pytest.mark.parametrize("given", ["abcdefgh", "A-b_c.9" * 8, "00-4bf92f3577b34da6-01"])
def test_a_sane_id_is_kept(http: TestClient, given: str) -> None:
    assert http.get("/gone", headers={"X-Request-ID": given}).headers["X-Request-ID"] == given


@pytest.mark.parametrize(
    "given", ["", "short", "a" * 65, "with space", 'quo"te-and-more', "tab\there-and", "über-lang-id"]
)
def test_another_one_is_not(http: TestClient, given: str) -> None:
    answer = http.get("/gone", headers={b"X-Request-ID": given.encode()})
    assert answer.headers["X-Request-ID"] != given
    assert answer.status_code == 404


def test_a_line_for_each_request_if_wanted(http: TestClient) -> None:
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        http.get("/v1/clusters/3/tenants/4/x?token=hidden", headers={"X-Request-ID": "my-request-1"})
        http.get("/defect")
    logged = http.headers["X-Access"] == "True"
    written = [line for line in lines if line["event"] == "request"]
    assert len(written) == (2 if logged else 0)
    if logged:
        first, second = written
        assert (first["method"], first["path"], first["status"]) == ("GET", "/v1/clusters/3/tenants/4/x", 200)
        assert (first["request_id"], first["tenant"]) == ("my-request-1", "3/4")
        assert first["bytes"] > 20
        assert first["ms"] >= 0
        assert second["status"] == 500
        assert "hidden" not in str(written)
    failed = [line for line in lines if line["event"] == "request failed"]
    assert len(failed) == 1


def test_answers_are_counted_by_class_and_strange_methods_together(http: TestClient) -> None:
    def value(method: str, status: str) -> float:
        labels = {"method": method, "status": status}
        return metrics.REGISTRY.get_sample_value("tistream_http_requests_total", labels) or 0.0

    before = value("GET", "4xx"), value("GET", "5xx"), value("other", "4xx")
    http.get("/gone")
    http.get("/defect")
    http.request("BREW", "/gone")
    after = value("GET", "4xx"), value("GET", "5xx"), value("other", "4xx")
    assert [a - b for a, b in zip(after, before, strict=True)] == [1, 1, 1]


def test_a_request_that_a_stopping_server_gives_up_is_for_the_next_one() -> None:
    async def waits(_scope: object, _receive: object, _send: object) -> None:
        await asyncio.sleep(60)

    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def give_up() -> None:
        scope = {"type": "http", "method": "GET", "path": "/v1/clusters/3/tenants/4/x", "headers": []}
        request = asyncio.ensure_future(RequestLog(waits)(scope, send, send))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request

    asyncio.run(give_up())
    start, body = sent
    assert (start["status"], dict(start["headers"])[b"retry-after"]) == (503, b"1")
    assert json.loads(body["body"])["code"] == "TS-1024"
