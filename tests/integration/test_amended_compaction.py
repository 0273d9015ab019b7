"""A log with rows accepted later, compacted and read as of a timestamp: as if it had never lacked them. A neighbour in
the same catalog and bucket does not notice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from compactor.base_job import BaseSettings, build_tenant_bases
from compactor.core.base_plan import BasePlanSettings
from compactor.core.plan import PlanSettings
from compactor.job import JobEnd, JobSettings, compact_tenant
from compactor.local import LocalExecutor
from tests.kit import replica
from tests.kit.amended_log import accept_rows, quarantine_for, split_off
from tests.kit.api_world import ApiWorld, api_world, events_of, resolved_ts
from tests.kit.log_builder import TENANT, LogBuilder, recording_end
from tests.kit.recording import EXPECTED, committed_rows
from tistream.catalog.log.bases import list_bases
from tistream.catalog.work.tasks import served_edge
from tistream.ids import Tenant

END = recording_end()
ROWS = committed_rows()
MOMENTS = [m for m in replica.moments(EXPECTED) if m.label in ("m-mix1", "m-mix2")]
NEIGHBOUR = Tenant(1, 2)
ALL = BaseSettings(lag_ms=0, window_ms=10 * 365 * 24 * 3_600_000, plan=BasePlanSettings(tail_ratio=0, tail_bytes_min=0))


def middle() -> tuple[int, int]:
    commit_ts = sorted(set(ROWS["commit_ts"].to_pylist()))
    return commit_ts[len(commit_ts) // 4], commit_ts[len(commit_ts) // 2]


EARLY, LATE = split_off(ROWS, *middle())
FROM = min(LATE["commit_ts"].to_pylist()) - 1


@dataclass
class Neighbour:
    """A tenant that goes on writing, and what it served meanwhile."""

    world: ApiWorld
    log: LogBuilder
    cuts: list[int]
    pages: list[list[dict[str, Any]]] = field(default_factory=list)

    def go_on(self) -> None:
        """Write the next part, and serve it at once and in order."""
        upto = self.cuts.pop(0)
        self.log.flush(upto)
        answer: httpx2.Response = self.world.http.get(
            "/v1/clusters/1/tenants/2/changes", params={"start_ts": "earliest", "limit": 200_000, "format": "ndjson"}
        )
        assert (answer.status_code, resolved_ts(answer)) == (200, upto)
        assert "TiStream-Amended" not in answer.headers
        assert served_edge(self.world.catalog, NEIGHBOUR) == (upto, None, None, 0)
        self.pages.append(changes_in(events_of(answer)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    """A log that never lacked the rows."""
    with api_world(tmp_path_factory.mktemp("whole")) as made:
        made.log.build(8).seed()
        yield made


@pytest.fixture(scope="module")
def amended(tmp_path_factory: pytest.TempPathFactory, whole: ApiWorld) -> Iterator[tuple[ApiWorld, Neighbour]]:
    """The same rows, some of them accepted when bases above them had been built. Compacted, with bases, afterwards."""
    with api_world(tmp_path_factory.mktemp("amended"), rows=EARLY) as made:
        beside = Neighbour(made, LogBuilder(made.catalog, made.store, tenant=NEIGHBOUR).activate(), whole.log.cuts(4))
        made.log.activate().seed()
        for ts in [FROM, *(ts for ts in made.log.cuts(8) if ts > FROM), END]:
            made.log.flush(ts)
            if ts in (FROM, END):
                build_bases(made)
        assert [base.ts > FROM for base in list_bases(made.catalog, TENANT)].count(True) > 0
        beside.go_on()
        quarantine_for(made.log, LATE)
        assert served_edge(made.catalog, TENANT)[:2] == (FROM, FROM)
        beside.go_on()
        accept_rows(made.log, LATE)
        beside.go_on()
        yield made, beside


def build_bases(world: ApiWorld) -> None:
    bases = LocalExecutor(world.store).bases
    report = build_tenant_bases(world.catalog, world.services.registry, TENANT, bases, ALL, world.clock)
    assert report.end is JobEnd.SWAPPED


def changes_in(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["type"] not in ("resolved", "end")]


def rows_of(world: ApiWorld) -> list[dict[str, Any]]:
    return changes_in(world.events())


def tables_at(world: ApiWorld, moment: replica.Moment) -> dict[str, bytes]:
    named = [table for table in moment.tables if table["kind"] == "table"]
    paths = [f"/databases/{quote(t['db'], safe='')}/tables/{quote(t['table'], safe='')}/rows" for t in named]
    return {path: world.ok(path, as_of=moment.ts).content for path in paths}


def test_compacted_and_with_bases_it_holds_the_rows(amended: tuple[ApiWorld, Neighbour], whole: ApiWorld) -> None:
    world, _ = amended
    assert LATE.num_rows > 20
    assert {base.ts <= FROM for base in list_bases(world.catalog, TENANT)} == {True}, "bases above lack the rows"
    for moment in MOMENTS:
        assert tables_at(world, moment) == tables_at(whole, moment), f"{moment.label}, without later bases"
    settings = JobSettings(lag_ms=0, plan=PlanSettings(inputs_min=2))
    merged = compact_tenant(world.catalog, TENANT, LocalExecutor(world.store), settings, world.clock)
    assert merged.end is JobEnd.SWAPPED
    assert rows_of(world) == rows_of(whole)
    build_bases(world)
    assert max(base.ts for base in list_bases(world.catalog, TENANT)) > FROM
    for moment in MOMENTS:
        assert tables_at(world, moment) == tables_at(whole, moment), f"{moment.label}, with bases"


def test_a_neighbour_is_served_on_meanwhile(amended: tuple[ApiWorld, Neighbour], whole: ApiWorld) -> None:
    _, beside = amended
    expected = rows_of(whole)
    assert len(beside.pages) == 3
    for page, upto in zip(beside.pages, whole.log.cuts(4), strict=False):
        assert page == [event for event in expected if int(event["commit_ts"]) <= upto]
