"""A catalog that answers reads and takes no writes is not ready."""

from __future__ import annotations

from contextlib import suppress

import pytest
from sqlalchemy import event, func, select
from starlette.testclient import TestClient

from tests.kit.manual_clock import ManualClock
from tests.kit.statements import StatementLog
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import idempotency_keys
from tistream.errors import TiStreamError
from tistream.http.probes import probe_app
from tistream.http.readiness import REFUSED_S, WRITE_CHECK_S, Probes, catalog_answers


def ready(http: TestClient) -> int:
    return http.get("/readyz").status_code


def rows(catalog: Catalog) -> int:
    with catalog.reading() as conn:
        return int(conn.execute(select(func.count()).select_from(idempotency_keys)).scalar_one())


def test_a_catalog_that_takes_writes_is_ready_and_keeps_nothing(catalog: Catalog) -> None:
    check = catalog_answers(catalog, ManualClock())
    check()
    check()
    assert rows(catalog) == 0


def keep(catalog: Catalog, n: int) -> None:
    """A row that is not larger than a page: it takes the free pages one by one."""
    row = {"key_hash": f"{n}", "request_hash": "", "attempt": "", "status": 0, "media_type": "", "started_ms": 0}
    with catalog.transaction() as conn:
        conn.execute(idempotency_keys.insert().values({**row, "body": bytes(3000)}))


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_a_write_is_tried_once_in_a_while(catalog: Catalog) -> None:
    clock, log = ManualClock(), StatementLog(catalog)
    check = catalog_answers(catalog, clock)
    with log:
        for _ in range(5):
            check()
        clock.advance(WRITE_CHECK_S)
        check()
    assert len(log.with_a("INSERT")) == 2


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("harm", "mended"),
    [
        ("PRAGMA max_page_count = 1", "PRAGMA max_page_count = 1000000"),
        ("PRAGMA query_only = 1", "PRAGMA query_only = 0"),
    ],
    ids=["full", "read-only"],
)
def test_a_catalog_without_writes_is_not_ready_until_it_is_mended(catalog: Catalog, harm: str, mended: str) -> None:
    said = {"now": mended}
    event.listen(catalog._engine, "checkout", lambda c, *_: c.execute(said["now"]).close())
    clock = ManualClock()
    with TestClient(probe_app(Probes(checks={"catalog": catalog_answers(catalog, clock)}))) as http:
        assert ready(http) == 200
        said["now"] = harm
        with suppress(TiStreamError):
            for n in range(100):
                keep(catalog, n)
        clock.advance(WRITE_CHECK_S)
        assert [ready(http), ready(http)] == [503, 503]
        said["now"] = mended
        clock.advance(REFUSED_S)
        assert ready(http) == 200
