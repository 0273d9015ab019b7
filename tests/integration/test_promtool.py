"""The alert rules under the real promtool."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tistream.runtime import metrics

PROMETHEUS = Path(__file__).parents[2] / "infra" / "prometheus"


def promtool(*args: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["promtool", *args], capture_output=True, input=stdin, cwd=PROMETHEUS, timeout=120)


@pytest.mark.parametrize(
    "args",
    [("check", "rules", "alerts.yml"), ("check", "config", "prometheus.yml"), ("test", "rules", "alerts.test.yml")],
)
def test_promtool_agrees(args: tuple[str, ...]) -> None:
    done = promtool(*args)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


def test_a_rule_that_is_wrong_fails_its_test(tmp_path: Path) -> None:
    """promtool refuses an alert that looks at the wrong metric."""
    rules = (PROMETHEUS / "alerts.yml").read_text("utf-8")
    (tmp_path / "alerts.yml").write_text(rules.replace("tistream_checkpoint_lag_seconds) > 30", "tistream_tasks) > 30"))
    (tmp_path / "alerts.test.yml").write_text((PROMETHEUS / "alerts.test.yml").read_text("utf-8"))
    done = subprocess.run(["promtool", "test", "rules", "alerts.test.yml"], capture_output=True, cwd=tmp_path)
    assert done.returncode == 1
    assert b"TiStreamLagHigh" in done.stdout + done.stderr


def test_what_a_process_shows_is_well_formed() -> None:
    metrics.ROWS.labels("sorter", "in").inc(0)
    shown = metrics.exposition([lambda: [metrics.single("tistream_owner_epoch", 1)]])
    done = promtool("check", "metrics", stdin=shown)
    ours = [line for line in (done.stdout + done.stderr).decode().splitlines() if line.startswith("tistream")]
    assert not ours
    assert done.returncode in (0, 3)  # 3: it does not like a name of the Python runtime's own
