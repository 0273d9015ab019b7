"""Each scenario file is run and its output compared with what the file expects.

TISTREAM_REWRITE_SCENARIOS=1 rewrites the expected output; read the difference before you keep it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kit.scenario import run_scenario

FILES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_scenario(path: Path) -> None:
    text = path.read_text()
    result = run_scenario(text)
    if os.environ.get("TISTREAM_REWRITE_SCENARIOS"):
        path.write_text(result)
    assert result == path.read_text()


def test_there_are_scenarios() -> None:
    assert len(FILES) >= 20
