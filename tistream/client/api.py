"""The synchronous client of the HTTP API: from it tenants and their tables are read.

    connect(url).tenant(1, 1).table("shop.customers").rows().to_polars()

`tistream.client.aio` is its twin.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import httpx2

from tistream.client.connection import Connection
from tistream.client.core.requests import FIRST_ANSWER_S, Target, TenantState, tenant_of
from tistream.client.tenant import Tenant
from tistream.runtime.credentials import files_for, key_for

DEFAULT_URL = "http://127.0.0.1:8711"


class Client(Connection):
    """A connection to one TiStream service. Safe to use from several threads."""

    def tenant(self, cluster_id: int, tenant_id: int) -> Tenant:
        """A tenant, to read from it. Nothing is asked yet."""
        return Tenant(self, Target(cluster_id, tenant_id))

    def tenants(self) -> list[TenantState]:
        """The registered tenants that the key may see."""
        return [tenant_of(item) for item in self.get("/v1/tenants")["items"]]


def connect(
    url: str = DEFAULT_URL,
    *,
    key: str | None = None,
    ca: str | Path | None = None,
    cert: tuple[str | Path, str | Path] | None = None,
    retry_s: float = 30,
    first_answer_s: float = FIRST_ANSWER_S,
    sleep: Callable[[float], None] = time.sleep,
    transport: httpx2.BaseTransport | None = None,
) -> Client:
    """A client of the service at `url`; options as `Client` has them. Without a `key` it uses TISTREAM_KEY or the key
    of `tistream login`. `ca`: a PEM file with the authority of the service's certificate; `cert`: the PEM files of this
    client's own certificate and its key, for mutual TLS. Without them TISTREAM_CA, TISTREAM_CLIENT_CERT and
    TISTREAM_CLIENT_KEY count, or what `tistream login` kept, or the authorities of the system. Files that change are
    read again."""
    key, files = key_for(url) if key is None else key, files_for(url, ca, cert)
    return Client(
        url, key=key, retry_s=retry_s, first_answer_s=first_answer_s, sleep=sleep, transport=transport, files=files
    )
