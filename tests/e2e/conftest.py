"""Paths and facts of the recording that the end-to-end tests push."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORDING = ROOT / "simulator" / "recording"


@pytest.fixture(scope="session")
def recording() -> Path:
    """The recorded change stream that ships with TiStream."""
    return RECORDING


@pytest.fixture(scope="session")
def expected() -> Path:
    """What that TiDB and TiCDC answered."""
    return ROOT / "tests" / "expected"


@pytest.fixture(scope="session")
def last_resolved_ts() -> int:
    """W after the whole recording."""
    return int(json.loads((RECORDING / "meta.json").read_text("utf-8"))["last_resolved_ts"])
