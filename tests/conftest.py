"""For all tests: how fast the machine is decides nothing, and every core gets what a dispatcher would send it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.kit.suites import Suites

if TYPE_CHECKING:
    from tistream.catalog.database.engine import Catalog

# Before Polars is loaded, here and in what tests start: its threads look for more work after each small frame.
os.environ.setdefault("POLARS_MAX_THREADS", "1")

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which rotating tests are run. A run by hand leaves none out."""
    parser.addoption("--rotation", default="all", help="all, only (the rotating tests), commit, or a number: one part")


def pytest_configure(config: pytest.Config) -> None:
    """Choose and order tests, and count what they take."""
    config.pluginmanager.register(Suites(config.getoption("--rotation")))


def pytest_collection_finish() -> None:
    """Refuse rows that the router would have cut: a core that gets them numbers its rows as no deployed one does. See
    `tests.kit.routed`."""
    arrivals = sys.modules.get("sorter.rows.batch_rows")
    if arrivals is None:
        return
    whole = arrivals.rows_inside

    def none_outside(keys: Any, range_: Any) -> Any:
        inside = whole(keys, range_)
        assert inside is None, f"rows outside of {range_} reach a core: cut the file to it with `routed`"
        return inside

    arrivals.rows_inside = none_outside  # type: ignore[attr-defined]


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    """A migrated, empty catalog in a file."""
    from tests.kit.catalog_cases import new_catalog

    new = new_catalog(tmp_path)
    yield new
    new.close()


@pytest.fixture(autouse=True)
def default_logging() -> Iterator[None]:
    """A test that runs a command leaves no log level behind."""
    yield
    structlog.reset_defaults()
