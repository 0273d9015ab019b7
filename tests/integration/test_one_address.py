"""Every route at one address: an API server in a process of its own answers what the service in one process answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.kit.auth_site import fill
from tests.kit.waiting import eventually
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.cli import assembly
from tistream.cli.running import Running
from tistream.config import Settings, load
from tistream.http.auth.core.roles import Role
from tistream.http.auth.issue import issue_key
from tistream.ids import Tenant
from tistream.objectstore.layout import SchemaSnapKey


def settings_in(folder: Path) -> Settings:
    (folder / "bucket").mkdir(parents=True)
    return load(
        None,
        {},
        {
            "catalog.url": f"sqlite:///{folder}/catalog.db",
            "object_store.url": f"file://{folder}/bucket",
            "server.port": 0,
            "server.auth": "keys",
            "metrics.port": 0,
        },
    )


@contextmanager
def started(running: Running) -> Iterator[Running]:
    running.start()
    try:
        yield running
    finally:
        running.close()


@contextmanager
def client_of(running: Running) -> Iterator[httpx2.Client]:
    key = issue_key(running.parts.catalog, name="me", role=Role.OWNER, tenant=None)
    with httpx2.Client(base_url=running.url, headers={"Authorization": f"Bearer {key.text}"}, timeout=60) as http:
        yield http


def answers(http: httpx2.Client, document: dict[str, Any]) -> dict[str, int]:
    """Every operation -> the status of an answer to it, for a tenant that is not there."""
    statuses = {}
    for path, methods in document["paths"].items():
        for method in methods:
            body: dict[str, Any] | None = {} if method in ("post", "put", "patch") else None
            statuses[f"{method} {path}"] = http.request(method, fill(path), json=body).status_code
    return statuses


def test_an_api_server_answers_every_route_of_the_service_in_one_process(tmp_path: Path) -> None:
    one = started(assembly.embedded(settings_in(tmp_path / "up"), tmp_path / "up", warm_up=False))
    api = started(assembly.api_server(assembly.open_parts(settings_in(tmp_path / "serve"))))
    with one as up, api as serve, client_of(up) as at_up, client_of(serve) as at_serve:
        documents = [http.get("/openapi.json").json() for http in (at_up, at_serve)]
        assert documents[0]["paths"].keys() == documents[1]["paths"].keys()
        assert len(documents[0]["paths"]) > 60
        of_up, of_serve = answers(at_up, documents[0]), answers(at_serve, documents[0])
        assert of_up == of_serve
        assert 405 not in of_serve.values()
        for page in ("/overview", "/tenants", "/workers", "/tenants/register", "/keys", "/gaps", "/events"):
            assert [http.get(page).status_code for http in (at_up, at_serve)] == [200, 200], page


def test_an_api_server_shows_the_problems_of_a_meta_server_of_its_own(tmp_path: Path) -> None:
    settings, tenant = settings_in(tmp_path), Tenant(1, 1)
    bad = tmp_path / "bucket" / str(SchemaSnapKey(tenant=tenant, ts=1))
    bad.parent.mkdir(parents=True)
    bad.write_bytes(b"no snapshot")
    meta = assembly.meta(assembly.open_parts(settings), "meta-1")
    with started(assembly.api_server(assembly.open_parts(settings))) as serve, client_of(serve) as http:
        assert http.get("/healthz").json()["problems"] == []
        register_tenant(serve.parts.catalog, tenant)
        with started(meta):
            eventually(lambda: http.get("/healthz").json()["problems"])
            (problem,) = http.get("/healthz").json()["problems"]
        assert (problem["code"], problem["facts"]["object"]) == ("TS-1020", str(SchemaSnapKey(tenant=tenant, ts=1)))
        assert problem["source"].startswith("meta-1/")
        assert "tistream_problems{" not in http.get("/metrics").text, "the meta server counts its own"
        assert "meta-1/activation" in http.get("/overview").text


@pytest.mark.parametrize("role", ["meta", "api"])
def test_probes_and_metrics_need_no_key_on_their_own_port(role: str, tmp_path: Path) -> None:
    parts = assembly.open_parts(settings_in(tmp_path))
    service = assembly.meta(parts, "meta-1") if role == "meta" else assembly.api_server(parts)
    with started(service) as running:
        assert running.probes is not None
        probes = running.probes.url
        answer = httpx2.get(f"{probes}/metrics")
        assert answer.status_code == 200
        assert "tistream_http_requests_total" in answer.text
        assert ("tistream_tenants" in answer.text) == (role == "meta")
        assert httpx2.get(f"{probes}/readyz").status_code == 200
        if role == "api":
            assert httpx2.get(f"{running.url}/metrics").status_code == 401
        else:
            assert running.url == ""
            nothing = httpx2.post(f"{probes}/v1/tenants", json={"cluster_id": 1, "tenant_id": 1})
            assert nothing.status_code == 404
            assert "tistream serve" in nothing.json()["hint"]
