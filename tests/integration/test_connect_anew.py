"""A store has contradicted its promise with rows that are commits: another tenant takes the place of the one whose log
lacks them. No reader passes the rows unnoticed, and a neighbour in the same catalog and bucket is served as usual."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from reading.rows.scope import Scope
from reading.served.position import encode_cursor
from tests.kit import replica
from tests.kit.api_world import ApiWorld, api_world, events_of, next_cursor, resolved_ts
from tests.kit.log_builder import TENANT, LogBuilder, recording_end
from tests.kit.quarantined_log import quarantine_for, split_off
from tests.kit.recording import EXPECTED, committed_rows
from tistream.catalog.rows.tenants import TenantState
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.catalog.work.deletion import delete_tenant
from tistream.catalog.work.tasks import served_edge
from tistream.errors import BeyondQuarantine, TenantDeleted
from tistream.ids import Tenant

END = recording_end()
ROWS = committed_rows()
NEIGHBOUR, AFTER = Tenant(1, 2), Tenant(1, 3)
MOMENTS = [m for m in replica.moments(EXPECTED) if m.label in ("m-mix1", "m-mix2")]


def middle() -> tuple[int, int]:
    commit_ts = sorted(set(ROWS["commit_ts"].to_pylist()))
    return commit_ts[len(commit_ts) // 4], commit_ts[len(commit_ts) // 2]


EARLY, LATE = split_off(ROWS, *middle())
GOOD_TS = min(LATE["commit_ts"].to_pylist()) - 1


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ApiWorld]:
    """The log up to the end lacks rows, and a neighbour's does not."""
    with api_world(tmp_path, rows=EARLY) as new_world:
        new_world.log.build(8)
        LogBuilder(new_world.catalog, new_world.store, tenant=NEIGHBOUR).build(2, upto=middle()[1])
        yield new_world


def of(tenant: Tenant, world: ApiWorld, path: str = "/changes", **params: Any) -> httpx2.Response:
    base = f"/v1/clusters/{tenant.cluster_id}/tenants/{tenant.tenant_id}"
    given: dict[str, int | str] = {"limit": 200_000, "format": "ndjson"} if path == "/changes" else {}
    return world.http.get(base + path, params={**given, **params})


def changes(answer: httpx2.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    return [event for event in events_of(answer) if event["type"] not in ("resolved", "end")]


def cursor(ts: int) -> str:
    return encode_cursor(Scope(tenant=TENANT), ts)


def refused(answer: httpx2.Response, error: type[Exception]) -> None:
    assert answer.json()["code"] == getattr(error, "code")  # noqa: B009 - of any error class


def test_no_reader_passes_the_rows_before_and_after_the_tenant_is_deleted(world: ApiWorld) -> None:
    passed = next_cursor(world.ok(limit=200_000))
    before = changes(of(NEIGHBOUR, world, start_ts="earliest"))
    quarantine_for(world.log, LATE)
    good = world.ok(limit=200_000, format="ndjson")
    assert resolved_ts(good) == GOOD_TS
    for waiting in (world.get("/changes", cursor=passed), world.get("/changes", cursor=cursor(GOOD_TS + 1))):
        assert waiting.status_code == 409
        refused(waiting, BeyondQuarantine)
        assert "connects another tenant" in waiting.json()["hint"]
    assert delete_tenant(world.catalog, TENANT, seen=TenantState.ACTIVE)
    for lost_cursor in (passed, cursor(GOOD_TS), next_cursor(good)):
        answer = world.get("/changes", cursor=lost_cursor)
        assert answer.status_code == 410
        refused(answer, TenantDeleted)
    assert changes(of(NEIGHBOUR, world, start_ts="earliest")) == before, "a neighbour notices nothing"
    assert served_edge(world.catalog, NEIGHBOUR) == (middle()[1], None, None)


def test_the_tenant_in_its_place_has_every_row(world: ApiWorld) -> None:
    """Its tables are what TiDB answered, late rows included, and a reader that begins there gets each change above."""
    quarantine_for(world.log, LATE)
    LogBuilder(world.catalog, world.store, tenant=AFTER).build(8).seed()
    assert get_tenant(world.catalog, TENANT).state == TenantState.ACTIVE, "both are there while readers move"
    assert LATE.num_rows > 20
    for moment in MOMENTS:
        tables = [table for table in moment.tables if table["kind"] == "table"]
        for table in tables:
            path = f"/databases/{quote(table['db'], safe='')}/tables/{quote(table['table'], safe='')}/rows"
            lines = events_of(of(AFTER, world, path, as_of=moment.ts))
            replica.same_rows(moment, table, [line["columns"] for line in lines])
        assert tables
    first = of(AFTER, world, start_ts="earliest", end_ts=MOMENTS[0].ts)
    rest = of(AFTER, world, cursor=next_cursor(first))
    assert resolved_ts(rest) == END
    assert replica.compare(EXPECTED, changes(first) + changes(rest)) > 0
