"""The API server's application over a catalog and a bucket, as the composition root makes it from settings."""

from __future__ import annotations

from fastapi import FastAPI

from apiserver.app import create_app
from apiserver.control.push_access import CredentialIssuer, PushPlace
from reading.served.services import Services
from tests.kit.answer_judge import judged
from tistream.catalog.database.engine import Catalog
from tistream.clock import SystemClock
from tistream.http.auth.authenticator import Authenticator
from tistream.objectstore.memory import MemoryStore
from tistream.objectstore.protocol import ObjectStore


def control_app(
    catalog: Catalog,
    store_url: str = "memory://",
    store: ObjectStore | None = None,
    *,
    authenticator: Authenticator | None = None,
    issuer: CredentialIssuer | None = None,
) -> FastAPI:
    """Pushers hear that their bucket is `store_url`; the service itself reads `store`. Its answers are judged, see
    `answer_judge`: `app.state.judge`."""
    store = store or MemoryStore()
    services = Services.create(catalog, store, SystemClock())
    app = create_app(services, push=PushPlace(url=store_url, issuer=issuer), authenticator=authenticator)
    app.state.judge = judged(app)
    return app
