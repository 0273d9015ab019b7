"""Three minutes of chaos on real processes: nothing is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.timeout(600)
def test_nothing_is_lost_in_three_minutes_of_chaos(tmp_path: Path) -> None:
    with (tmp_path / "said").open("w") as said:
        command = [sys.executable, "-m", "tistream.cli.main", "chaos", "--minutes=3", "--seed=20", "--every=4"]
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=said, timeout=580, check=False)
    story = (tmp_path / "said").read_text("utf-8")
    assert ran.returncode in (0, 1), story
    report = json.loads(ran.stdout)
    assert ran.returncode == 0, f"{json.dumps(report, indent=1)}\n{story}"
    assert report["findings"] == {}
    assert report["read"] == report["committed"] > 1000
    assert sum(report["events"].values()) > 15
    assert report["takeovers"] > 0
