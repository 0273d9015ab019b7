"""Worlds that several modules share. A module's own fixture of the same name stands before these."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from simulator.chaos.servers.s3server import CREDENTIALS, S3Server, s3_server
from tests.kit.api_world import ApiWorld, api_world
from tests.kit.auth_site import Site, auth_site
from tests.kit.catalog_locks import locked_after_events
from tests.kit.sorter_bench import Bench


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    """The recording's log behind the API, in as many flushes as the module's FLUSHES says; its tests only read."""
    with api_world(tmp_path_factory.mktemp("api")) as new_world:
        new_world.log.build(request.module.FLUSHES)
        yield new_world


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[ApiWorld]:
    """An API whose log is for the test to build."""
    with api_world(tmp_path) as new_world:
        yield new_world


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The service that asks for keys."""
    with auth_site(tmp_path_factory.mktemp("auth")) as new_site:
        yield new_site


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Sorters over a catalog and a store."""
    new_bench = Bench(tmp_path)
    yield new_bench
    new_bench.stop()


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """An S3 server; the environment has its credentials."""
    with s3_server() as new_server, pytest.MonkeyPatch.context() as environment:
        for name, value in CREDENTIALS.items():
            environment.setenv(name, value)
        yield new_server


@pytest.fixture(autouse=True, scope="module")
def events_come_last() -> Iterator[None]:
    """Every transaction of the process locks the counter of events last. See `tests.kit.catalog_locks`."""
    broken = locked_after_events()
    yield
    assert not broken
