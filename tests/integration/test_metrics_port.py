"""The metrics port of the processes with an HTTP port: Prometheus has no key, and reads lag all the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from tistream.cli import assembly
from tistream.config import load


@pytest.mark.parametrize("role", ["meta", "api"])
def test_metrics_need_a_key_on_the_http_port_and_none_on_their_own(role: str, tmp_path: Path) -> None:
    settings = load(
        None,
        {},
        {
            "catalog.url": f"sqlite:///{tmp_path}/catalog.db",
            "object_store.url": f"file://{tmp_path}/bucket",
            "server.port": 0,
            "server.auth": "keys",
            "metrics.port": 0,
        },
    )
    (tmp_path / "bucket").mkdir()
    roles: dict[str, Callable[[assembly.Parts], assembly.Running]] = {
        "meta": lambda parts: assembly.meta(parts, "meta-1"),
        "api": assembly.api_server,
    }
    running = roles[role](assembly.open_parts(settings))
    running.start()
    try:
        assert running.probes is not None
        assert httpx2.get(f"{running.url}/metrics").status_code == 401
        answer = httpx2.get(f"{running.probes.url}/metrics")
        assert answer.status_code == 200
        assert "tistream_http_requests_total" in answer.text
        assert ("tistream_tenants" in answer.text) == (role == "meta")
        assert httpx2.get(f"{running.probes.url}/readyz").status_code == 200
    finally:
        running.close()
